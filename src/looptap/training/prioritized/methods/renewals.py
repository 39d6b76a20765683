"""`Renewals`: estimated priorities beside those that were measured after."""

from __future__ import annotations

import math

import numpy as np

from looptap.training.prioritized.methods.priority_trends import Doubles
from looptap.training.selection.methods.method import Numbers

_MAX_PAIRS_NUMBER = 4096
_MIN_PAIRS_NUMBER = 10
_TOP_SHARE = 0.1  # of which the lift is that of the mean


class Renewals:
    """The newest 4,096 pairs of an estimated and a measured priority.

    They are to come from examples that were computed whatever their priority.

    >>> renewals = Renewals()
    >>> renewals.add(np.arange(20.0), np.arange(20.0) ** 3)
    >>> renewals.rank_correlation(), renewals.lift()
    (1.0, 3.5...)
    """

    def __init__(self) -> None:
        self._estimated, self._measured = (np.zeros(_MAX_PAIRS_NUMBER, np.float64) for _ in range(2))
        self.count = 0
        """Pairs so far."""

    def add(self, estimated: Numbers, measured: Numbers) -> None:
        """Add pairs, except those of which one is not finite."""
        known = np.isfinite(estimated) & np.isfinite(measured)
        estimated, measured = (one[known][-_MAX_PAIRS_NUMBER:] for one in (estimated, measured))
        places = (self.count + np.arange(len(estimated))) % _MAX_PAIRS_NUMBER
        self._estimated[places], self._measured[places] = estimated, measured
        self.count += len(estimated)

    def clear(self) -> None:
        """Forget all, since another method estimates from here on."""
        self.count = 0

    def rank_correlation(self) -> float:
        """Return Spearman's rank correlation.

        NaN for fewer than ten pairs, or equal ones.
        """
        estimated, measured = self._pairs()
        if len(estimated) < _MIN_PAIRS_NUMBER:
            return math.nan
        first, second = (ranks - ranks.mean() for ranks in (_ranks(estimated), _ranks(measured)))
        length = math.sqrt(float(first @ first) * float(second @ second))
        return float(first @ second) / length if length > 0 else math.nan

    def lift(self) -> float:
        """Return the mean measured priority of the estimated top tenth over that of all."""
        estimated, measured = self._pairs()
        mean = float(measured.mean()) if len(measured) >= _MIN_PAIRS_NUMBER else 0.0
        if not mean > 0:
            return math.nan
        top = np.argsort(-estimated, kind="stable")[: max(1, round(_TOP_SHARE * len(estimated)))]
        return float(measured[top].mean()) / mean

    def _pairs(self) -> tuple[Doubles, Doubles]:
        count = min(self.count, _MAX_PAIRS_NUMBER)
        return self._estimated[:count], self._measured[:count]


def _ranks(values: Doubles) -> Doubles:
    """Return the rank of each value, from 0; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]
