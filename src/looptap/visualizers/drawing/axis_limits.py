"""The limits of an axis: held while the data stays inside, else moved."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from looptap.visualizers.drawing.picture import Axis, Numbers

Limits = tuple[float, float]

PADDING_SHARE = 0.04
"""The padding on both sides, as a share of the data's span."""
GROWTH_SHARE = 0.2
"""The share added where data outgrew the limits, so that they hold for the next frames."""
MIN_FILLED_SHARE = 0.5
"""The limits shrink when the data fills less than this share of them."""


def span(columns: Iterable[Numbers]) -> Limits | None:
    """Return the smallest and the largest finite number of all columns, or None."""
    ends = [(c.min(), c.max()) for column in columns if (c := column[np.isfinite(column)]).size]
    return (float(min(low for low, _ in ends)), float(max(high for _, high in ends))) if ends else None


def apart(low: float, high: float) -> bool:
    """Return whether float64 can distinguish numbers between two ends."""
    return high - low > 1e-12 * max(abs(low), abs(high), 1e-200)


def fit(now: Limits | None, data: Limits | None, axis: Axis, pad: float = PADDING_SHARE) -> Limits:
    """Return the limits of ``axis`` for ``data`` (low, high); ``now`` if they hold.

    >>> held = fit(None, (0, 100), Axis(), pad=0.1)
    >>> held, fit(held, (0, 105), Axis()) is held, fit(held, (0, 120), Axis(), pad=0.1)
    ((0.0, 110.0), True, (0.0, 156.0))
    """
    held = now if axis.low is None and axis.high is None else None
    if data is None and held is not None:
        return held
    low, high = _scaled(data or ((1.0, 10.0) if axis.log else (0.0, 1.0)), axis)
    below = above = pad
    if held is not None:
        first, last = _scaled(held, axis)
        if first <= low and high <= last and high - low >= MIN_FILLED_SHARE * (last - first):
            return held
        below += GROWTH_SHARE * (low < first and high <= last)
        above += GROWTH_SHARE * (high > last)
    new = _given(_padded(low, high, axis, below, above), axis)
    return now if now == new else new


def _padded(low: float, high: float, axis: Axis, below: float, above: float) -> Limits:
    """Return limits with room on both sides, in shares of their width."""
    if not apart(low, high):  # one number: some room around it, in its own order of magnitude
        middle = 30.0 if axis.time else max(abs(low), abs(high)) * 0.1 or 0.5
        low, high, below, above = low - middle, high + middle, 0.0, 0.0
    first, last = low - below * (high - low), high + above * (high - low)
    if axis.log:
        return 10.0**first, 10.0**last
    return (0.0 if low >= 0 > first else first), last  # what is never negative has no room below zero


def _given(limits: Limits, axis: Axis) -> Limits:
    """Return limits with the ends that an axis has itself."""
    low = limits[0] if axis.low is None else axis.low
    high = limits[1] if axis.high is None else axis.high
    if not apart(low, high):  # one end is given, and the data lies on its other side
        low, high = (low, low + _room(low)) if axis.low is not None else (high - _room(high), high)
    return (high / 10, high) if axis.log and low <= 0 else (low, high)


def _room(end: float) -> float:
    """Return the width of limits of which only one end is known."""
    return abs(end) if abs(end) > 1e-150 else 1.0


def _scaled(limits: Limits, axis: Axis) -> Limits:
    return (math.log10(limits[0]), math.log10(limits[1])) if axis.log else limits
