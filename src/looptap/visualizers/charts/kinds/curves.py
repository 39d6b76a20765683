"""Whole pictures of lines: an array, or rows across an axis for each column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from looptap.visualizers.charts.base import FRAME, INDEX, POSITION, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.reading.points import is_few_rows, paired
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.color_scales import VIRIDIS, shade
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.data.numbers import Floats, describe, floats, is_number, number
from looptap.visualizers.data.sample_buffer import thinned
from looptap.visualizers.data.words import shown_text
from looptap.visualizers.drawing.picture import Axis, Line, Mark

MAX_LINES, MAX_AXES = 200, 20
"""Rows and columns that are drawn."""
MAX_NAMED_LINES = 8
"""Lines up to which each has its name in the legend."""
_MIN_LOG_RATIO = 100.0  # of the largest to the smallest positive number on a logarithmic axis
_MARGIN_SHARE = 0.15  # above and below the axes, for their names and numbers
_MAX_WRITTEN_COUNT = 6  # of texts on an axis
_INK, _AXIS_OPACITY = COLORS[6], 0.35
_DARKEST_SHARE, _LIGHTEST_SHARE = 0.2, 0.85  # of the scale: the ends are not seen on a dark or a light ground
_GREY_NUMBERS = (0x88, 0x88, 0x88)


class Curves(NamedTuple):
    """Lines (k, n) over the indices of their elements, or over ``x``."""

    lines: Floats
    x: Floats | None = None


class CurveChart(Chart):
    """An array (n,) as a line over its indices, or over another array.

    Of an array (k, n) of few rows, such as the channels of a sound, each row is a line.
    """

    kind: ClassVar[str] = "curve"
    family: ClassVar[str] = "xy"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> Curves:
        """Return the arrays as float64: rows, and what they are drawn over."""
        if (both := paired(value)) is not None:
            return Curves(both[1:], both[0])
        found = floats(value)
        if found.ndim > 1 and found.size != max(found.shape, default=0) and not is_few_rows(found):
            raise TypeError(f"expected a 1-D array, got {describe(value)}")
        return Curves(found if is_few_rows(found) else found.reshape(1, -1))

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the current line and earlier ones, older ones lighter."""
        frames = series.frames.shown
        for age, curves in zip(reversed(range(len(frames))), frames, strict=True):
            for row, values in enumerate(curves.lines):
                picked = thinned(values)
                y = np.where(np.isfinite(values[picked]), values[picked], np.nan)
                x = picked.astype(float) if curves.x is None else curves.x[picked]
                several = len(curves.lines) > 1
                name, opacity = ("", fading(age)) if age else (f"{series.name}[{row}]" if several else series.name, 1.0)
                color = COLORS[(COLORS.index(series.color) + row) % len(COLORS)] if row else series.color
                yield Line(x, y, name=name, color=color, opacity=opacity, side=series.side)

    def units(self, series: Series) -> tuple[str, str]:
        """Return that x is an index or a position, and y what the array has."""
        over = any(curves.x is not None for curves in series.frames.shown[-1:])
        return POSITION if over else INDEX, self.kind

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the index of an element, and its value."""
        mine = self.own
        name = mine[0].name if len(mine) == 1 else ""
        if mine and any(curves.x is not None for curves in mine[0].frames.shown[-1:]):
            x, y = mine[0].choice.schema if len(mine[0].choice.schema) == 2 else ("x", name)
            return Axis(x), Axis(y), None
        return Axis("index"), Axis(name), None


def fading(age: int) -> float:
    """Return the opacity of a frame that is ``age`` frames old: 1 for the newest.

    >>> [round(fading(age), 2) for age in range(4)]
    [1.0, 0.43, 0.3, 0.21]
    """
    return 1.0 if not age else max(0.05, 0.43 * 0.7 ** (age - 1))


class AxisOfColumn(NamedTuple):
    """An axis: its name, texts at places from 0 to 1, and the place of each row."""

    name: str
    texts: tuple[tuple[float, str], ...]
    places: Floats


class ParallelRows(NamedTuple):
    """A table as lines across axes."""

    labels: tuple[str, ...]
    axes: tuple[AxisOfColumn, ...]


class ParallelChart(Chart):
    """A list of dicts as lines across one axis for each of their keys.

    Texts have places in order of appearance, numbers that span two decades a logarithmic axis. Rows without a number
    have a gap there. The colour of a line is its place on the last axis; the key ``run`` names the line.
    """

    kind: ClassVar[str] = "parallel"
    family: ClassVar[str] = "parallel"
    mode: ClassVar[Mode] = FRAME
    single: ClassVar[bool] = True

    def frame(self, series: Series, value: Any) -> ParallelRows:
        """Return the rows by axis. Raises TypeError for anything but a list of dicts."""
        rows = list(value) if isinstance(value, list | tuple) else []
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            raise TypeError(f"expected a list of dicts, got {describe(value)}")
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "run"]
        if len(rows) > MAX_LINES or len(names) > MAX_AXES:
            series.remarks["rows"] = f"the first {MAX_LINES} rows and {MAX_AXES} columns of {len(rows)} × {len(names)}"
        rows = rows[:MAX_LINES]
        axes = tuple(_axis(str(name), [row.get(name) for row in rows]) for name in names[:MAX_AXES])
        if len(axes) < 2:
            raise TypeError(f"expected dicts of two entries or more, got {describe(rows[0])}")
        return ParallelRows(tuple(shown_text(row.get("run", place), 60) for place, row in enumerate(rows)), axes)

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the lines, then the axes with their ends, which are read on the lines."""
        for table in series.frames.shown[-1:]:
            yield from _lines(table)
            for place, axis in enumerate(table.axes):
                heights = [-_MARGIN_SHARE / 2, *(height for height, _ in axis.texts), 1.0 + _MARGIN_SHARE / 2]
                notes = tuple(enumerate((text for _, text in axis.texts), 1))
                yield Line(
                    np.full(len(heights), float(place)),
                    np.array(heights),
                    color=_INK,
                    opacity=_AXIS_OPACITY,
                    notes=notes,
                )

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the names of the columns below, and shares of their ranges."""
        names = next(([axis.name for axis in table.axes] for one in self.series for table in one.frames.shown[-1:]), [])
        below = Axis("", -0.2, max(2, len(names)) - 0.6, ticks=tuple((float(i), name) for i, name in enumerate(names)))
        return below, Axis("", -_MARGIN_SHARE, 1.0 + _MARGIN_SHARE, ticks=((0.5, ""),)), None


def _lines(table: ParallelRows) -> Iterator[Line]:
    places = np.array([axis.places for axis in table.axes])  # axes × rows
    last = places[-1]
    order = sorted(range(len(table.labels)), key=lambda row: (not math.isnan(last[row]), last[row]))
    x = np.arange(len(table.axes), dtype=np.float64)
    for row in order:
        known = not math.isnan(last[row])
        share = _DARKEST_SHARE + (_LIGHTEST_SHARE - _DARKEST_SHARE) * last[row]
        red, green, blue = shade(VIRIDIS, share) if known else _GREY_NUMBERS
        name = table.labels[row] if len(table.labels) <= MAX_NAMED_LINES else ""
        yield Line(
            x,
            places[:, row],
            name=name,
            color=f"#{red:02x}{green:02x}{blue:02x}",
            opacity=0.85,
            dash="solid" if known else "dot",
        )


def _axis(name: str, values: Sequence[Any]) -> AxisOfColumn:
    numeric = [value for value in values if value is not None and is_number(value) and not isinstance(value, bool)]
    if numeric and all(value is None or (is_number(value) and not isinstance(value, bool)) for value in values):
        return _axis_of_numbers(name, np.array([math.nan if value is None else number(value) for value in values]))
    words = sorted(dict.fromkeys(shown_text(value, 40) for value in values if value is not None))
    step = 1.0 / max(1, len(words) - 1)
    places = [math.nan if value is None else words.index(shown_text(value, 40)) * step for value in values]
    few = len(words) <= _MAX_WRITTEN_COUNT
    texts = [(place * step, word) for place, word in enumerate(words) if few or place in (0, len(words) - 1)]
    return AxisOfColumn(name if few else f"{name} ({len(words)} values)", tuple(texts), np.array(places))


def _axis_of_numbers(name: str, values: Floats) -> AxisOfColumn:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return AxisOfColumn(name, (), np.full(len(values), math.nan))
    low, high = float(finite.min()) + 0.0, float(finite.max()) + 0.0  # without a sign at zero
    log = low > 0 and high / low >= _MIN_LOG_RATIO
    scaled = np.log(np.where(np.isfinite(values) & (values > 0), values, np.nan)) if log else values
    bottom, top = (math.log(low), math.log(high)) if log else (low, high)
    places = (scaled - bottom) / (top - bottom) if top > bottom else np.where(np.isfinite(values), 0.5, np.nan)
    places = np.where(np.isfinite(places), places, np.nan)
    texts = ((0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")) if high > low else ((0.5, f"{low:.4g}"),)
    return AxisOfColumn(f"{name}{' (log)' if log else ''}", texts, places)
