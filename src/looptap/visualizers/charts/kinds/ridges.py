"""Ridgelines: a distribution per layer, stacked, older frames lighter.

The layers are the ticks of the upright axis; mean and deviation of the newest numbers stand on the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
_NOTE_SHARE = 0.2  # of the width, right of the ridges

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
        shown: list[Layers] = series.frames.shown[-_TRAIL_FRAMES:]
        places = self._places()
        if not shown:
            return
        if len(places) > MAX_RIDGES:
            yield _grid(shown[-1], series.name)
            return
        low, high = _span(shown)
        end = high + _NOTE_SHARE * (high - low)  # room for the notes
        for age, layers in zip(reversed(range(len(shown))), shown, strict=True):
            label = "" if age else series.name
            for name, one in layers.items():
                if name not in places or not one[0].any():
                    continue
                base, (counts, edges) = places[name], _wide(one, 0.01 * (high - low))
                height = base + _RIDGE_HEIGHT * counts / counts.max()
                x, y = np.repeat(edges, 2), np.concatenate([[base], np.repeat(height, 2), [base]])
                if not age:  # the base line is as long as the chart is wide
                    x, y = np.r_[low, x, end], np.r_[base, y, base]
                notes = () if age or len(self.series) > 1 else ((len(x) - 1, _moments(one)),)
                yield Line(
                    x,
                    y,
                    name=label,
                    color=series.color,
                    opacity=fading(age),
                    filled=None if age else base,
                    notes=notes,
                    side=series.side,
                )
                label = ""

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes: the value, and the layers at their ridges."""
        places = self._places()
        if len(places) > MAX_RIDGES:
            return Axis("value"), Axis("layer"), None
        ticks = tuple((base, name) for name, base in places.items())
        return Axis("value"), Axis(low=-0.1, high=max(1, len(places)) + 0.1, ticks=ticks), None

    def _places(self) -> dict[str, float]:
        """Return the height at which each layer stands, the first on top."""
        newest = [one.frames.shown[-1] for one in self.series if one.frames.shown]
        names = list(dict.fromkeys(name for layers in newest for name in layers))
        return {name: float(len(names) - 1 - place) for place, name in enumerate(names)}


def _span(shown: Iterable[Layers]) -> tuple[float, float]:
    """Return the ends of the axis: layers of one number count by that alone."""
    known = [one for layers in shown for one in layers.values() if one[0].any()]
    ends = [end for counts, edges in known for end in ((edges[0], edges[-1]) if len(counts) > 1 else (edges.mean(),))]
    low, high = (float(min(ends)), float(max(ends))) if ends else (0.0, 1.0)
    return (low, high) if high > low else (low - (abs(low) or 1.0), high + (abs(high) or 1.0))


def _wide(one: Binned, least: float) -> Binned:
    """Return the bins of a layer; of one number a bin that can be seen."""
    counts, edges = one
    return one if len(counts) > 1 else (counts, edges.mean() + np.array([-0.5, 0.5]) * least)


def _moments(one: Binned) -> str:
    """Return mean and deviation of what was binned."""
    counts, edges = one
    if len(counts) == 1:
        return f"{_readable(float(edges.mean()))} ± 0"
    middles, weights = (edges[:-1] + edges[1:]) / 2, counts / counts.sum()
    mean = float((weights * middles).sum())
    return f"{_readable(mean)} ± {float(np.sqrt((weights * (middles - mean) ** 2).sum())):.1g}"


def _readable(mean: float) -> str:
    return f"{mean:.2g}" if mean else "0"


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
