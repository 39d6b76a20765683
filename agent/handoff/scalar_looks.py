"""Looks: plain numbers of single events, from the loop to the I/O thread.

The I/O thread marks a type of events; its next event copies its numbers into a `Look`. A type that is marked is not
marked again before its look has come, so at most one look of each type is pending: at most as many as there are types.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple


class Look(NamedTuple):
    """The plain numbers of one event, and of what the job exposes.

    A value is an int, float or bool, or a `DeviceCopy` still in transfer.
    """

    on: str
    number: int
    time: float
    """Seconds, by the clock of events."""
    numbers: dict[str, Any]
    exposed: dict[str, Any]


class ScalarLooks:
    """The looks that the I/O thread has not taken yet."""

    __slots__ = ("exposed_on", "left_out", "pending")

    def __init__(self) -> None:
        self.pending: deque[Look] = deque()
        self.exposed_on = ""
        """The type of events whose looks have the exposed numbers too; empty: the next one."""
        self.left_out = 0
        """Names of the fullest event that a look left out, since it had too many."""

    def wants_exposed(self, on: str) -> bool:
        """Return True if a look at an ``on`` event has exposed numbers. Loop thread."""
        if not self.exposed_on:
            self.exposed_on = on
        return self.exposed_on == on

    def take(self) -> list[Look]:
        """Remove and return all pending looks, oldest first. I/O thread."""
        return [self.pending.popleft() for _ in range(len(self.pending))]
