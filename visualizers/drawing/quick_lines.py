"""`QuickLine`: a line of matplotlib's that takes no longer where it goes up and down faster than pixels can tell.

Agg's time for a line is that of all pixels along it: a noisy one crosses the same ones again and again. What it leaves
on the screen is filled from the lowest to the highest point of each column of pixels; that outline is drawn instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray

from looptap.visualizers.drawing.panels import polygons
from looptap.visualizers.numbers import Floats

_FAR = 20_000
"""Pixels along a line from which on its outline is drawn: less is quick as it is."""
_PER_COLUMN = 2.0
"""Points in each column of pixels, at least: where there are fewer, each stroke is seen."""


class QuickLine(Line2D):
    """A solid, opaque line over x that does not fall; what it looks like is that of Line2D, to about a pixel."""

    def draw(self, renderer: Any) -> None:
        """Draw it, as an outline where that is quicker and the same."""
        inner = getattr(renderer, "_raster_renderer", None) or renderer
        found = self._outline() if self.get_visible() and isinstance(inner, RendererAgg) else []
        if not found:
            super().draw(renderer)
            return
        pen = renderer.new_gc()
        pen.set_clip_rectangle(getattr(self.axes, "bbox", None))
        pen.set_foreground(self.get_color())
        pen.set_linewidth(renderer.points_to_pixels(self.get_linewidth()))
        pen.set_joinstyle("bevel")
        for corners in found:
            renderer.draw_path(pen, Path(corners, closed=False), IdentityTransform(), to_rgba(self.get_color()))
        pen.restore()
        self.stale = False

    def _outline(self) -> list[Floats]:
        """The outlines of what the line fills, in pixels; empty where it is to be drawn stroke by stroke."""
        solid = self.get_linestyle() == "-" and self.get_alpha() in (None, 1.0)
        if not solid or self.get_marker() not in ("", "None", None) or self.axes is None:
            return []
        box = self.axes.bbox
        x, y = self.get_transform().transform(self.get_xydata()).T
        return outlines(x, np.clip(y, box.y0 - 2, box.y1 + 2), box.x0, box.x1)


def outlines(x: Floats, y: Floats, left: float, right: float) -> list[Floats]:
    """What a line in pixels fills between ``left`` and ``right``: outlines (n, 2) of the stretches between its gaps.

    Empty where the line is short, or has too few points for that.

    >>> len(outlines(np.arange(2000) / 4, 300.0 * (np.arange(2000) % 2), 0, 500))
    1
    """
    seen = (x >= left - 2) & (x <= right + 2) | ~np.isfinite(x)
    if seen.sum() < _PER_COLUMN * 50:
        return []
    x, y = x[seen], np.where(np.isfinite(x[seen]), y[seen], np.nan)
    with np.errstate(invalid="ignore"):
        steps, rises = np.diff(x), np.abs(np.diff(y))
    if np.nansum(rises) < _FAR or (steps < 0).any():
        return []
    columns = np.where(np.isfinite(y), np.floor(np.nan_to_num(x)), np.nan)
    # A gap ends a column as well: NaN is equal to nothing.
    starts = np.flatnonzero(np.r_[True, columns[1:] != columns[:-1]])
    known = np.isfinite(columns[starts])
    if len(x) < _PER_COLUMN * known.sum():
        return []
    return polygons(*_filled(x, y, starts))


def _filled(x: Floats, y: Floats, starts: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
    """Each column's place and its lowest and highest point; over columns without a point a plain stroke is led."""
    at, low, high = x[starts], np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    far = np.flatnonzero(np.diff(at) > 2.0)
    ends = np.r_[starts[1:], len(x)] - 1
    places = np.repeat(far + 1, 2)
    across = np.column_stack([x[ends[far]], at[far + 1]]).ravel()
    led = np.column_stack([y[ends[far]], y[starts[far + 1]]]).ravel()
    return np.insert(at, places, across), np.insert(low, places, led), np.insert(high, places, led)
