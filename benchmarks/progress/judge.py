"""How wrong is an estimator over a whole run?

The measure is the area between predicted and true remaining time, over that of the true one. Source: Dong & Luo 2024,
V.B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from simulated import Stretch

from looptap.training.progress.clock_ledger import OTHER, Ledger
from looptap.training.progress.estimate import Estimate, Estimator


class Verdict(NamedTuple):
    """Average prediction error, coverage of the band, and the first error.

    ``first`` is the error over the first tenth of the run, over the length of the run.
    """

    error: float
    covered: float
    first: float


LOOKS = 150


def follow(
    happened: Sequence[Stretch], make: Callable[[Ledger], Estimator], looks: int = LOOKS
) -> Iterator[tuple[float, Estimate]]:
    """Play a run to an estimator; return its estimates at equal steps of time."""
    clock = [0.0]
    estimator = make(Ledger(lambda: clock[0]))
    total = sum(stretch.seconds for stretch in happened)
    looked, phase = 0.0, OTHER
    for stretch in happened:
        if stretch.phase != phase:
            phase = stretch.phase
            estimator.phase(phase)
        clock[0] += stretch.seconds
        if stretch.instances:
            estimator.count(phase, stretch.instances)
        if stretch.error is not None:
            if stretch.variance is None:
                estimator.observed(stretch.error)
            else:
                estimator.observed(stretch.error, x=stretch.x, variance=stretch.variance)
        if estimator.due(0.0):
            estimator.renew()
        if clock[0] - looked >= total / looks and (found := estimator.estimate()) is not None:
            looked = clock[0]
            yield looked, found


def judge(happened: Sequence[Stretch], make: Callable[[Ledger], Estimator], *, looks: int = LOOKS) -> Verdict:
    """Return how wrong the estimates of a whole run are."""
    total = sum(stretch.seconds for stretch in happened)
    times, estimates = zip(*follow(happened, make, looks), strict=True)
    at, rest = np.array(times), total - np.array(times)
    wrong = np.abs(np.array([e.remaining for e in estimates]) - rest) * np.diff(at, prepend=0.0)
    covered = np.mean([e.low <= true <= e.high for e, true in zip(estimates, rest, strict=True)])
    early = at <= 0.1 * total
    off = np.abs(np.array([e.remaining for e in estimates]) - rest)[early] / total
    return Verdict(float(wrong.sum()) / (total**2 / 2), float(covered), float(off.mean()) if len(off) else np.nan)
