"""Growth of a cost with the number of something: figures, and an exponent."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from harness import in_units

ROUNDS, SECONDS = 3, 1.1

HEADING = "How costs grow"
HEAD = """\
`make bench BENCH=scaling` measures this on your machine, and writes this section. Each row has a growing number and
the cost at each size. The exponent is the best-fitting power of the size: 1 is linear, 2 is quadratic, and below 1
much of the cost does not depend on the size. The longest hold is the longest time for which the I/O thread keeps the
interpreter lock from a thread that wants it every few tenths of a millisecond, with Python's forced switch after 5 ms
turned off: the median over three rounds, each with a heartbeat.

| what grows | what is measured | sizes | figures | exponent | longest hold |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Growth:
    """Figures by size; ``show`` formats one."""

    what: str
    measured: str
    figures: Mapping[int, float]
    holds: Mapping[int, float] = field(default_factory=dict)
    show: Callable[[float], str] = in_units

    @property
    def exponent(self) -> float:
        """The slope of the figures over the sizes, both as logarithms."""
        sizes, figures = np.log(list(self.figures)), np.log(np.maximum(list(self.figures.values()), 1e-9))
        return float(np.polyfit(sizes, figures, 1)[0])

    def cells(self) -> tuple[str, ...]:
        """Return the line of the table."""
        held = ", ".join(in_units(hold) for hold in self.holds.values())
        shown = ", ".join(map(self.show, self.figures.values()))
        sizes = ", ".join(f"{size:,}" for size in self.figures)
        return self.what, self.measured, sizes, shown, f"{self.exponent:.2f}", held

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {"figures": dict(self.figures), "holds": dict(self.holds), "cells": self.cells()}


def section(rows: Iterable[Mapping[str, Any]], machine: str) -> str:
    """Return this section of docs/costs.md from the ``as_json`` of each line."""
    return HEAD + "".join(f"| {' | '.join(row['cells'])} |\n" for row in rows) + f"\n{machine}\n"


def longest_hold(
    thread: threading.Thread,
    work: Callable[[], object] = lambda: None,
    *,
    period: float = 0.0003,
    after: Callable[[], object] = lambda: None,
) -> float:
    """Return the longest time that ``thread`` keeps the GIL from this thread.

    It is the median of three rounds. This thread sleeps for ``period`` and does ``work``, in turns; each round has a
    heartbeat in it, and ends with ``after``. What it oversleeps counts so far as the other thread was on a CPU
    meanwhile: the rest is the machine's.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # seconds: no thread is made to release the lock
    try:
        return statistics.median(_longest(thread, work, period, after) for _ in range(ROUNDS))
    finally:
        sys.setswitchinterval(before)


def _longest(thread: threading.Thread, work: Callable[[], object], period: float, after: Callable[[], object]) -> float:
    used = _clock_of(thread)
    worst, end = 0.0, time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < end:
        busy = used()
        time.sleep(period)
        worst = max(worst, min(time.perf_counter() - began - period, used() - busy))
        work()
    after()
    return worst


def _clock_of(thread: threading.Thread) -> Callable[[], float]:
    """Return a clock of the thread's CPU time; of time, where there is none."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.perf_counter
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))
