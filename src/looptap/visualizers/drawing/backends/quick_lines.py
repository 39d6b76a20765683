"""`QuickLine`: a matplotlib line that draws dense, noisy data quickly.

Agg's time for a line grows with all pixels along it, and a noisy line crosses the same ones again and again. Such a
line covers each column of pixels from its lowest to its highest point: those areas are filled instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

from looptap.visualizers.data.numbers import Floats

_MIN_AREA_PIXELS = 20_000
"""The least length of a line whose areas are filled: shorter ones are quick anyway."""
_MIN_POINTS_PER_COLUMN = 2.0
"""The least density for filled areas: with fewer points each stroke is visible."""


class QuickLine(Line2D):
    """A solid, opaque line over rising x; looks like Line2D to about a pixel."""

    def draw(self, renderer: Any) -> None:
        """Draw the line, as filled areas where that is quicker and looks the same."""
        inner = getattr(renderer, "_raster_renderer", None) or renderer
        seen = self.get_visible() and isinstance(inner, RendererAgg)
        thick = renderer.points_to_pixels(self.get_linewidth())
        areas, strokes = self._areas(thick) if seen else ([], [])
        if not areas:
            super().draw(renderer)
            return
        pen = renderer.new_gc()
        pen.set_clip_rectangle(getattr(self.axes, "bbox", None))
        pen.set_foreground(self.get_color())
        pen.set_linewidth(0.0)  # to stroke the edges takes four times as long as to fill what is between them
        for corners in areas:
            renderer.draw_path(pen, Path(corners, closed=False), IdentityTransform(), to_rgba(self.get_color()))
        pen.set_linewidth(thick)
        for ends in strokes:
            renderer.draw_path(pen, Path(ends), IdentityTransform())
        pen.restore()
        self.stale = False

    def _areas(self, thick: float) -> tuple[list[Floats], list[Floats]]:
        """Return what the line fills, as `areas` does; nothing if it is to be stroked."""
        solid = self.get_linestyle() == "-" and self.get_alpha() in (None, 1.0)
        if not solid or self.get_marker() not in ("", "None", None) or self.axes is None:
            return [], []
        box = self.axes.bbox
        x, y = self.get_transform().transform(self.get_xydata()).T
        return areas(x, np.clip(y, box.y0 - 2 * thick, box.y1 + 2 * thick), box.x0, box.x1, thick)


def areas(x: Floats, y: Floats, left: float, right: float, thick: float) -> tuple[list[Floats], list[Floats]]:
    """Return what a line ``thick`` pixels wide fills: outlines and strokes (n, 2).

    Only what is between ``left`` and ``right`` counts. The outlines are those of stretches that have points in each
    column of pixels, the strokes join them. Both are empty where the line is short, or has too few points for that.

    >>> outlines, strokes = areas(np.arange(2000) / 4, 300.0 * (np.arange(2000) % 2), 0, 500, 2.0)
    >>> len(outlines), len(strokes)
    (1, 0)
    """
    seen = (x >= left - 2) & (x <= right + 2) | ~np.isfinite(x)
    if seen.sum() < _MIN_POINTS_PER_COLUMN * 50:
        return [], []
    x, y = x[seen], np.where(np.isfinite(x[seen]), y[seen], np.nan)
    with np.errstate(invalid="ignore"):
        steps, rises = np.diff(x), np.abs(np.diff(y))
    if np.nansum(rises) < _MIN_AREA_PIXELS or (steps < 0).any():
        return [], []
    wide = max(1.0, thick / 2)  # of a column: a stroke of the line in one is half in the next
    columns = np.where(np.isfinite(y), np.floor(np.nan_to_num(x) / wide), np.nan)
    # A gap ends a column as well: NaN is equal to nothing.
    starts = np.flatnonzero(np.r_[True, columns[1:] != columns[:-1]])
    at = columns[starts]
    known = np.isfinite(at)
    if len(x) < _MIN_POINTS_PER_COLUMN * known.sum():
        return [], []
    low, high = np.minimum.reduceat(y, starts) - thick / 2, np.maximum.reduceat(y, starts) + thick / 2
    with np.errstate(invalid="ignore"):
        far = np.flatnonzero(np.diff(at) > 2.0)
    ends = np.r_[starts[1:], len(x)] - 1
    strokes = [np.array([(x[a], y[a]), (x[b], y[b])]) for a, b in zip(ends[far], starts[far + 1], strict=True)]
    cuts = np.union1d(far + 1, np.flatnonzero(~known))
    parts = [part[known[part]] for part in np.split(np.arange(len(at)), cuts)]
    return [_outline((at[part] + 0.5) * wide, low[part], high[part], thick / 2) for part in parts if len(part)], strokes


def _outline(at: Floats, low: Floats, high: Floats, half: float) -> Floats:
    """Return the outline of overlapping bars at these places, 2 × ``half`` wide."""
    places = np.repeat(np.r_[at[0] - half, at, at[-1] + half], 2)[1:-1]
    bottom = np.repeat(np.r_[low[0], np.minimum(low[1:], low[:-1]), low[-1]], 2)
    top = np.repeat(np.r_[high[0], np.maximum(high[1:], high[:-1]), high[-1]], 2)
    return np.column_stack([np.r_[places, places[::-1]], np.r_[bottom, top[::-1]]])
