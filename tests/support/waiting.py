"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
