"""Ridgelines: a distribution per layer, stacked, older frames lighter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from looptap.visualizers.charts.base import FRAME, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.kinds.curves import fading
from looptap.visualizers.charts.kinds.histograms import Binned, binned
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import Floats, describe
from looptap.visualizers.drawing.picture import Axis, Grid, Line, Mark

MAX_RIDGES = 24
"""The most layers drawn as ridges; more are a heat map of layers by bins."""
_MAX_LAYERS = 500
_RIDGE_BINS = 64
_TRAIL_FRAMES = 4
_RIDGE_HEIGHT = 0.9

Layers: TypeAlias = dict[str, Binned]


class RidgelineChart(Chart):
    """A dict of arrays, or of (counts, edges), as ridges: the first on top."""

    kind: ClassVar[str] = "ridgeline"
    family: ClassVar[str] = "mat"
    mode: ClassVar[Mode] = FRAME

    def frame(self, series: Series, value: Any) -> Layers:
        """Return counts and edges of each layer."""
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a dict of arrays, got {describe(value)}")
        if len(value) > _MAX_LAYERS:
            series.remarks["layers"] = f"the first {_MAX_LAYERS} of {len(value):,} layers are drawn"
        return {str(name): binned(part, _RIDGE_BINS) for name, part in list(value.items())[:_MAX_LAYERS]}

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield a ridge per layer and fainter earlier ones; of many, a heat map."""
        shown = series.frames.shown[-_TRAIL_FRAMES:]
        if not shown:
            return
        now = shown[-1]
        if len(now) > MAX_RIDGES:
            yield _grid(now, series.name)
            return
        places = {name: len(now) - 1 - index for index, name in enumerate(now)}
        left = min([float(edges[0]) for layers in shown for _, edges in layers.values()] or [0.0])
        for age, layers in zip(reversed(range(len(shown))), shown, strict=True):
            for name, (counts, edges) in layers.items():
                if name not in places:
                    continue
                base = float(places[name])
                height = base + _RIDGE_HEIGHT * counts / (counts.max() or 1.0)
                x, y = np.repeat(edges, 2), np.concatenate([[base], np.repeat(height, 2), [base]])
                label = series.name if not age and base == len(now) - 1 else ""
                filled, notes = (None, ()) if age else (base, ((0, name),))
                if not age:  # extend it to the left edge, where the names are
                    x, y = np.concatenate([[left], x]), np.concatenate([[base], y])
                yield Line(
                    x, y, name=label, color=series.color, opacity=fading(age), filled=filled, notes=notes,
                    side=series.side,
                )  # fmt: skip

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the value; layers are named beside their ridges."""
        return Axis("value"), Axis("layer"), None


def _grid(layers: Layers, name: str) -> Grid:
    """Return a heat map: a row per layer, a column per bin of a shared range."""
    low = min(float(edges[0]) for _, edges in layers.values())
    high = max(float(edges[-1]) for _, edges in layers.values())
    edges = np.linspace(low, high, _RIDGE_BINS + 1)
    cells = np.array([_rebinned(one, edges) for one in layers.values()])
    columns = tuple(f"{middle:.3g}" for middle in (edges[:-1] + edges[1:]) / 2)
    return Grid(cells, tuple(layers), columns, name=name)


def _rebinned(one: Binned, edges: Floats) -> Floats:
    """Return the shares of counts in other bins, as if spread evenly in their own."""
    counts, own = one
    cumulative = np.concatenate([[0.0], np.cumsum(counts)])
    found: Floats = np.diff(np.interp(edges, own, cumulative)) / (cumulative[-1] or 1.0)
    return found
