"""Optional SIGTERM handler: sends pending values before the former handler runs.

Python ends at SIGTERM without running anything. This handler runs on the main thread, between two of its
instructions; a main thread that hangs in a call of C runs no handler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class OnSigterm:
    """A SIGTERM handler, installed until `remove`.

    It calls ``flush`` and then the former handler; without one, ``end``, and the process dies of the signal.
    Raises ValueError off the main thread, where Python allows no signal handler. An ignored signal stays ignored, and a
    handler that is not Python's stays installed: it could not be called.
    """

    def __init__(self, end: Callable[[], object], flush: Callable[[], object]) -> None:
        require_main_thread()
        self._end, self._flush = end, flush
        self._handler = self._handle  # one object, to be found again
        self._before: Any = signal.getsignal(signal.SIGTERM)
        if self._before not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGTERM, self._handler)

    def _handle(self, number: int, frame: Any) -> None:
        if callable(self._before):  # it may let the job continue
            self._flush()
            self._before(number, frame)
            return
        self._end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def remove(self) -> None:
        """Restore the former handler of SIGTERM, unless it was replaced since."""
        with contextlib.suppress(ValueError):  # not on the main thread: the handler stays, and only passes it on
            if signal.getsignal(signal.SIGTERM) is self._handler:
                signal.signal(signal.SIGTERM, self._before)


def require_main_thread() -> None:
    """Raise ValueError on any thread but the main one."""
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("sigterm=True: only the main thread can handle signals. Create the agent there.")
