"""Matrices: heat maps and confusion matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.base import FRAME, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe, floats
from looptap.visualizers.drawing.picture import Axis, Grid, Mark

MAX_SIDE_CELLS = 512
"""The most rows or columns drawn of a matrix; neighbours of a larger one are averaged."""
MAX_WRITTEN_CLASSES = 20
"""The most classes whose counts are written into a confusion matrix."""


class HeatMapChart(Chart):
    """A matrix as colours, the first row on top."""

    kind: ClassVar[str] = "heatmap"
    family: ClassVar[str] = "mat"
    mode: ClassVar[Mode] = FRAME
    single: ClassVar[bool] = True

    def frame(self, series: Series, value: Any) -> Floats:
        """Return the matrix, averaged down to what can be drawn; a 1-D array is a row."""
        cells = floats(value)
        if cells.ndim == 4 and cells.shape[2:] == (1, 1):  # the weights of a convolution of single pixels
            cells = cells[:, :, 0, 0]
        if cells.ndim > 2:
            raise TypeError(f"expected a matrix, got {describe(value)}")
        cells = np.atleast_2d(cells)
        if max(cells.shape) > MAX_SIDE_CELLS:
            rows, columns = cells.shape
            series.remarks["side"] = (
                f"{rows:,} × {columns:,} cells, averaged to at most {MAX_SIDE_CELLS} × {MAX_SIDE_CELLS}"
            )
        return coarser(coarser(np.where(np.isfinite(cells), cells, np.nan)).T).T

    def named(self, series: Series) -> str:
        """Return the name of the stream, unless the chart's title already has it."""
        return "" if series.name == self.title else series.name

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current matrix."""
        for cells in series.frames.shown[-1:]:
            yield Grid(cells, name=self.named(series))

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: columns and rows."""
        return Axis("column"), Axis("row"), None


class ConfusionChart(HeatMapChart):
    """Counts, targets by predictions, written into the cells where they fit."""

    kind: ClassVar[str] = "confusion"

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current matrix, with class numbers on its axes."""
        for cells in series.frames.shown[-1:]:
            whole = max(cells.shape) < MAX_SIDE_CELLS
            rows, columns = (tuple(map(str, range(size))) if whole else () for size in cells.shape)
            yield Grid(cells, rows, columns, written=max(cells.shape) <= MAX_WRITTEN_CLASSES, name=self.named(series))

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: predictions and targets, as ``confusion`` counts them."""
        return Axis("prediction"), Axis("target"), None


def coarser(cells: Floats) -> Floats:
    """Return at most `MAX_SIDE_CELLS` rows: the means of neighbours.

    >>> coarser(np.arange(1024.0)[:, None])[:2, 0]
    array([0.5, 2.5])
    """
    if len(cells) <= MAX_SIDE_CELLS:
        return cells
    starts = np.linspace(0, len(cells), MAX_SIDE_CELLS + 1).astype(np.intp)
    found: Floats = np.add.reduceat(cells, starts[:-1], axis=0) / np.diff(starts)[:, None]
    return found
