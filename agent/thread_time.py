"""What of the time that an evaluation took was its own doing.

An evaluation may take long because it computes, sleeps or waits for a lock: that is its own doing. Or because another
process had the CPU, or another thread the interpreter lock: that is not. The kernel says how long a thread was on a CPU
and how often it has waited, but not what for. A thread that only runs Python is made to give the lock away once in 5 ms
at most: that many waits are excused, and of an evaluation with such a wait only the time on the CPU counts. The time in
which looptap's own I/O thread was on a CPU, and so may have had the lock, never counts.
"""

from __future__ import annotations

import sys
import threading
import time
from time import monotonic
from typing import NamedTuple

if sys.platform == "linux":
    import resource

    _THREAD: int | None = resource.RUSAGE_THREAD
else:
    _THREAD = None

SWITCH_SECONDS = 5e-3
"""Seconds on the CPU in which others can take the interpreter lock from a thread once; more waits are its own."""
EXCUSED_WAITS = 2
"""Waits beyond those that are excused before the others count."""
LONG_WAIT_SECONDS = 0.2
"""Seconds that no other thread keeps the lock: whoever waits longer does so itself."""


def used() -> tuple[float, int]:
    """Seconds that this thread was on a CPU, and how often it has waited of itself: it slept, or wanted a lock.

    Where the system does not tell (macOS, Windows) both are 0. Costs 1.5 µs.
    """
    if _THREAD is None:
        return 0.0, 0
    usage = resource.getrusage(_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


class IoClock:
    """The CPU time of the I/O thread, for other threads; 0 until that thread has said which it is."""

    def __init__(self) -> None:
        self._thread = self._clock = 0

    def is_this_thread(self) -> None:
        """Follow the calling thread."""
        if hasattr(time, "pthread_getcpuclockid") and self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._clock = time.pthread_getcpuclockid(self._thread)

    def seconds(self) -> float:
        """Seconds that the I/O thread was on a CPU, where that is not the calling thread. Never raises."""
        if not self._clock or self._thread == threading.get_ident():
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            self._clock = 0
            return 0.0


class Moment(NamedTuple):
    """What the clocks of a thread show at one time: seconds, and how often it has waited."""

    wall: float
    cpu: float
    waits: int
    io: float


class OwnTime:
    """Tells what of the time that evaluations take is their own doing, and keeps account of waits."""

    __slots__ = ("_cpu", "_io", "_waits")

    def __init__(self, io: IoClock) -> None:
        self._io = io
        self.reset()

    def reset(self) -> None:
        """Begin a new account."""
        self._cpu, self._waits = 0.0, 0

    def start(self) -> Moment:
        """What the clocks show before an evaluation."""
        (cpu, waits), io = used(), self._io.seconds()
        return Moment(monotonic(), cpu, waits, io)

    def stop(self, before: Moment) -> float:
        """Seconds of an evaluation that were its own doing."""
        wall = monotonic() - before.wall
        cpu, waits = used()
        return self.of(wall, cpu - before.cpu, waits - before.waits, self._io.seconds() - before.io)

    def of(self, wall: float, cpu: float, waits: int, io: float = 0.0) -> float:
        """Of an evaluation that took ``wall`` seconds, those that were its own doing."""
        self._cpu += cpu
        self._waits += waits > 0
        few = self._waits <= EXCUSED_WAITS + self._cpu / SWITCH_SECONDS
        excused = not waits or (few and wall - cpu < LONG_WAIT_SECONDS)
        return cpu if excused and _THREAD is not None else max(cpu, wall - io)
