"""`beside`: where a text at a point of a line stands so that it does not lie on the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from looptap.visualizers.drawing.limits import span
from looptap.visualizers.numbers import Floats
from looptap.visualizers.picture import Axis, Line, Numbers

Align: TypeAlias = Literal["left", "center", "right"]
Box: TypeAlias = tuple[float, float, float, float]
_ALIGNED: tuple[tuple[Align, float], ...] = (("left", 0.0), ("right", -1.0), ("center", -0.5))
_OUTSIDE = 1e6  # more than any way off the line
_USUAL = (0.0, 0.0, 560.0, 260.0)
_TALL, _WIDE = 14.0, 7.0  # pixels of a letter there


class Beside(NamedTuple):
    """``align`` is the end of the text that is at the point; ``up`` is how far above it the text begins, or below."""

    align: Align
    up: float


def beside(x: Floats, y: Floats, places: Sequence[int], wide: Sequence[float], tall: float, box: Box) -> list[Beside]:
    """Where each text stands; all is in pixels, ``y`` upwards, ``box`` is left, bottom, right, top of what is seen.

    A text of so many pixels begins, ends or has its middle at its point, over or under all of the line that is below or
    above it: where that is nearest, and inside.

    >>> rising = np.arange(100.0)
    >>> beside(rising, rising, [50], [40.0], 10.0, (0, 0, 100, 100))
    [Beside(align='right', up=4.0)]
    """
    known = np.isfinite(x) & np.isfinite(y)
    joined = known[1:] & known[:-1]
    ends = np.stack([x[:-1][joined], x[1:][joined]]), np.stack([y[:-1][joined], y[1:][joined]])
    order = np.argsort(ends[0], axis=0)
    (x0, x1), (y0, y1) = (np.take_along_axis(one, order, axis=0) for one in ends)
    steep = np.divide(y1 - y0, x1 - x0, out=np.zeros_like(x0), where=x1 > x0)
    gap, (left, bottom, right, top) = 0.4 * tall, box
    found = []
    for place, width in zip(places, wide, strict=True):
        best, cost = Beside("left", gap), np.inf
        for align, share in _ALIGNED:
            start = x[place] + share * width
            over = (x1 >= start) & (x0 <= start + width)
            first = (y0 + (np.maximum(start, x0) - x0) * steep)[over]
            last = (y1 - (x1 - np.minimum(start + width, x1)) * steep)[over]
            heights = np.r_[y[place], first, last]
            high, low = heights.max() - y[place] + gap, y[place] - heights.min() + gap
            aside = _OUTSIDE * (start < left or start + width > right)
            above = high + aside + _OUTSIDE * (y[place] + high + tall > top)
            below = low + gap + aside + _OUTSIDE * (y[place] - low - tall < bottom)
            if min(above, below) < cost:
                best, cost = Beside(align, float(high if above <= below else -low)), min(above, below)
        found.append(best)
    return found


def usual(line: Line, x: Axis, y: Axis) -> list[Beside]:
    """Where the notes of a line stand in a plot that shows all of it and is about as large as plots are."""
    across, up = _within(line.x, x.log, _USUAL[2]), _within(line.y, y.log, _USUAL[3])
    wide = [_WIDE * len(text) for _, text in line.notes]
    return beside(across, up, [place for place, _ in line.notes], wide, _TALL, _USUAL)


def _within(numbers: Numbers, log: bool, size: float) -> Floats:
    seen = np.log10(numbers) if log else numbers
    low, high = span([seen]) or (0.0, 1.0)
    return (seen - low) * (size / (high - low) if high > low else 0.0)
