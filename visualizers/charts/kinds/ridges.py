"""Ridgelines: how the numbers of each layer are distributed, one above the other, older frames lighter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.choice import FRAME, Mode
from looptap.visualizers.charts.kinds.curves import fading
from looptap.visualizers.charts.kinds.histograms import Binned, binned
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe
from looptap.visualizers.drawing.picture import Axis, Grid, Line, Mark

RIDGES = 24
"""Layers up to which each has a ridge; of more, a heat map of layers by bins is drawn."""
_LAYERS = 500
_BINS = 64
_TRAIL = 4
_HEIGHT = 0.9

Layers: TypeAlias = dict[str, Binned]


class RidgelineChart(Chart):
    """A dict of arrays, or of (counts, edges), as ridges: the first on top."""

    kind: ClassVar[str] = "ridgeline"
    family: ClassVar[str] = "mat"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> Layers:
        """Counts and edges of each layer."""
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a dict of arrays, got {describe(value)}")
        if len(value) > _LAYERS:
            series.remarks["layers"] = f"the first {_LAYERS} of {len(value):,} layers are drawn"
        return {str(name): binned(part, _BINS) for name, part in list(value.items())[:_LAYERS]}

    def sketch(self, series: Series) -> Iterator[Mark]:
        """A ridge for each layer with fainter ones of earlier frames, or a heat map of many."""
        shown = series.frames.shown[-_TRAIL:]
        if not shown:
            return
        now = shown[-1]
        if len(now) > RIDGES:
            yield _grid(now, series.name)
            return
        places = {name: len(now) - 1 - index for index, name in enumerate(now)}
        left = min([float(edges[0]) for layers in shown for _, edges in layers.values()] or [0.0])
        for age, layers in zip(reversed(range(len(shown))), shown, strict=True):
            for name, (counts, edges) in layers.items():
                if name not in places:
                    continue
                base = float(places[name])
                height = base + _HEIGHT * counts / (counts.max() or 1.0)
                x, y = np.repeat(edges, 2), np.concatenate([[base], np.repeat(height, 2), [base]])
                label = series.name if not age and base == len(now) - 1 else ""
                filled, notes = (None, ()) if age else (base, ((0, name),))
                if not age:  # led to where the names of all stand
                    x, y = np.concatenate([[left], x]), np.concatenate([[base], y])
                yield Line(
                    x, y, name=label, color=series.color, opacity=fading(age), filled=filled, notes=notes,
                    side=series.side,
                )  # fmt: skip

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """The value; layers are named beside their ridges."""
        return Axis("value"), Axis("layer"), None


def _grid(layers: Layers, name: str) -> Grid:
    """A heat map: a row for each layer, a column for each bin of one range for all."""
    low = min(float(edges[0]) for _, edges in layers.values())
    high = max(float(edges[-1]) for _, edges in layers.values())
    edges = np.linspace(low, high, _BINS + 1)
    cells = np.array([_rebinned(one, edges) for one in layers.values()])
    columns = tuple(f"{middle:.3g}" for middle in (edges[:-1] + edges[1:]) / 2)
    return Grid(cells, tuple(layers), columns, name=name)


def _rebinned(one: Binned, edges: Floats) -> Floats:
    """The shares of the counts in other bins, as if the numbers lay evenly in theirs."""
    counts, own = one
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    found: Floats = np.diff(np.interp(edges, own, cumulative)) / (cumulative[-1] or 1.0)
    return found
