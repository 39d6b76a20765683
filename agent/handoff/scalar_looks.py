"""Looks: plain numbers of single events, from the loop to the I/O thread.

The I/O thread marks a type of events; its next event copies its numbers into a `Look`. A type that is marked is not
marked again before its look has come. The first events of each type mark the next one themselves, while few looks are
pending: so a run of some seconds has all its numbers, and the last of them is its last.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

FIRST_EVENTS_COUNT = 100
"""Events of each type that are all looked at, if the I/O thread takes the looks in time."""
MAX_PENDING_COUNT = 200
"""Pending looks beyond which an event marks no further one; those that the I/O thread marks come besides."""


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

    def wants_next(self, number: int) -> bool:
        """Return True if the event after this one is looked at, too. Loop thread."""
        return number < FIRST_EVENTS_COUNT and len(self.pending) < MAX_PENDING_COUNT

    def take(self) -> list[Look]:
        """Remove and return all pending looks, oldest first. I/O thread."""
        return [self.pending.popleft() for _ in range(len(self.pending))]
