"""From curves to figures: targets, crossings, intervals over paired seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import NamedTuple

SMOOTHED = 3
"""Evaluations whose mean is compared with a target."""
TARGET_SHARES = (1 / 3, 2 / 3)
"""Of the budget of uniform sampling: what it reaches there are the targets."""
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def smooth(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and those before it, `SMOOTHED` in all.

    >>> smooth([0.0, 3.0, 6.0, 9.0])
    [0.0, 1.5, 3.0, 6.0]
    """
    return [mean(values[max(0, at - SMOOTHED + 1) : at + 1]) for at in range(len(values))]


def targets(curves: Sequence[Sequence[float]], budget: float) -> tuple[float, float]:
    """Return the mean accuracies at a third and two thirds of the budget.

    ``budget`` is a number of evaluations.


    >>> targets([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], 6)
    (1.5, 3.0)
    """
    every = [smooth(curve) for curve in curves]
    first, second = (mean(curve[max(1, round(share * budget)) - 1] for curve in every) for share in TARGET_SHARES)
    return first, second


def crossing(costs: Sequence[float], accuracy: Sequence[float], target: float) -> float:
    """Return the cost at which the smoothed accuracy first reaches ``target``.

    It is interpolated between evaluations; infinite: never.


    >>> crossing([10, 20, 30], [0.0, 0.5, 1.0], 0.375)
    25.0
    >>> crossing([10, 20, 30], [0.0, 0.5, 1.0], 0.9)
    inf
    """
    before = math.nan
    for at, value in enumerate(smooth(accuracy)):
        if value >= target:
            if not at:
                return costs[0]
            share = (target - before) / (value - before)
            return costs[at - 1] + share * (costs[at] - costs[at - 1])
        before = value
    return math.inf


class Paired(NamedTuple):
    """A change over paired seeds: its median, and the 95% interval of its mean."""

    median: float
    low: float
    high: float
    seeds: int
    missed: int = 0
    """Seeds on which a target was not reached: counted as if it had been at the end of the run."""


def change(base: Sequence[float], other: Sequence[float], ends: float) -> Paired:
    """Return by which part ``other`` is more than ``base``, seed by seed.

    The interval is by t on the logarithms of the ratios.

    What is infinite was not reached, and counts as ``ends``.

    >>> change([2.0, 4.0], [1.0, 2.0], 10.0)
    Paired(median=-0.5, low=-0.5, high=-0.5, seeds=2, missed=0)
    """
    missed = sum(math.isinf(value) for value in other)
    ratios = [math.log(min(two, ends) / min(one, ends)) for one, two in zip(base, other, strict=True)]
    found = difference(ratios)
    return Paired(*(math.exp(value) - 1 for value in found[:3]), found.seeds, missed)


def difference(values: Sequence[float]) -> Paired:
    """Return the median of ``values`` and the 95% interval of their mean, by t.

    >>> difference([2.0, 2.0, 2.0])
    Paired(median=2.0, low=2.0, high=2.0, seeds=3, missed=0)
    """
    many = len(values)
    half = _T_975[min(many - 2, len(_T_975) - 1)] * stdev(values) / math.sqrt(many) if many > 1 else math.inf
    return Paired(median(values), mean(values) - half, mean(values) + half, many)
