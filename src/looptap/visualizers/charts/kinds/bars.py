"""Bars and pies: of (label, number) values, or of dicts as whole pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.base import APPEND, LABEL, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.reading.forms import form_of
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.data.numbers import describe, floats, number
from looptap.visualizers.drawing.picture import Axis, Mark
from looptap.visualizers.drawing.picture import Bars as BarsMark
from looptap.visualizers.drawing.picture import Pie as PieMark

MAX_BARS = 200
"""Bars that a stream may have."""
MAX_SLICES = len(COLORS)
"""Slices of a pie."""
_MAX_LABEL_CHARACTERS = 80


class BarsChart(Chart):
    """The newest number of each label, as a bar."""

    kind: ClassVar[str] = "bars"
    family: ClassVar[str] = "xy"
    mode: ClassVar[Mode] = APPEND

    def append(self, series: Series, new: Columns) -> None:
        """Add (label, number) values: the newest number of a label counts."""
        found = {}
        for value in new.values:
            if not re.fullmatch(r"\([ns][ns-]\)", form_of(value)):
                raise TypeError(f"expected (str, number), got {describe(value)}")
            found[str(value[0])[:_MAX_LABEL_CHARACTERS]] = number(value[1])
        self._merge(series, series.data.setdefault("bars", {}), found)

    def frame(self, series: Series, value: Any) -> dict[str, float]:
        """Return the numbers of a dict, or of an array by their indices."""
        found: dict[str, float] = {}
        if isinstance(value, list) and value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            pairs = {str(name)[:_MAX_LABEL_CHARACTERS]: part for name, part in value}
        elif isinstance(value, Mapping):
            pairs = {str(name)[:_MAX_LABEL_CHARACTERS]: part for name, part in value.items()}
        else:
            pairs = {str(index): part for index, part in enumerate(floats(value).ravel()[: MAX_BARS + 1].tolist())}
        self._merge(series, found, {name: _one(part) for name, part in pairs.items()})
        return found

    def _merge(self, series: Series, bars: dict[str, float], found: dict[str, float]) -> None:
        for name, height in found.items():
            if name in bars or len(bars) < MAX_BARS:
                bars[name] = height
            else:
                series.remarks["bars"] = f"the first {MAX_BARS} labels are drawn"

    def shown(self, series: Series) -> dict[str, float]:
        """Return a number for each label."""
        frames: list[dict[str, float]] = series.frames.shown or [series.data.get("bars", {})]
        return frames[-1]

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield a bar for each label."""
        bars = self.shown(series)
        heights = np.array(list(bars.values()), np.float64)
        opacity = 1.0 if len(self.series) == 1 else 0.6
        yield BarsMark(
            np.where(np.isfinite(heights), heights, np.nan),
            tuple(bars),
            name=series.name,
            color=series.color,
            opacity=opacity,
            side=series.side,
        )

    def units(self, series: Series) -> tuple[str, str]:
        """Return that x are labels, and y are heights."""
        return LABEL, "height"

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: labels, and numbers."""
        mine = [one.name for one in self.own]
        return Axis(), Axis(mine[0] if len(mine) == 1 else ""), None


class PieChart(BarsChart):
    """The share of each label; of many, the largest and all others together.

    A negative, NaN or infinite number has none.
    """

    kind: ClassVar[str] = "pie"
    family: ClassVar[str] = "pie"
    single: ClassVar[bool] = True

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the pie."""
        shares = {name: share for name, share in self.shown(series).items() if np.isfinite(share) and share > 0}
        if len(shares) > MAX_SLICES:  # a colour for each, and no colour twice
            largest = set(sorted(shares, key=shares.__getitem__, reverse=True)[: MAX_SLICES - 1])
            rest = {name: share for name, share in shares.items() if name not in largest}
            shares = {name: share for name, share in shares.items() if name in largest}
            shares[f"{len(rest)} others"] = sum(rest.values())
        yield PieMark(np.array(list(shares.values()), np.float64), tuple(shares))


def _one(value: Any) -> float:
    """Return the number in a value of one element. Raises TypeError."""
    if value is None or isinstance(value, bool | int | float | complex):
        return number(value)
    found = floats(value)
    if found.size != 1:
        raise TypeError(f"expected one number for each label, got {describe(value)}")
    return float(found.ravel()[0])
