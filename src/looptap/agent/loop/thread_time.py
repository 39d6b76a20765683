"""Measures which part of an evaluation's time was its own doing.

An evaluation may take long because it computes, sleeps or waits for a lock: that is its own doing. Or because another
process had the CPU, or another thread the interpreter lock: that is not. The kernel says how long a thread was on a
CPU, how long it wanted one, and how often it has waited, but not what for. So of an evaluation that has waited

- a few waits are excused: a thread that only runs Python is made to give the lock away once in 5 ms. Then only the time
  on the CPU counts;
- beyond, the time does not count in which this thread wanted a CPU, nor that in which looptap's own I/O thread was on a
  CPU or wanted one, and so may have kept the lock meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from time import monotonic
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
"""Seconds for which no other thread keeps the lock: a longer wait is the query's own."""
_SECONDS_PER_NANOSECOND = 1e-9


def thread_usage() -> tuple[float, int]:
    """Return this thread's CPU seconds, and how often it has slept or waited.

    Both are 0 where the system does not say (macOS, Windows). Costs 1.5 µs.
    """
    if _THREAD is None:
        return 0.0, 0
    usage = resource.getrusage(_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


class Schedule:
    """The kernel's account of a thread's CPU and run queue time; holds a file open."""

    def __init__(self, thread: int) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):  # no Linux, or one that keeps no such account
            self._fd = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd).atexit = False

    def seconds(self) -> tuple[float, float]:
        """Return the seconds on a CPU and waiting for one; 0 if unknown. Never raises."""
        try:
            if self._fd is not None:
                ran, wanted, *_ = os.pread(self._fd, 100, 0).split()
                return int(ran) * _SECONDS_PER_NANOSECOND, int(wanted) * _SECONDS_PER_NANOSECOND
        except (OSError, ValueError):  # the thread has ended
            self._fd = None
        return 0.0, 0.0


class IoSchedule:
    """The I/O thread's schedule, for other threads; empty until that thread is known."""

    def __init__(self) -> None:
        self._thread = 0
        self._schedule: Schedule | None = None

    def is_this_thread(self) -> None:
        """Set the calling thread as the I/O thread."""
        thread = threading.get_native_id()
        if thread != self._thread:
            self._thread, self._schedule = thread, None

    def seconds(self) -> float:
        """Return the I/O thread's seconds on or waiting for a CPU; 0 on that thread."""
        if not self._thread or self._thread == threading.get_native_id():
            return 0.0
        if self._schedule is None:
            self._schedule = Schedule(self._thread)
        return sum(self._schedule.seconds())


class _Own(threading.local):
    """The schedule of the calling thread, if it has asked for its own."""

    schedule: Schedule | None = None


_own = _Own()


class Moment(NamedTuple):
    """The readings of a thread's clocks at one time: seconds, and number of waits."""

    wall: float
    cpu: float
    waits: int
    others: float
    """Seconds that others had: in which this thread wanted a CPU, or the I/O thread may have kept the lock."""


class OwnTime:
    """A stopwatch for the part of evaluations that is their own doing."""

    __slots__ = ("_cpu", "_io", "_waits")

    def __init__(self, io: IoSchedule) -> None:
        self._io = io
        self.reset()

    def reset(self) -> None:
        """Forget earlier evaluations."""
        self._cpu, self._waits = 0.0, 0

    def start(self) -> Moment:
        """Read the clocks before an evaluation. Costs some 10 µs."""
        others = self._others()
        cpu, waits = thread_usage()
        return Moment(monotonic(), cpu, waits, others)

    def stop(self, before: Moment) -> float:
        """Return the seconds of an evaluation that were its own doing."""
        wall = monotonic() - before.wall
        cpu, waits = thread_usage()
        return self.of(wall, cpu - before.cpu, waits - before.waits, self._others() - before.others)

    def of(self, wall: float, cpu: float, waits: int, others: float = 0.0) -> float:
        """Return the part of ``wall`` seconds that was the evaluation's own doing."""
        self._cpu += cpu
        self._waits += waits > 0
        few = self._waits <= MAX_EXCUSED_WAITS + self._cpu / SWITCH_SECONDS
        excused = not waits or (few and wall - cpu < LONG_WAIT_SECONDS)
        return cpu if excused and _THREAD is not None else max(cpu, wall - others)

    def _others(self) -> float:
        if _own.schedule is None:
            _own.schedule = Schedule(threading.get_native_id())
        return _own.schedule.seconds()[1] + self._io.seconds()
