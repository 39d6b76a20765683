"""Lines in space: (x, y, z), and with notes (x, y, z, text)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.kinds.lines import (
    AnnotatedLineChart,
    LineChart,
    breaks_of,
    broken,
    moved,
    noted_places,
    notes_at,
)
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe
from looptap.visualizers.data.sample_buffer import MAX_DRAWN_POINTS, thinned
from looptap.visualizers.drawing.picture import Axis, Mark
from looptap.visualizers.drawing.picture import Line as LineMark


class LineChart3D(LineChart):
    """A line through points in space."""

    kind: ClassVar[str] = "line3d"
    family: ClassVar[str] = "xyz"

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return the names of the three parts. Raises TypeError if there are not three."""
        names, form = super().parts(series, value)
        if len(names) != 3:
            raise TypeError(f"expected (number, number, number), got {describe(value)}")
        return names, form

    def curves(self, series: Series, columns: Floats) -> Iterator[Mark]:
        """Yield the line."""
        parts, breaks = columns[MAX_LEADING_COLUMNS : MAX_LEADING_COLUMNS + 3], breaks_of(series, columns)
        texts = series.data.get("texts")
        places = noted_places(texts) if texts else []
        picked = np.union1d(_picked(parts), np.array(places, np.intp)).astype(np.intp)
        x, y, z = np.where(np.isfinite(parts[:, picked]), parts[:, picked], np.nan)
        notes = moved(notes_at(texts, places, picked), picked, breaks) if texts else ()
        x, y, z = broken(picked, breaks, x, y, z)
        yield LineMark(x, y, z, series.name, series.color, series.dash, notes=notes)

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes, named after the parts of the first stream."""
        known = [one.data["names"] for one in self.own if "names" in one.data]
        x, y, z = map(Axis, known[0][:3] if known else "xyz")
        return x, y, z

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return None: no axis counts events."""
        return None


class AnnotatedLineChart3D(LineChart3D, AnnotatedLineChart):
    """A line through points in space, with a text at some of them."""

    kind: ClassVar[str] = "annotated3d"
    width: ClassVar[int] = 3
    numbers = AnnotatedLineChart.numbers
    parts = AnnotatedLineChart.parts
    curves = LineChart3D.curves


def _picked(parts: Floats) -> NDArray[np.intp]:
    """Return indices that keep the look of a line along each of its axes."""
    if parts.shape[1] <= MAX_DRAWN_POINTS:
        return np.arange(parts.shape[1])
    return np.unique(np.concatenate([thinned(part, MAX_DRAWN_POINTS // 3) for part in parts]))
