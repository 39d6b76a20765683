"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(condition: Callable[[], object], seconds: float = 20.0, *, told: Callable[[], object] = lambda: "") -> None:
    """Wait for a condition, with a deadline; if it passes, ``told`` says how things are."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time {told()}"
        time.sleep(0.002)
