"""The kinds of charts by their names, a user's own among them: `register`."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.choice import FITS, KINDS, kind_named

_ROOMS = {
    "line": "lines.LineChart",
    "line3d": "space.LineChart3D",
    "annotated": "lines.AnnotatedLineChart",
    "annotated3d": "space.AnnotatedLineChart3D",
    "band": "bands.BandChart",
    "bars": "bars.BarsChart",
    "confusion": "matrices.ConfusionChart",
    "curve": "curves.CurveChart",
    "heatmap": "matrices.HeatMapChart",
    "histogram": "histograms.HistogramChart",
    "image": "images.ImageChart",
    "images": "images.ImagesChart",
    "pie": "bars.PieChart",
    "ridgeline": "ridges.RidgelineChart",
    "scatter": "scatters.ScatterChart",
    "scatter3d": "scatters.ScatterChart3D",
    "summary": "tables.SummaryChart",
    "table": "tables.TableChart",
    "text": "texts.TextChart",
}
"""Where the kinds are that come with looptap: loaded when the first of them is drawn."""
_kinds: dict[str, type[Chart]] = {}

Kind = TypeVar("Kind", bound=type[Chart])


def register(kind: Kind) -> Kind:
    """A class decorator that makes a subclass of `Chart` known by its ``kind``, for ``looptap.plot(s, chart=kind)``.

    A class with a static method ``fits(value)`` is also chosen for values for which that is true, before the table of
    docs/charts.md. Raises ValueError if the class does not say its ``kind`` and ``family``.
    """
    name, family = getattr(kind, "kind", ""), getattr(kind, "family", "")
    if not (isinstance(name, str) and name and isinstance(family, str) and family):
        raise ValueError(f"{kind.__name__} must say what it is, as in kind = 'violin' and family = 'xy'.")
    KINDS[name] = (family, (kind.mode,))
    _kinds[name] = kind
    FITS.pop(name, None)
    if callable(fits := getattr(kind, "fits", None)):
        FITS[name] = fits
    return kind


def find(name: str) -> type[Chart]:
    """The class of that kind of chart. Raises ValueError for one that there is not."""
    name = kind_named(name)
    if name not in _kinds:
        module, _, found = _ROOMS[name].partition(".")
        _kinds[name] = getattr(import_module(f"looptap.visualizers.charts.kinds.{module}"), found)
    return _kinds[name]
