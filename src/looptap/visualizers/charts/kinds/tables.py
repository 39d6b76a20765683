"""Texts, tables and summaries: values shown in words and figures."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.base import APPEND, FRAME, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats
from looptap.visualizers.data.words import shown_text
from looptap.visualizers.drawing.picture import Axis, Mark, Text
from looptap.visualizers.drawing.picture import Table as TableMark

MAX_ROWS, MAX_COLUMNS = 200, 30
"""Rows and columns of a table that are shown."""
MAX_TEXT_LINES = 500
"""Lines of a stream of texts that are kept."""


class TextChart(Chart):
    """The newest values as lines of text, the newest last."""

    kind: ClassVar[str] = "text"
    family: ClassVar[str] = "text"
    mode: ClassVar[Mode] = APPEND

    def append(self, series: Series, new: Columns) -> None:
        """Add values of any type: a text as it is, anything else by its repr."""
        lines = series.data.setdefault("lines", deque(maxlen=MAX_TEXT_LINES))
        for value in new.values[-MAX_TEXT_LINES:]:
            lines.extend(shown_text(value, 2_000).splitlines()[:50] or [""])

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the lines."""
        lines = series.data.get("lines", ())
        several = len(self.own) > 1
        yield Text(tuple(f"{series.name}: {line}" if several else line for line in lines))


class TableChart(Chart):
    """A table: of a dict, of a list of dicts or tuples, or of values as rows."""

    kind: ClassVar[str] = "table"
    family: ClassVar[str] = "text"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> TableMark:
        """Return the table."""
        titles, rows = _laid_out(value, series.choice.schema)
        if len(rows) > MAX_ROWS or len(titles) > MAX_COLUMNS:
            series.remarks["rows"] = (
                f"the first {MAX_ROWS} rows and {MAX_COLUMNS} columns of {len(rows):,} × {len(titles):,}"
            )
        return TableMark(tuple(titles[:MAX_COLUMNS]), tuple(tuple(row[:MAX_COLUMNS]) for row in rows[:MAX_ROWS]))

    def append(self, series: Series, new: Columns) -> None:
        """Add values as rows."""
        rows = series.data.setdefault("rows", deque(maxlen=MAX_ROWS))
        rows.extend(zip(new.events[-MAX_ROWS:].tolist(), new.values[-MAX_ROWS:], strict=True))

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the table."""
        if "rows" in series.data:
            values = [list(value) if isinstance(value, tuple) else [value] for _, value in series.data["rows"]]
            width = min(MAX_COLUMNS, max(map(len, values), default=0))
            names = series.choice.schema if len(series.choice.schema) == width else _numbered(width, series.name)
            events = [str(event) for event, _ in series.data["rows"]]
            rows = [(event, *_cells(row, width)) for event, row in zip(events, values, strict=True)]
            yield TableMark((series.stream.on or "event", *names), tuple(rows))
        yield from series.frames.shown[-1:]


class Moments:
    """The figures of a summary; NaN and infinities are left out.

    >>> moments = Moments()
    >>> moments.add(np.array([1.0, 3.0])); moments.add(np.array([5.0, np.nan]))
    >>> moments.count, moments.figures()
    (3, (3.0, 2.0, 1.0, 5.0, 5.0))
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = 0.0
        self._least, self._largest, self._newest = math.inf, -math.inf, math.nan

    def add(self, numbers: Floats) -> None:
        """Add a block; merge its mean and spread with those before (Chan et al.)."""
        numbers = numbers[np.isfinite(numbers)]
        count = len(numbers)
        if not count:
            return
        mean = float(numbers.mean())
        delta, total = mean - self._mean, self.count + count
        self._squares += float(((numbers - mean) ** 2).sum()) + delta * delta * self.count * count / total
        self._mean += delta * count / total
        self.count = total
        self._least = min(self._least, float(numbers.min()))
        self._largest = max(self._largest, float(numbers.max()))
        self._newest = float(numbers[-1])

    def figures(self) -> tuple[float, float, float, float, float]:
        """Return mean, spread (divisor n - 1), minimum, maximum and newest; or NaN."""
        if not self.count:
            return (math.nan,) * 5
        spread = math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else math.nan
        return self._mean, spread, self._least, self._largest, self._newest


class SummaryChart(LineChart):
    """Count, mean, standard deviation, minimum, maximum and newest of all numbers."""

    kind: ClassVar[str] = "summary"
    family: ClassVar[str] = "text"
    mode: ClassVar[Mode] = APPEND

    def append(self, series: Series, new: Columns) -> None:
        """Add numbers, tuples or dicts of numbers."""
        before = series.data["ring"].given_up + len(series.data["ring"]) if "ring" in series.data else 0
        super().append(series, new)
        ring = series.data["ring"]
        count = min(len(ring), ring.given_up + len(ring) - before)
        moments = series.data.setdefault("moments", [])
        for index, part in enumerate(ring.columns[MAX_LEADING_COLUMNS:, len(ring) - count :]):
            if index == len(moments):
                moments.append(Moments())
            moments[index].add(part)

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield a row for each part."""
        rows = []
        for name, moments in zip(series.data.get("names", ()), series.data.get("moments", ()), strict=False):
            label = series.name if len(series.data["names"]) == 1 else f"{series.name} {name}"
            rows.append((label, f"{moments.count:,}", *(shown_text(figure) for figure in moments.figures())))
        yield TableMark(("", "count", "mean", "sd", "min", "max", "newest"), tuple(rows))

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return axes without titles."""
        return Axis(), Axis(), None

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return None: there is no axis."""
        return None


def _cells(row: Sequence[Any], width: int) -> list[str]:
    return [*(shown_text(part) for part in row[:width]), *[""] * (width - len(row))]


def _numbered(width: int, name: str) -> tuple[str, ...]:
    return (name,) if width == 1 else tuple(f"[{index}]" for index in range(width))


def _laid_out(value: Any, schema: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of a value; rows beyond the bound are empty."""
    if isinstance(value, Mapping):
        items = list(value.items())
        pairs = [[shown_text(name), shown_text(part)] for name, part in items[:MAX_ROWS]]
        return ["name", "value"], pairs + [[]] * (len(items) - MAX_ROWS)
    rows: list[Any] = value.tolist() if isinstance(value, np.ndarray) else list(_listed(value))
    more: list[list[str]] = [[]] * (len(rows) - MAX_ROWS)
    rows = rows[:MAX_ROWS]
    if rows and all(isinstance(row, Mapping) for row in rows):
        plain = [{str(name): shown_text(part) for name, part in row.items()} for row in rows]
        titles = list(dict.fromkeys(name for row in plain for name in row))
        return titles, [[row.get(name, "") for name in titles[:MAX_COLUMNS]] for row in plain] + more
    if rows and all(isinstance(row, tuple | list) for row in rows):
        width = max(map(len, rows))
        titles = list(schema if len(schema) == width else _numbered(width, "value"))
        return titles, [_cells(row, min(width, MAX_COLUMNS)) for row in rows] + more
    return ["", "value"], [[str(index), shown_text(row)] for index, row in enumerate(rows)] + more


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
