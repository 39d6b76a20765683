"""Smoothing and outliers of a line, by the arithmetic of smooth.js."""

from __future__ import annotations

import math

import numpy as np

from looptap.visualizers.data.numbers import Floats

OUTLIER_QUANTILE_SHARE = 0.05
"""Outliers lie far outside the numbers between this quantile and its counterpart."""
OUTLIER_REACH_FACTOR = 1.5
"""How far: this many times the distance of the two quantiles."""
_SMALLEST_POWER = 1e-12  # of the weight, so that dividing by it keeps the numbers exact


def smoothed(y: Floats, weight: float) -> Floats:
    """Return the exponential moving average of ``y``, debiased; gaps stay gaps.

    ``weight`` in 0..1 is that of the average so far. The first number is its own average.

    >>> smoothed(np.array([1.0, np.nan, 3.0]), 0.5).tolist()
    [1.0, nan, 2.3333333333333335]
    """
    there = np.isfinite(y)
    found = np.full(len(y), np.nan)
    known = y[there]
    if not len(known) or not 0 < weight < 1:
        return y.copy()
    # In blocks, so that no power of the weight is too small to divide by.
    size = max(1, min(len(known), int(math.log(_SMALLEST_POWER) / math.log(weight))))
    blocks = -(-len(known) // size)
    padded = np.zeros(blocks * size)
    padded[: len(known)] = known
    powers = weight ** np.arange(1, size + 1)
    averages = np.cumsum(padded.reshape(blocks, size) / powers, axis=1) * powers * (1 - weight)
    before = np.zeros(blocks)
    for block in range(1, blocks):
        before[block] = averages[block - 1, -1] + before[block - 1] * powers[-1]
    averages += before[:, None] * powers
    count = np.arange(1, len(known) + 1)
    found[there] = averages.ravel()[: len(known)] / -np.expm1(count * math.log(weight))
    return found


def inliers(y: Floats) -> tuple[float, float] | None:
    """Return the smallest and largest number that is no outlier, or None.

    >>> inliers(np.r_[np.arange(100.0), 1e9])
    (0.0, 99.0)
    """
    known = y[np.isfinite(y)]
    if not len(known):
        return None
    low, high = np.quantile(known, [OUTLIER_QUANTILE_SHARE, 1 - OUTLIER_QUANTILE_SHARE])
    reach = OUTLIER_REACH_FACTOR * (high - low)
    inside = known[(known >= low - reach) & (known <= high + reach)]
    return float(inside.min()), float(inside.max())


def spans_decades(y: Floats, decades: float) -> bool:
    """Return whether all numbers are positive and span more than so many decades.

    >>> spans_decades(np.array([1e-4, 1.0]), 3), spans_decades(np.array([0.0, 1e9]), 3)
    (True, False)
    """
    known = y[np.isfinite(y)]
    return bool(len(known)) and bool(known.min() > 0) and bool(known.max() > known.min() * 10.0**decades)
