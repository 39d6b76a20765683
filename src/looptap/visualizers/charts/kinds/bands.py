"""Lines with a band of quantiles: names such as lo, mid, hi or q10, q50, q90."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS
from looptap.visualizers.charts.kinds.lines import LineChart, breaks_of, broken
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe
from looptap.visualizers.data.sample_buffer import thinned
from looptap.visualizers.drawing.picture import Axis, Mark
from looptap.visualizers.drawing.picture import Band as BandMark
from looptap.visualizers.drawing.picture import Line as LineMark


class BandChart(LineChart):
    """The middle as a line, and the area between each pair of low and high parts."""

    kind: ClassVar[str] = "band"

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return the names of the parts; unnamed: low, high or low, mid, high."""
        names, form = super().parts(series, value)
        found = schemas.band_of(names)
        if found is None:
            names = {2: ["low", "high"], 3: ["low", "mid", "high"], 4: ["x", "low", "mid", "high"]}.get(len(names), [])
            found = schemas.band_of(names) if form == "row" and names else None
        if found is None:
            raise TypeError(f"expected parts named lo, mid, hi or q10, q50, q90, got {describe(value)}")
        series.data["band"] = found
        return names, form

    def pair(self, series: Series) -> bool:
        """Return False: two parts are low and high."""
        return False

    def curves(self, series: Series, columns: Floats) -> Iterator[Mark]:
        """Yield the bands, widest first, then the middle line."""
        band = series.data["band"]
        axis = self.over(series, columns)
        parts = np.where(np.isfinite(columns[MAX_LEADING_COLUMNS:]), columns[MAX_LEADING_COLUMNS:], np.nan)
        every = {index for pair in band.pairs for index in pair} | ({band.middle} - {None})
        picked = np.unique(
            np.concatenate([thinned(parts[index], self.points if self.whole else 1000) for index in sorted(every)])
        )
        names, breaks = series.data["names"], breaks_of(series, columns)
        for low, high in band.pairs:
            name = f"{series.name} {names[low]}–{names[high]}"
            x, lower, upper = broken(picked, breaks, axis.x[picked], parts[low][picked], parts[high][picked])
            yield BandMark(x, lower, upper, name=name, color=series.color, side=series.side)
        if band.middle is not None:
            x, y = broken(picked, breaks, axis.x[picked], parts[band.middle][picked])
            yield LineMark(x, y, name=series.name, color=series.color, dash=series.dash, side=series.side)

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: x, and the name of what is in the band."""
        x, y, z = super().axes()
        mine = [one.name for one in self.own]
        return x, replace(y, title=mine[0] if len(mine) == 1 else ""), z
