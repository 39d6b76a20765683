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
    if data is None:
        data = (1.0, 10.0) if axis.log else (0.0, 1.0)
        if now is not None and axis.low is None and axis.high is None:
            return now
    low, high = _scaled(data, axis)
    if now is not None and axis.low is None and axis.high is None:
        held_low, held_high = _scaled(now, axis)
        if held_low <= low and high <= held_high and high - low >= MIN_FILLED_SHARE * (held_high - held_low):
            return now
        grown_low, grown_high = low < held_low, high > held_high
    else:
        grown_low = grown_high = False
    width = high - low
    if not apart(low, high):  # one number: some room around it, in its own order of magnitude
        middle = 30.0 if axis.time else max(abs(low), abs(high)) * 0.1 or 0.5
        low, high, width = low - middle, high + middle, 0.0
    new = (
        low - (pad + GROWTH_SHARE * (grown_low and not grown_high)) * width,
        high + (pad + GROWTH_SHARE * grown_high) * width,
    )
    if low >= 0 > new[0] and not axis.log:
        new = 0.0, new[1]  # what is never negative has no room below zero
    new = (10.0 ** new[0], 10.0 ** new[1]) if axis.log else new
    low, high = new[0] if axis.low is None else axis.low, new[1] if axis.high is None else axis.high
    if not apart(low, high):  # one end is given, and the data lies on its other side
        low, high = (low, low + _room(low)) if axis.low is not None else (high - _room(high), high)
        low, high = (high / 10, high) if axis.log and low <= 0 else (low, high)
    return now if now == (low, high) else (low, high)


def _room(end: float) -> float:
    """Return the width of limits of which only one end is known."""
    return abs(end) if abs(end) > 1e-150 else 1.0


def _scaled(limits: Limits, axis: Axis) -> Limits:
    return (math.log10(limits[0]), math.log10(limits[1])) if axis.log else limits
