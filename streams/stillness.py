"""How long training in this process stood still because somebody paused it; who measures speeds leaves that out."""

from __future__ import annotations

_seconds = 0.0


def add(seconds: float) -> None:
    """The loop stood still for so long; called on its own thread, when it goes on."""
    global _seconds
    _seconds += seconds


def total() -> float:
    """Seconds of all pauses of this process that are over."""
    return _seconds
