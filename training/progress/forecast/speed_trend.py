"""The trend of a speed: steps that grow or shrink, as with a curriculum."""

from __future__ import annotations

import math

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats

_PARTS_COUNT = 10  # parts of the work so far whose costs are compared
_MIN_FIT_SHARE, _FULL_FIT_SHARE = 0.85, 0.95  # of the variance of the costs: a line through a single jump explains 0.76
_MAX_LOG_GROWTH_FACTOR = 1.0  # of the cost of an instance until the end


def trend_of(instances: Floats, seconds: Floats) -> float:
    """Return the growth of the logarithm of an instance's cost per instance, or 0.

    Given are the instances and the seconds of training up to some moments. A machine that becomes slower at once shows
    no trend: only a change that is as steady as the work counts.

    >>> done = np.arange(100.0)
    >>> round(trend_of(done, np.exp(0.01 * done)), 4), trend_of(done, 2 * done) == 0
    (0.01, True)
    """
    if len(instances) < 2 * _PARTS_COUNT or not instances[-1] > instances[0]:
        return 0.0
    edges = np.linspace(instances[0], instances[-1], _PARTS_COUNT + 1)
    taken = np.diff(np.interp(edges, instances, seconds))
    if not (taken > 0).all():
        return 0.0
    costs = np.log(taken)
    costs -= costs.mean()
    at = edges[:-1] - edges[:-1].mean()
    spread, slope = float((costs**2).sum()), float((at * costs).sum() / (at**2).sum())
    fit = slope**2 * float((at**2).sum()) / spread if spread > 1e-9 else 0.0
    return slope * min(1.0, max(0.0, (fit - _MIN_FIT_SHARE) / (_FULL_FIT_SHARE - _MIN_FIT_SHARE)))


def grown(trend: float, behind: float, ahead: float, seen: float) -> float:
    """Return how much more the ``ahead`` instances to come cost than those behind.

    It looks no further ahead than it has ``seen``.
    """
    if not trend:
        return 1.0
    exponent = trend * (min(behind, seen) + min(ahead, seen)) / 2
    return math.exp(max(-_MAX_LOG_GROWTH_FACTOR, min(_MAX_LOG_GROWTH_FACTOR, exponent)))
