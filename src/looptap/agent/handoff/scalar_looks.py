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
MAX_NAMES_COUNT = 1000
"""Names of the observables of one type of events that are remembered."""
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

    __slots__ = ("exposed_on", "left_out", "names", "pending")

    def __init__(self) -> None:
        self.pending: deque[Look] = deque()
        self.exposed_on = ""
        """The type of events whose looks have the exposed numbers too; empty: the next one."""
        self.left_out = 0
        """Names of the fullest event that a look left out, since it had too many."""
        self.names: dict[str, set[str]] = {}
        """The names of all observables that looked-at events had, by the type of event."""

    def wants_exposed(self, on: str) -> bool:
        """Return True if a look at an ``on`` event has exposed numbers. Loop thread."""
        if not self.exposed_on:
            self.exposed_on = on
        return self.exposed_on == on

    def note_names(self, on: str, observables: dict[str, Any]) -> None:
        """Remember the names of an event's observables, numbers or not. Loop thread."""
        names = self.names.setdefault(on, set())
        if len(names) < MAX_NAMES_COUNT:
            names.update(name for name in observables if type(name) is str)

    def wants_next(self, number: int) -> bool:
        """Return True if the event after this one is looked at, too. Loop thread."""
        return number < FIRST_EVENTS_COUNT and len(self.pending) < MAX_PENDING_COUNT

    def take(self) -> list[Look]:
        """Remove and return all pending looks, oldest first. I/O thread."""
        return [self.pending.popleft() for _ in range(len(self.pending))]
