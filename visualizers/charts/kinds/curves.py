"""One-dimensional arrays as lines, older frames lighter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.base import FRAME, INDEX, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe, floats
from looptap.visualizers.data.sample_buffer import thinned
from looptap.visualizers.drawing.picture import Axis, Line, Mark


class CurveChart(Chart):
    """An array (n,) as a line over the indices of its elements."""

    kind: ClassVar[str] = "curve"
    family: ClassVar[str] = "xy"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> Floats:
        """Return the array as float64 in one dimension."""
        found = floats(value)
        if found.ndim > 1 and found.size != max(found.shape, default=0):
            raise TypeError(f"expected a 1-D array, got {describe(value)}")
        return found.ravel()

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current line and earlier ones, older ones lighter."""
        shown = series.frames.shown
        for age, values in zip(reversed(range(len(shown))), shown, strict=True):
            picked = thinned(values)
            y = np.where(np.isfinite(values[picked]), values[picked], np.nan)
            name, opacity = ("", fading(age)) if age else (series.name, 1.0)
            yield Line(picked.astype(float), y, name=name, color=series.color, opacity=opacity, side=series.side)

    def units(self, series: Series) -> tuple[str, str]:
        """Return that x is an index, and y what the array has."""
        return INDEX, self.kind

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the index of an element, and its value."""
        mine = [one.name for one in self.series if one.layer is self]
        return Axis("index"), Axis(mine[0] if len(mine) == 1 else ""), None


def fading(age: int) -> float:
    """Return the opacity of a frame that is ``age`` frames old: 1 for the newest.

    >>> [round(fading(age), 2) for age in range(4)]
    [1.0, 0.43, 0.3, 0.21]
    """
    return 1.0 if not age else max(0.05, 0.43 * 0.7 ** (age - 1))
