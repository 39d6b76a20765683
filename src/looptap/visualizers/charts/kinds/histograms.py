"""Histograms: of arrays, of counts and edges binned in the job, of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np

from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.base import FRAME, VALUE, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.reading.forms import is_histogram
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, floats, scalars
from looptap.visualizers.data.sample_buffer import SampleBuffer
from looptap.visualizers.drawing.picture import Axis, Bars, Mark

DEFAULT_BINS = 50
"""Bins of what was not binned in the job."""
_MAX_BINS = 2_000
_MAX_BINNED = 1e300  # magnitudes are clipped to it, so that the span of the numbers is finite

Binned: TypeAlias = tuple[Floats, Floats]
"""Counts, and edges, of which there is one more."""


class HistogramChart(Chart):
    """The distribution of numbers."""

    kind: ClassVar[str] = "histogram"
    family: ClassVar[str] = "hist"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> Binned:
        """Return counts and edges: as received, or of the numbers of an array."""
        return binned(value)

    def append(self, series: Series, new: Columns) -> None:
        """Add single numbers; the newest are binned when they are drawn."""
        series.data.setdefault("ring", SampleBuffer(1, series.points)).append(scalars(new.values)[None])

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the bars of the current frame, or of all kept numbers."""
        if "ring" in series.data:
            counts, edges = binned(series.data["ring"].columns[0])
        elif series.frames.shown:
            counts, edges = series.frames.shown[-1]
        else:
            return
        opacity = 1.0 if len(self.series) == 1 else 0.6
        yield Bars(counts, edges=edges, name=series.name, color=series.color, opacity=opacity, side=series.side)

    def units(self, series: Series) -> tuple[str, str]:
        """Return that x is a value, and y counts."""
        return VALUE, "count"

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the value, and how often it occurs."""
        mine = [one.name for one in self.own]
        return Axis(mine[0] if len(mine) == 1 else "value"), Axis("count"), None


def binned(value: Any, bins: int = DEFAULT_BINS) -> Binned:
    """Return (counts, edges): as received, or of finite numbers. Raises TypeError.

    >>> binned((np.array([3, 1]), np.array([0.0, 1.0, 2.0])))[0]
    array([3., 1.])
    >>> binned(np.array([1.0, np.nan, 1.0]))[0].sum()
    np.float64(2.0)
    """
    if is_histogram(value):
        counts, edges = (floats(list(part) if isinstance(part, tuple) else part) for part in value)
        if len(counts) > _MAX_BINS:
            starts = np.linspace(0, len(counts), _MAX_BINS + 1).astype(np.intp)
            counts, edges = np.add.reduceat(counts, starts[:-1]), edges[starts]
        return np.where(np.isfinite(counts), counts, 0.0), edges
    numbers = floats(value).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return np.zeros(1), np.array([0.0, 1.0])
    numbers = np.clip(numbers, -_MAX_BINNED, _MAX_BINNED)
    low, high = float(numbers.min()), float(numbers.max())
    if (high - low) / bins <= max(abs(low), abs(high)) * 1e-15:  # too narrow for several bins
        width = max(abs(low), abs(high)) * 1e-3 or 0.5
        return np.array([float(len(numbers))]), np.array([low - width, high + width])
    counts, edges = np.histogram(numbers, bins, (low, high))
    return counts.astype(np.float64), edges
