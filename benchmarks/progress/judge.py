"""How wrong is an estimator over a whole run? The area between predicted and true remaining time, over the true one's.

Source: Dong & Luo 2024, V.B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from simulated import Stretch

from looptap.training.progress.estimate import Estimator
from looptap.training.progress.ledger import Ledger


class Verdict(NamedTuple):
    """The average prediction error, and in which share of the time the band held the truth."""

    error: float
    covered: float


LOOKS = 150


def judge(happened: Sequence[Stretch], make: Callable[[Ledger], Estimator], *, looks: int = LOOKS) -> Verdict:
    """Play a run to an estimator, and look at its estimate at equal steps of the time."""
    clock = [0.0]
    estimator = make(Ledger(lambda: clock[0]))
    ledger = estimator.ledger
    total = sum(s.seconds for s in happened)
    times, predicted, inside = [0.0], [], []
    phase = 2
    step = total / looks
    for stretch in happened:
        if stretch.phase != phase:
            phase = stretch.phase
            estimator.phase(phase)
        clock[0] += stretch.seconds
        if stretch.instances:
            estimator.count(phase, stretch.instances)
        else:
            ledger.settle()
        if stretch.error is not None:
            if stretch.variance is None:
                estimator.observed(stretch.error)
            else:
                estimator.observed(stretch.error, x=stretch.x, variance=stretch.variance)
        if clock[0] - times[-1] >= step:
            found = estimator.estimate()
            if found is not None:
                times.append(clock[0])
                predicted.append(found.remaining)
                inside.append(found.low <= total - clock[0] <= found.high)
    at = np.array(times[1:])
    width = np.diff(np.array([0.0, *at]))
    area = float((np.abs(np.array(predicted) - (total - at)) * width).sum())
    return Verdict(area / (total**2 / 2), float(np.mean(inside)))
