"""The kinds of charts by name, including users' own: `register`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from looptap.streams.expressions import nearest
from looptap.visualizers.charts.base import APPEND, FRAME, ChartKind, Mode


class KindEntry(NamedTuple):
    """A kind of chart, as known before its module is loaded."""

    family: str
    modes: tuple[Mode, ...]
    """The modes it can draw in, the usual one first."""
    found_at: str = ""
    """The module in `charts.kinds` and the class, for the kinds that come with looptap."""
    fits: Callable[[Any], bool] | None = None
    """Returns whether a user's own kind is chosen for a value."""


KINDS: dict[str, KindEntry] = {
    "line": KindEntry("xy", (APPEND,), "lines.LineChart"),
    "line3d": KindEntry("xyz", (APPEND,), "space.LineChart3D"),
    "annotated": KindEntry("xy", (APPEND,), "lines.AnnotatedLineChart"),
    "annotated3d": KindEntry("xyz", (APPEND,), "space.AnnotatedLineChart3D"),
    "bars": KindEntry("xy", (APPEND, FRAME), "bars.BarsChart"),
    "band": KindEntry("xy", (APPEND,), "bands.BandChart"),
    "curve": KindEntry("xy", (FRAME,), "curves.CurveChart"),
    "histogram": KindEntry("hist", (FRAME, APPEND), "histograms.HistogramChart"),
    "confusion": KindEntry("mat", (FRAME,), "matrices.ConfusionChart"),
    "scatter": KindEntry("xy", (FRAME, APPEND), "scatters.ScatterChart"),
    "scatter3d": KindEntry("xyz", (FRAME, APPEND), "scatters.ScatterChart3D"),
    "tsne": KindEntry("xy", (FRAME,), "scatters.TsneChart"),
    "umap": KindEntry("xy", (FRAME,), "scatters.UmapChart"),
    "heatmap": KindEntry("mat", (FRAME,), "matrices.HeatMapChart"),
    "image": KindEntry("img", (FRAME,), "images.ImageChart"),
    "images": KindEntry("img", (FRAME,), "images.ImagesChart"),
    "layers": KindEntry("mat", (APPEND,), "layers.LayersChart"),
    "flow": KindEntry("xy", (FRAME,), "layers.FlowChart"),
    "ridgeline": KindEntry("mat", (FRAME,), "ridges.RidgelineChart"),
    "text": KindEntry("text", (APPEND,), "tables.TextChart"),
    "table": KindEntry("text", (FRAME, APPEND), "tables.TableChart"),
    "summary": KindEntry("text", (APPEND,), "tables.SummaryChart"),
    "pie": KindEntry("pie", (FRAME, APPEND), "bars.PieChart"),
    "parallel": KindEntry("parallel", (FRAME,), "curves.ParallelChart"),
}
"""The kinds of charts by name, in the order in which messages list them."""

ALIASES = {
    "lines": "line",
    "2d": "line",
    "3d": "line3d",
    "bar": "bars",
    "hist": "histogram",
    "points": "scatter",
    "matrix": "heatmap",
    "confusion matrix": "confusion",
    "quantiles": "band",
    "imshow": "image",
    "grid": "images",
    "ridge": "ridgeline",
    "t-sne": "tsne",
    "gradient flow": "flow",
    "heat map": "heatmap",
    "layers over time": "layers",
    "parallel coordinates": "parallel",
}
"""Other names of kinds."""

_loaded: dict[str, type[ChartKind]] = {}

Kind = TypeVar("Kind", bound=type[ChartKind])


def register(kind: Kind) -> Kind:
    """Register a subclass of `Chart` under its ``kind``: a class decorator.

    ``looptap.plot(s, chart=kind)`` then draws it. A class with a static method ``fits(value)`` is also chosen for
    values for which that is true, before the table of docs/charts.md. Raises ValueError if the class lacks ``kind`` or
    ``family``.
    """
    name, family = getattr(kind, "kind", ""), getattr(kind, "family", "")
    if not (isinstance(name, str) and name and isinstance(family, str) and family):
        raise ValueError(f"{kind.__name__} must say what it is, as in kind = 'violin' and family = 'xy'.")
    fits = getattr(kind, "fits", None)
    KINDS[name] = KindEntry(family, (kind.mode,), fits=fits if callable(fits) else None)
    _loaded[name] = kind
    return kind


def kind_named(name: str) -> str:
    """Return the kind that a user means by ``name``. Raises ValueError if none."""
    kind = name.strip().lower()
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS:
        hint = nearest(kind, KINDS)
        raise ValueError(f"There is no chart {name!r:.80}; there are {', '.join(KINDS)}. {hint}".strip())
    return kind


def chart_class(name: str) -> type[ChartKind]:
    """Return the class of a kind of chart. Raises ValueError if there is none."""
    name = kind_named(name)
    if name not in _loaded:
        module, _, found = KINDS[name].found_at.partition(".")
        _loaded[name] = getattr(import_module(f"looptap.visualizers.charts.kinds.{module}"), found)
    return _loaded[name]
