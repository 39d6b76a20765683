"""Threads that end before the interpreter does.

A daemon thread that is inside an extension written in C++ (numpy, torch, matplotlib) when the interpreter ends aborts
the process, with a core dump in place of the exit code: Python ends it by unwinding a stack that must not be unwound.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

MAX_EXIT_SECONDS = 2.0
"""What the end of a process waits for all its background threads together."""

_stops: dict[threading.Thread, Callable[[], object]] = {}  # of those that have not ended


def background_thread(run: Callable[[], object], name: str, stop: Callable[[], object]) -> threading.Thread:
    """Return a thread, to be started, that is asked to end when the process does.

    ``stop`` asks it and returns at once. A thread that does not end within two seconds is left behind, as a callback
    that never returns would be.
    """

    def run_to_the_end() -> None:
        try:
            run()
        finally:
            _stops.pop(thread, None)  # which keeps alive whatever it stops

    thread = threading.Thread(target=run_to_the_end, name=name, daemon=True)
    _stops[thread] = stop
    return thread


@atexit.register
def end_background() -> None:
    """Ask all background threads to end, and wait for them."""
    running = [(thread, stop) for thread, stop in list(_stops.items()) if thread.is_alive()]
    for _, stop in running:
        stop()
    deadline = time.monotonic() + MAX_EXIT_SECONDS
    for thread, _ in running:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
