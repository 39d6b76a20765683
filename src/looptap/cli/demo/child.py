"""A job in its own process, which ends with the object that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType

from looptap.client.attach import runs
from looptap.client.run import Run
from looptap.protocol.files.connection import remove
from looptap.streams.errors import LooptapError

START_TIMEOUT_SECONDS = 300.0
"""Seconds to wait for a job to announce itself: its imports take a minute on a busy machine."""
EXIT_GRACE_SECONDS = 3.0
"""Seconds to wait for it to end on request."""


class JobFailed(LooptapError):
    """A job ended before it could be attached to; the message has its last output."""


class Job:
    """``python -m module``, stopped when the context ends, for whatever reason.

    It has a session of its own: Ctrl-C on the terminal reaches only its parent, which then stops it.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self.command: Sequence[str] = ["-m", module, *arguments]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 it is closed when the job has ended
        environment = {name: value for name, value in os.environ.items() if name != "LOOPTAP_DISABLED"}
        self._process = subprocess.Popen(
            [sys.executable, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def attach(self, timeout: float = START_TIMEOUT_SECONDS) -> Run:
        """Wait until the job announces itself, and attach to it. Raises JobFailed."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            for listed in runs():
                if listed.pid == self.pid and listed.alive:
                    return listed.attach()
            if ended:
                raise JobFailed(f"{self} ended too early. Its last output:\n{self.printed()}")
            time.sleep(0.02)
        raise JobFailed(f"{self} did not announce itself within {timeout:g} s.")

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or None if the job still runs after ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def printed(self, lines: int = 15) -> str:
        """Return the last lines that the job has printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 10_000))
        text = self._output.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """End the job, by force if need be."""
        if self._process.poll() is None:
            self._process.terminate()
        if self.wait(EXIT_GRACE_SECONDS) is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(LooptapError):
            for listed in runs():  # a job that was stopped leaves its file behind
                if listed.pid == self.pid:
                    remove(listed.path)
        self._output.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def __str__(self) -> str:
        return " ".join(["python", *self.command])
