"""Waits that Ctrl-C ends at once, even where a lock blocks signals."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERRUPT_CHECK_SECONDS = 0.5
"""Maximum of one wait: a waiting thread then looks up, so that Ctrl-C works where locks block signals."""


def wait_interruptibly(wait: Callable[[float], object], timeout: float | None) -> bool:
    """Call ``wait(seconds)`` until it returns true; return False after ``timeout``.

    >>> import threading
    >>> event = threading.Event()
    >>> wait_interruptibly(event.wait, 0.0)
    False
    >>> event.set()
    >>> wait_interruptibly(event.wait, None)
    True
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = INTERRUPT_CHECK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        if wait(min(left, INTERRUPT_CHECK_SECONDS)):
            return True
        if left <= 0:
            return False


def poll_until(condition: Callable[[], object], interval: float, timeout: float | None = None) -> bool:
    """Check ``condition`` each ``interval`` seconds; return False after ``timeout``.

    >>> poll_until(lambda: False, 0.0, 0.0)
    False
    """

    def look(left: float) -> bool:
        if condition():
            return True
        time.sleep(min(left, interval))
        return False

    return wait_interruptibly(look, timeout)
