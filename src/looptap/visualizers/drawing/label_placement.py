"""`beside`: places texts at the points of a line so that none lies on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from looptap.visualizers.data.numbers import Floats
from looptap.visualizers.drawing.axis_limits import span
from looptap.visualizers.drawing.picture import Axis, Line, Numbers

Align: TypeAlias = Literal["left", "center", "right"]
Box: TypeAlias = tuple[float, float, float, float]
_ALIGNED: tuple[tuple[Align, float, float], ...] = (
    ("left", 0.0, 0.0),
    ("right", -1.0, 0.0),
    ("center", -0.5, 0.0),
    ("left", 0.0, 1.0),
    ("right", -1.0, -1.0),
)
"""The end of a text at its point, the share of the text left of it, and the direction of its shift."""
_ON_LINE_DISTANCE = 1e6  # more than any shift off the line
_LETTER_HEIGHT_PIXELS, _LETTER_WIDTH_PIXELS = 14.0, 6.0  # pixels of a letter on a page
_MARGIN_SHARE = 0.05  # of a plot's size, around all of its lines


class Beside(NamedTuple):
    """The place of a text: the end at its point, its shift ``right``, and ``up``."""

    align: Align
    right: float
    up: float


def beside(
    x: Floats, y: Floats, places: Sequence[int], wide: Sequence[float], tall: float, box: Box
) -> list[Beside | None]:
    """Return the place of each text, in pixels with ``y`` upwards.

    ``box`` is left, bottom, right, top of what is seen. A text begins, ends or has its middle at its point, over or
    under the whole line there, or is moved beside the point: where that is nearest. At an edge it is moved inside,
    onto the line only if there is no other place. The last text goes first; one whose point is not seen, or without
    a place that is clear of those before it, is left out (None).

    >>> rising = np.arange(100.0)
    >>> beside(rising, rising, [50], [40.0], 10.0, (0, 0, 100, 100))
    [Beside(align='right', right=0.0, up=4.0)]
    """
    known = np.isfinite(x) & np.isfinite(y)
    joined = known[1:] & known[:-1]
    ends = np.stack([x[:-1][joined], x[1:][joined]]), np.stack([y[:-1][joined], y[1:][joined]])
    order = np.argsort(ends[0], axis=0)
    (x0, x1), (y0, y1) = (np.take_along_axis(one, order, axis=0) for one in ends)
    with np.errstate(over="ignore", invalid="ignore"):
        steep = np.divide(y1 - y0, x1 - x0, out=np.zeros_like(x0), where=x1 > x0)
    steep[~np.isfinite(steep)] = 0.0  # a stroke that is steeper than numbers are
    gap, (left, bottom, right, top) = 0.4 * tall, box
    found: list[Beside | None] = []
    taken: list[Box] = []
    for place, width in zip(reversed(places), reversed(wide), strict=True):
        best: Beside | None = None
        cost = np.inf
        seen = left <= x[place] <= right and bottom <= y[place] <= top
        for align, share, moved in _ALIGNED if seen else ():
            wanted = x[place] + share * width
            start = max(left, min(right - width, wanted + 2 * gap * moved))
            aside = float(start - wanted)
            over = (x1 >= start) & (x0 <= start + width)
            first = (y0 + (np.maximum(start, x0) - x0) * steep)[over] - y[place]
            last = (y1 - (x1 - np.minimum(start + width, x1)) * steep)[over] - y[place]
            own = [] if moved else [0.0]
            above = max(np.r_[own, first, last].max(initial=-np.inf) + gap, -tall / 2)
            below = min(np.r_[own, first, last].min(initial=np.inf) - gap, tall / 2) - tall
            for off, more in ((above, 0.0), (below, gap)):
                foot = max(bottom, min(top - tall, y[place] + off))
                on_line = foot != y[place] + off
                up = foot - y[place]
                if any(a < start + width and start < c and b < foot + tall and foot < d for a, b, c, d in taken):
                    continue
                price = abs(up + tall / 2) + abs(aside) + more + _ON_LINE_DISTANCE * on_line
                if price < cost:
                    best, cost = Beside(align, aside, float(up)), price
                    spot = start, foot, start + width, foot + tall
        found.append(best)
        if cost < np.inf:
            taken.append(spot)
    return found[::-1]


def lifted(line: Line, x: Axis, y: Axis, size: tuple[float, float]) -> tuple[Numbers, Numbers, list[str], list[str]]:
    """Place the notes of a line in a plot of so many pixels that shows all of it.

    Returns the points over which their lower edges are, in units of the axes, the side of each, as in "top right", and
    its text; a note without room is left out.
    """
    places = [place for place, _ in line.notes]
    (across, back), (up, down) = _pixels(line.x, x.log, size[0]), _pixels(line.y, y.log, size[1])
    (wide, high), room = size, _MARGIN_SHARE
    box = -room * wide, -room * high, (1 + room) * wide, (1 + room) * high
    found = beside(
        across, up, places, [_LETTER_WIDTH_PIXELS * len(text) for _, text in line.notes], _LETTER_HEIGHT_PIXELS, box
    )
    sides = {"left": "right", "right": "left", "center": "center"}
    put = [(place, text, one) for (place, text), one in zip(line.notes, found, strict=True) if one is not None]
    places = [place for place, _, _ in put]
    moved = np.array([(one.right, one.up) for _, _, one in put]).reshape(-1, 2)
    columns = back(across[places] + moved[:, 0]), down(up[places] + moved[:, 1])
    return *columns, [f"top {sides[one.align]}" for _, _, one in put], [text for _, text, _ in put]


def _pixels(numbers: Numbers, log: bool, size: float) -> tuple[Floats, Callable[[Floats], Floats]]:
    """Return the numbers of an axis as pixels, and the inverse function."""
    seen = np.log10(numbers) if log else numbers
    low, high = span([seen]) or (0.0, 1.0)
    scale = (high - low) / size or 1.0
    return (seen - low) / scale, lambda pixels: 10 ** (low + scale * pixels) if log else low + scale * pixels
