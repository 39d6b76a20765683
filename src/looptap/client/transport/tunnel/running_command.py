"""A command started for its stdin and stdout, and what it writes to stderr."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import deque
from collections.abc import Sequence

from looptap.client.transport.tunnel.framing import LINE_BUFFER_BYTES, hear
from looptap.protocol.errors import NoAnswer

_EXIT_GRACE_SECONDS = 0.5  # seconds in which a command may end by itself


class RunningCommand:
    """A running ``command``. Raises NoAnswer, prefixed by ``shown``, if it fails."""

    def __init__(self, command: Sequence[str], thread: str, shown: str = "") -> None:
        self.command = list(command)
        try:
            # In a session of its own: a Ctrl-C in the terminal is for the user's program, not for the connection.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=LINE_BUFFER_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswer(f"{shown}{self.command[0]!r} cannot be started: {error.strerror}.") from None
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        self.stdin, self.stdout = stdin, stdout
        self._stderr_lines: deque[str] = deque(maxlen=10)
        self._stderr_thread = threading.Thread(
            target=_hear, args=(self.process, self._stderr_lines), name=thread, daemon=True
        )
        self._stderr_thread.start()

    def quoted_stderr(self) -> str:
        """Quote the last lines of the command's stderr; empty if there are none."""
        said = " / ".join(self._stderr_lines)[-1000:]
        return f" It said: {said}{'' if said.endswith(('.', '!', '?')) else '.'}" if said else ""

    def exit_code(self) -> int | None:
        """Return the exit code once stderr is read; None if it runs for another 0.5 s."""
        self._wait(_EXIT_GRACE_SECONDS)
        self._stderr_thread.join(_EXIT_GRACE_SECONDS)
        return self.process.poll()

    def close_stdin(self) -> None:
        """Close its stdin, which should end it."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def end(self, grace: float = 0.0) -> None:
        """End it: by itself within ``grace`` seconds, else by signals."""
        if grace:
            self._wait(grace)
        for end in (self.process.terminate, self.process.kill):
            if self.process.poll() is not None:
                break
            end()
            self._wait(_EXIT_GRACE_SECONDS)
        if self._stderr_thread is not threading.current_thread():
            self._stderr_thread.join(_EXIT_GRACE_SECONDS)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)


def _hear(process: subprocess.Popen[bytes], said: deque[str]) -> None:
    """Keep what a command writes to stderr, and reap it, however long its end takes."""
    assert process.stderr is not None
    hear(process.stderr, said)
    process.wait()
