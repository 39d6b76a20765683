"""A trace of a few steps of the loop by torch's profiler, in a file for Perfetto.

The profiler begins and ends on the training thread, at events; its file is written by a thread of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import threading
from pathlib import Path
from typing import Any

from looptap.agent.control.profiling.step_recorder import Done
from looptap.streams.errors import ControlError
from looptap.streams.events import Event

MAX_TRACE_BYTES = 2 << 30
"""Size of a trace before it is compressed; a larger one is removed."""
_GZIP_LEVEL_NUMBER = 3


class StepProfiler:
    """A profile of ``steps`` steps, written to ``path``. Training thread."""

    def __init__(self, path: str, steps: int) -> None:
        self.path, self._left = Path(path), steps
        self._thread = 0
        self._profile: Any = None

    def start(self, done: Done) -> None:
        """Start the profiler. Raises ControlError if it cannot run or write its file."""
        self._done = done
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "profiler"):
            raise ControlError("the job has not loaded torch, whose profiler makes the trace.")
        if torch.autograd._profiler_enabled():
            raise ControlError("another profiler runs in the training thread, and torch has room for one.")
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise ControlError(f"{self.path}: {error.strerror or error}; nothing was written.") from None
        kinds = torch.profiler.ProfilerActivity
        wanted = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() and torch.cuda.is_initialized() else [])]
        try:
            self._profile = torch.profiler.profile(activities=wanted, acc_events=False)
            self._thread = threading.get_ident()
            self._profile.start()
        except Exception as error:
            self._profile = None
            self.path.unlink(missing_ok=True)
            raise ControlError(f"torch's profiler did not start: {type(error).__name__}: {error}") from None

    def here(self) -> bool:
        """Return True on the thread that has started it, which alone may stop it."""
        return threading.get_ident() == self._thread

    def step(self, event: Event) -> bool:
        """Stop the profiler after the last step, and have its file written."""
        self._left -= 1
        if self._left:
            return False
        self._stop()
        try:
            threading.Thread(target=self._save, name="looptap-profile", daemon=True).start()
        except RuntimeError as error:
            self._profile = None
            self.path.unlink(missing_ok=True)
            raise ControlError(f"the trace was not written: {error}") from None
        return True

    def _stop(self) -> None:
        """Stop the profiler. Raises ControlError if torch's fails."""
        try:
            self._profile.stop()
        except Exception as error:
            self._profile = None
            self.path.unlink(missing_ok=True)
            raise ControlError(f"torch's profiler did not stop: {type(error).__name__}: {error}") from None

    def abandon(self) -> None:
        """Stop the profiler, and remove its file."""
        if self.here():
            with contextlib.suppress(ControlError):
                self._stop()
            with contextlib.suppress(OSError):
                self.path.unlink()

    def after_fork(self) -> None:
        """Do nothing: torch's profiler is that of one process."""

    def _save(self) -> None:
        """Write the file, and report its size. Its own thread."""
        try:
            size = self._write()
        except Exception as error:
            self.path.unlink(missing_ok=True)
            self._done(None, f"the trace was not written: {type(error).__name__}: {error}")
        else:
            self._done(f"{self.path}: {size:,} bytes", "")

    def _write(self) -> int:
        profile, self._profile = self._profile, None
        raw = self.path.with_name(f".{self.path.name}.part")
        try:
            profile.export_chrome_trace(str(raw))
            if (size := raw.stat().st_size) > MAX_TRACE_BYTES:
                raise ValueError(f"it has {size:,} bytes, and {MAX_TRACE_BYTES:,} may be; profile fewer steps")
            with raw.open("rb") as plain, gzip.open(self.path, "wb", _GZIP_LEVEL_NUMBER) as packed:
                while part := plain.read(1 << 20):
                    packed.write(part)
        finally:
            with contextlib.suppress(OSError):
                raw.unlink()
        return self.path.stat().st_size
