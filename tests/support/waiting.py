"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_SECONDS = 60.0
"""Until a test gives up on a condition: long, since a machine may be busy many times over."""


def soon(condition: Callable[[], T], seconds: float = LIMIT_SECONDS, *, told: str | Callable[[], object] = "") -> T:
    """Wait for a condition and return what it comes to; if it takes too long, ``told`` says how things are."""
    begun = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"it did not happen within {seconds:g} s: {told() if callable(told) else told}"
        time.sleep(min(0.002 + waited / 100, 0.05))
    return found
