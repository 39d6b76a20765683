"""Numbers by name, such as a norm per layer: over time, and at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.base import FRAME, LABEL, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.kinds.curves import fading
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe, floats, is_number, number
from looptap.visualizers.data.smoothing import spans_decades
from looptap.visualizers.drawing.layouts import time_words
from looptap.visualizers.drawing.picture import Axis, Bars, Grid, Line, Mark
from looptap.visualizers.drawing.sanitize import local_time

MAX_TIMES = 240
"""Columns of a heat map over time; of more values each column is the mean of several."""
MAX_LAYERS = 200
"""Bars of a chart of layers."""
_MIN_LOG_DECADES = 3.0  # from the smallest to the largest number, beyond which colours are logarithms


class LayersChart(LineChart):
    """A heat map of names over time: a row for each, a column for each value."""

    kind: ClassVar[str] = "layers"
    family: ClassVar[str] = "mat"
    single: ClassVar[bool] = True

    def curves(self, series: Series, columns: Floats) -> Iterator[Mark]:
        """Yield the map, of logarithms where positive numbers span three decades."""
        if not columns.size or not series.data["names"]:
            return
        axis = self.over(series, columns)
        drawn = self.drawn(series, axis)
        cells = columns[MAX_LEADING_COLUMNS:][drawn]
        cells = np.where(np.isfinite(cells), cells, np.nan)
        x, cells = _means(axis.x, cells)
        log = spans_decades(cells, _MIN_LOG_DECADES)
        cells, name = (np.log10(cells), "log10") if log else (cells, "")
        series.remark("log", "colours are powers of ten" if log else "")
        names = series.data["names"]
        times = tuple(map(time_words, local_time(x)) if axis.clock else (f"{at:.6g}" for at in x))
        yield Grid(cells, tuple(names[part] for part in drawn), times, name=name)

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: x, and the names beside their rows."""
        x, _, _ = super().axes()
        return Axis(x.title), Axis(), None

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return None: columns have labels, not places."""
        return None


class FlowChart(Chart):
    """The gradient flow: a bar for each layer, and the heights of before, fading."""

    kind: ClassVar[str] = "flow"
    family: ClassVar[str] = "xy"
    mode: ClassVar[Mode] = FRAME
    single: ClassVar[bool] = True

    def frame(self, series: Series, value: Any) -> dict[str, float]:
        """Return a number for each layer: of an array, its mean magnitude."""
        if isinstance(value, Mapping):
            found = {str(name): _size(part) for name, part in value.items()}
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            found = {name: _size(part) for name, part in zip(value._fields, value, strict=True)}
        elif value is not None and not isinstance(value, str) and (numbers := floats(value)).ndim == 1:
            found = {str(place): float(one) for place, one in enumerate(numbers[: MAX_LAYERS + 1])}
        else:
            raise TypeError(f"expected a dict of numbers or a 1-D array, got {describe(value)}")
        if len(found) > MAX_LAYERS:
            series.remarks["layers"] = f"the first {MAX_LAYERS} layers are drawn"
        return dict(list(found.items())[:MAX_LAYERS])

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the bars of now, and lines over them for the frames before."""
        shown = series.frames.shown
        if not shown:
            return
        names = tuple(shown[-1])
        yield Bars(_heights(shown[-1], names), names, name=series.name, color=series.color, opacity=0.75)
        for age, layers in zip(range(len(shown) - 1, 0, -1), shown, strict=False):
            x, y = np.arange(len(names), dtype=float), _heights(layers, names)
            steps = np.column_stack([x - 0.4, x + 0.4, x + 0.4]).ravel()  # a level over each bar, with gaps between
            levels = np.column_stack([y, y, np.full(len(y), np.nan)]).ravel()
            yield Line(steps, levels, color=series.color, opacity=max(0.25, fading(age)))

    def units(self, series: Series) -> tuple[str, str]:
        """Return that x are layers, and y are heights."""
        return LABEL, "height"

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: layers, and their numbers."""
        mine = [one.name for one in self.own]
        return Axis(), Axis(mine[0] if mine else ""), None


def _size(value: Any) -> float:
    if value is None or is_number(value):
        return number(value)
    found = np.abs(floats(value))
    return float(found.mean()) if found.size else np.nan


def _heights(layers: Mapping[str, float], names: tuple[str, ...]) -> Floats:
    found = np.array([layers.get(name, np.nan) for name in names])
    return np.where(np.isfinite(found), found, np.nan)


def _means(x: Floats, cells: Floats) -> tuple[Floats, Floats]:
    """Return at most `MAX_TIMES` columns: the means of neighbours, NaN left out."""
    if cells.shape[1] <= MAX_TIMES:
        return x, cells
    starts = np.linspace(0, cells.shape[1], MAX_TIMES + 1).astype(np.intp)[:-1]
    known = np.isfinite(cells)
    counts = np.add.reduceat(known, starts, axis=1, dtype=np.intp)
    sums = np.add.reduceat(np.where(known, cells, 0.0), starts, axis=1)
    return x[starts], np.where(counts, sums / np.maximum(counts, 1), np.nan)
