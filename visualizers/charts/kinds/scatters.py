"""Scatters in the plane and in space: of arrays (n, 2 or 3), or of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.base import FRAME, Mode
from looptap.visualizers.charts.kinds.curves import fading
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe, floats
from looptap.visualizers.drawing.picture import Axis, Mark, Points

MAX_DRAWN_POINTS = 5_000
"""The most points drawn of a stream, evenly chosen."""
_TRAIL_FRAMES = 3


class ScatterChart(LineChart):
    """Points in the plane; a third number colours them."""

    kind: ClassVar[str] = "scatter"
    mode: ClassVar[Mode] = FRAME
    width: ClassVar[int] = 2

    def frame(self, series: Series, value: Any) -> Floats:
        """Return the points as (n, 2) or (n, 3)."""
        found = floats(value)
        if found.ndim != 2 or found.shape[1] not in (self.width, 3):
            wanted = "(n, 3)" if self.width == 3 else "(n, 2) or (n, 3)"
            raise TypeError(f"expected an array {wanted}, got {describe(value)}")
        return found

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current points, and fainter ones of earlier frames."""
        if "ring" in series.data:
            yield self._dots(series, self._parts(series), series.name, 0.8)
            return
        shown = series.frames.shown[-_TRAIL_FRAMES:]
        for age, points in zip(reversed(range(len(shown))), shown, strict=True):
            yield self._dots(series, points.T, "" if age else series.name, 0.5 * fading(age) if age else 0.8)

    def _parts(self, series: Series) -> Floats:
        """Return the columns to draw: x, y, and the third for colour or height."""
        columns, names = series.data["ring"].columns, series.data["names"]
        parts = columns[MAX_LEADING_COLUMNS:]
        if self.width == 3:
            return np.asarray(parts[:3])
        axis = self.over(series, columns)
        rest = [i for i in range(len(names)) if i != axis.part]
        chosen = [i for i in rest if names[i] in series.y] or [i for i in rest if names[i] != series.by] or rest
        third = [names.index(series.by)] if series.by in names else chosen[1:2]
        return np.vstack([axis.x, parts[chosen[0]], *(parts[i] for i in third)])

    def _dots(self, series: Series, parts: Floats, name: str, opacity: float) -> Points:
        """Return the mark of columns (2 or 3, n)."""
        parts = parts[:, np.isfinite(parts[:2]).all(axis=0)]
        if parts.shape[1] > MAX_DRAWN_POINTS:
            series.remarks["drawn"] = f"{MAX_DRAWN_POINTS:,} of {parts.shape[1]:,} points are drawn"
            parts = parts[:, np.linspace(0, parts.shape[1] - 1, MAX_DRAWN_POINTS).astype(np.intp)]
        third = np.where(np.isfinite(parts[2]), parts[2], np.nan) if len(parts) > 2 else None
        z, values = (third, None) if self.width == 3 else (None, third)
        return Points(parts[0], parts[1], z, name, series.color, values, opacity, series.side)

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes, named after the parts where they have names."""
        mine = [one for one in self.series if one.layer is self]
        if mine and "ring" in mine[0].data and self.width == 2:
            return super().axes()
        schema = mine[0].choice.schema if mine and len(mine[0].choice.schema) >= self.width else ("x", "y", "z")
        return Axis(schema[0]), Axis(schema[1]), Axis(schema[2]) if self.width == 3 else None


class ScatterChart3D(ScatterChart):
    """Points in space."""

    kind: ClassVar[str] = "scatter3d"
    family: ClassVar[str] = "xyz"
    width: ClassVar[int] = 3

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return the names of the three parts. Raises TypeError if there are not three."""
        names, form = super().parts(series, value)
        if len(names) < 3:
            raise TypeError(f"expected (number, number, number), got {describe(value)}")
        return names, form

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return None: no axis counts events."""
        return None
