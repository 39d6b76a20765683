"""Measures which part of the time at an event was the doing of its queries.

An event may take long because its queries compute, sleep or wait for a lock: that is their doing. Or because another
process had the CPU, or another thread the interpreter lock: that is not. The kernel says how long a thread was on a CPU
and how often it has waited, but not what for. A thread that only runs Python is made to give the lock away once in
5 ms, so a few waits are excused: then only the time on the CPU counts. Beyond, all of it counts.
"""

from __future__ import annotations

import sys
from time import monotonic, thread_time
from typing import NamedTuple

if sys.platform == "linux":
    import resource

    _THREAD: int | None = resource.RUSAGE_THREAD
else:
    _THREAD = None

SWITCH_SECONDS = 5e-3
"""Seconds on the CPU in which others can take the interpreter lock from a thread once; more waits are its own."""
MAX_EXCUSED_WAITS = 2
"""Waits beyond those that are excused before the others count."""
LONG_WAIT_SECONDS = 0.2
"""Seconds for which no other thread keeps the lock: a longer wait is a query's own."""


def thread_usage() -> tuple[float, int]:
    """Return this thread's CPU seconds, and how often it has slept or waited.

    Both are 0 where the system does not say (macOS, Windows). Costs 1.5 µs.
    """
    if _THREAD is None:
        return 0.0, 0
    return thread_time(), resource.getrusage(_THREAD).ru_nvcsw  # whose own CPU seconds are those of the last tick


class Moment(NamedTuple):
    """The readings of a thread's clocks at one time: seconds, and number of waits."""

    wall: float
    cpu: float
    waits: int


class OwnTime:
    """A stopwatch for the part of events that is their queries' own doing."""

    __slots__ = ("_cpu", "_waits")

    def __init__(self) -> None:
        self._cpu, self._waits = 0.0, 0

    def start(self) -> Moment:
        """Read the clocks before an event."""
        return Moment(monotonic(), *thread_usage())

    def stop(self, before: Moment) -> tuple[float, float]:
        """Return the seconds since then, and the part that was the queries' own doing."""
        cpu, waits = thread_usage()
        wall = monotonic() - before.wall
        return wall, self.of(wall, cpu - before.cpu, waits - before.waits)

    def of(self, wall: float, cpu: float, waits: int) -> float:
        """Return the part of ``wall`` seconds that was the queries' own doing."""
        self._cpu += cpu
        self._waits += waits
        few = self._waits <= MAX_EXCUSED_WAITS + self._cpu / SWITCH_SECONDS
        excused = not waits or (few and wall - cpu < LONG_WAIT_SECONDS)
        return min(cpu, wall) if excused and _THREAD is not None else wall
