"""How the speed changes: a trend, as with a curriculum, and noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats

_PARTS_COUNT = 10  # parts of the work so far whose costs are compared
_MIN_FIT_SHARE, _FULL_FIT_SHARE = 0.85, 0.95  # of the variance of the costs: a line through a single jump explains 0.76
_PRIOR_PARTS, _PRIOR_NOISE = 3.0, 0.06  # as many parts count as seen with this deviation of the logarithm of their cost
_MAX_GROWTH = math.e  # of the cost of an instance until the end


class SpeedTrend(NamedTuple):
    """How the cost of an instance develops.

    ``growth`` is what each further instance adds to it, as a share of the cost now; 0: no trend. ``noise`` is the
    standard deviation of the logarithm of the cost, that of a tenth of the work so far.
    """

    growth: float = 0.0
    noise: float = _PRIOR_NOISE

    def factor(self, behind: float, ahead: float) -> float:
        """Return the cost of an instance ``ahead``, relative to one ``behind``.

        Steps that grow do so by equal differences, steps that shrink by equal shares.

        >>> SpeedTrend(0.01).factor(0.0, 100.0), SpeedTrend(0.0).factor(50.0, 100.0)
        (2.0, 1.0)
        """
        return _relative(self.growth * ahead) / _relative(-self.growth * behind)


def _relative(grown: float) -> float:
    return min(1.0 + grown, _MAX_GROWTH) if grown > 0 else math.exp(max(grown, -1.0))


def trend_of(instances: Floats, seconds: Floats) -> SpeedTrend:
    """Return the trend of the speed.

    Given are the instances and the seconds of training up to some moments.
    A machine that becomes slower at once shows no trend but noise: only a change that is as steady as the work counts.

    >>> done = np.arange(100.0)
    >>> trend = trend_of(done, done + 0.005 * done**2)
    >>> round(99 * trend.growth, 3), trend_of(done, 2 * done).growth == 0
    (0.497, True)
    """
    if len(instances) < 2 * _PARTS_COUNT or not instances[-1] > instances[0]:
        return SpeedTrend()
    edges = np.linspace(instances[0], instances[-1], _PARTS_COUNT + 1)
    costs = np.diff(np.interp(edges, instances, seconds))
    if not (costs > 0).all():
        return SpeedTrend()
    at = (edges[:-1] + edges[1:]) / 2 - edges[-1]  # from now on, so that the line's constant is the cost now
    logs = np.log(costs)
    falls = np.polyfit(at, logs, 1)[0] < 0
    values = logs if falls else costs / costs.mean()
    slope, now = np.polyfit(at, values, 1)
    whole, left = float(values.var()), float((values - slope * at - now).var())
    fit = 1 - left / whole if whole > 1e-9 else 0.0
    share = min(1.0, max(0.0, (fit - _MIN_FIT_SHARE) / (_FULL_FIT_SHARE - _MIN_FIT_SHARE)))
    spread = (1 - share) * float(logs.var()) + share * left
    noise = math.sqrt((_PRIOR_PARTS * _PRIOR_NOISE**2 + _PARTS_COUNT * spread) / (_PRIOR_PARTS + _PARTS_COUNT - 1))
    return SpeedTrend(share * float(slope if falls else slope / now), noise)
