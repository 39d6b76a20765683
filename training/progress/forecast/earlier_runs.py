"""The learning curves of earlier runs of a job, as a prior for the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from looptap.training.progress.forecast.curve_ensemble import Earlier
from looptap.training.progress.forecast.stopping_rules import Floats

MAX_EARLIER_RUNS = 8
"""Maximum number of earlier runs that are used, the newest ones."""
_MIN_POINTS = 4  # points of the shortest useful curve
_SMOOTHING_POINTS = 5  # points over which a curve is averaged


def earlier_of(curves: Sequence[Floats]) -> list[Earlier]:
    """Return smooth curves of the newest ``curves`` that are long enough."""
    found = []
    for curve in curves[-MAX_EARLIER_RUNS:]:
        errors = np.asarray(curve, float)
        errors = errors[np.isfinite(errors)]
        if len(errors) >= _MIN_POINTS and errors[0] > 0:
            found.append(Earlier(_smoothed(errors)))
    return found


def _smoothed(errors: Floats) -> Floats:
    """Return a running mean in growing windows, which keeps the steep beginning."""
    count = len(errors)
    sums = np.concatenate([[0.0], np.cumsum(errors)])
    places = np.arange(count)
    reach = np.minimum(np.minimum(places, count - 1 - places), np.minimum(places // 2, _SMOOTHING_POINTS))
    reach = np.where(places >= count - 1 - _SMOOTHING_POINTS, np.minimum(_SMOOTHING_POINTS, places // 2), reach)
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, count)
    return np.asarray((sums[high] - sums[low]) / (high - low))
