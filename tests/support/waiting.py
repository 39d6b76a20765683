"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_SECONDS = 60.0
"""Until a test gives up on a condition: long, since a machine may be busy many times over."""


def soon(condition: Callable[[], T], seconds: float = LIMIT_SECONDS, *, detail: str | Callable[[], object] = "") -> T:
    """Wait until a condition is true and return its value; after ``seconds`` fail with ``detail``."""
    begun = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"it did not happen within {seconds:g} s: {detail() if callable(detail) else detail}"
        time.sleep(min(0.002 + waited / 100, 0.05))
    return found
