"""How often somebody changed this process from outside; who measures speeds asks whether they may be others since."""

from __future__ import annotations

_count = 0


def add() -> None:
    """A command was carried out; called on the thread of the loop."""
    global _count
    _count += 1


def total() -> int:
    """Commands that were carried out in this process."""
    return _count
