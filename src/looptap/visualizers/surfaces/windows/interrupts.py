"""`interruptible`: Ctrl-C in the terminal while a window is shown."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interruptible(manager: Any, noted: Callable[[], None]) -> Iterator[None]:
    """Call ``noted`` at Ctrl-C, in place of Python's handler (main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        # An interrupted turn leaves Tk with callbacks for deleted images, and it would print an error for each.
        window: Any = getattr(manager, "window", None)
        if hasattr(window, "report_callback_exception"):
            window.report_callback_exception = lambda *_: None
        noted()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
