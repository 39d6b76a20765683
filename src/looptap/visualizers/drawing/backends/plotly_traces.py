"""The panels of a picture as plotly's traces and layout, in plain data."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.drawing.axis_limits import Limits, span
from looptap.visualizers.drawing.label_placement import lifted
from looptap.visualizers.drawing.layouts import (
    CAPTION_SHARE,
    Panel,
    arrange,
    bar_labels,
    bar_sides,
    caption_lines,
    named,
    polygons,
    scale,
    thin,
    ticks,
    written,
)
from looptap.visualizers.drawing.picture import (
    Axis,
    Band,
    Bars,
    Grid,
    Images,
    Line,
    Mark,
    Numbers,
    Picture,
    Pie,
    Points,
    Table,
    Text,
)

MAX_TRACE_POINTS = 2000
"""The most points of a trace that SVG draws without a delay."""
MAX_HEATMAP_CELLS = 256
"""The most rows and columns of a heat map."""
LINE_CHARACTERS = 180
"""The approximate number of characters on a line across the whole figure."""
_MIN_WORD_GAP_PIXELS = 14
"""The least distance between two command lines that both have words."""
_LETTERS = {"family": "DejaVu Sans Mono, Menlo, Consolas, monospace", "size": 11}


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a panel: domains in 0 to 1, figure height in pixels, number."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: int
    number: int

    @property
    def suffix(self) -> str:
        """The suffix of its axes: "" for the first, "2" for the second."""
        return "" if self.number == 1 else str(self.number)

    def inside(self, left: float, bottom: float, right: float, top: float) -> tuple[list[float], list[float]]:
        """Return the two domains less margins, in pixels of a figure that is 900 wide."""
        across, up = (self.x[1] - self.x[0]), (self.y[1] - self.y[0])
        left, right, bottom, top = left / 900, right / 900, bottom / self.height, top / self.height
        shrink, squeeze = min(1.0, 0.7 * across / (left + right or 1)), min(1.0, 0.7 * up / (bottom + top or 1))
        ends = (
            (self.x[0] + left * shrink, self.x[1] - right * shrink),
            (self.y[0] + bottom * squeeze, self.y[1] - top * squeeze),
        )
        x, y = ([min(1.0, max(0.0, end)) for end in pair] for pair in ends)
        return x, y


def escaped(text: str) -> str:
    """Escape text for plotly: no tags, entities, formulas or templates."""
    return html.escape(text, quote=False).replace("$", "&#36;").replace("%{", "&#37;{")


def cut_label(text: str, letters: int) -> str:
    """Return text of at most so many characters."""
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def spot_traces(panel: Panel, picture: Picture, spot: Spot, traces: list[Any], layout: dict[str, Any]) -> None:
    """Add the traces of a panel, and what the layout needs for them."""
    match panel.kind:
        case "plane":
            _plane(panel, picture, spot, traces, layout)
        case "space":
            _space(panel, picture, spot, traces, layout)
        case _:
            (mark,) = panel.marks
            match mark:
                case Grid():
                    _grid(mark, picture, spot, traces, layout)
                case Images():
                    _images(mark, spot, traces, layout)
                case Pie():
                    traces.append(_pie(mark, spot))
                case Table():
                    traces.append(_table(mark, spot))
                case Text():
                    traces.append(_text(mark, spot))


def _plane(panel: Panel, picture: Picture, spot: Spot, traces: list[Any], layout: dict[str, Any]) -> None:
    n, labels = spot.suffix, bar_labels(panel.marks)
    second = spot.number + 100
    x, y = spot.inside(65, 50 if not labels else 60, 60 if picture.right else 15, 45 if picture.top else 5)
    layout[f"xaxis{n}"] = {**_axis(picture.x), "domain": x, "anchor": f"y{n}"}
    layout[f"yaxis{n}"] = {**_axis(picture.y), "domain": y, "anchor": f"x{n}"}
    refs = {"bottom": f"x{n}", "left": f"y{n}", "top": f"x{second}", "right": f"y{second}"}
    if picture.right:
        layout[f"yaxis{second}"] = {
            **_axis(picture.right), "overlaying": f"y{n}", "side": "right", "anchor": f"x{n}", "showgrid": False,
            "tickmode": "auto",
        }  # fmt: skip
    if picture.top:
        layout[f"xaxis{second}"] = {
            **_axis(picture.top), "overlaying": f"x{n}", "side": "top", "anchor": f"y{n}", "showgrid": False,
        }  # fmt: skip
    if labels:
        at = ticks(labels, 30)
        names = {"tickvals": [i for i, _ in at], "ticktext": [escaped(label) for _, label in at]}
        layout[f"xaxis{n}"].update(names)
    labelled = {id(mark) for mark in named(panel.marks, picture)}
    layout[f"legend{n}"] = _legend(x, y)
    size = 900 * (x[1] - x[0]), spot.height * (y[1] - y[0])
    for mark in panel.marks:
        across, side = picture.edges_of(mark)
        common = {
            "name": escaped(getattr(mark, "name", "")), "showlegend": id(mark) in labelled, "legend": f"legend{n}",
            "xaxis": refs[across], "yaxis": refs[side], "opacity": getattr(mark, "opacity", 1.0),
        }  # fmt: skip
        drawn = _marks(mark, panel, picture.edges[across], picture.edges[side], size)
        traces.extend({**common, **one} for one in drawn)
    below = [mark for mark in panel.marks if mark.across == "bottom" and not isinstance(mark, Bars)]
    shown = span(column for mark in below for column in mark.xs)
    _rules(picture, shown, size[0], {"xref": f"x{n}", "yref": f"y{n} domain"}, layout)


def _rules(picture: Picture, shown: Limits | None, width: float, refs: dict[str, str], layout: dict[str, Any]) -> None:
    """Add a dashed line for each command; of crowded ones only the last has words."""

    def scaled(at: float) -> float:
        return math.log10(at) if picture.x.log and at > 0 else at

    near = 0.0 if shown is None else _MIN_WORD_GAP_PIXELS * (scaled(shown[1]) - scaled(shown[0])) / max(1.0, width)
    line, taken = {"color": "#555555", "width": 1, "dash": "dash"}, list[float]()
    for rule in reversed(picture.rules):
        if shown is not None and not shown[0] <= rule.x <= shown[1]:
            continue
        (at,) = _values(np.array([rule.x]), picture.x)
        layout["shapes"].append({**refs, "type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line})
        place = scaled(rule.x)
        if not any(abs(other - place) < near for other in taken):
            taken.append(place)
            layout["annotations"].append(
                {**refs, "x": place if picture.x.log else at, "y": 1, "text": escaped(rule.text), "textangle": -90,
                 "showarrow": False, "xanchor": "right", "yanchor": "top", "font": {"size": 9, "color": "#555555"}}
            )  # fmt: skip


def _marks(mark: Mark, panel: Panel, x: Axis, y: Axis, size: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the traces of a mark in the plane, equally many for equal structures."""
    match mark:
        case Line():
            style = {"color": mark.color, "dash": mark.dash, "width": 1.6}
            across, up = thin(mark.x, mark.y, MAX_TRACE_POINTS)
            known = np.isfinite(up)
            alone = not (known[1:] & known[:-1]).any()
            line = {"type": "scatter", "x": _values(across, x), "y": _values(up, y), "line": style,
                    "mode": "markers" if alone else "lines", "marker": {"color": mark.color, "size": 4}}  # fmt: skip
            right, height, stands, texts = lifted(mark, x, y, size)
            notes = {"type": "scatter", "x": _values(right, x), "y": _values(height, y),
                     "mode": "text", "text": [escaped(text) for text in texts], "showlegend": False,
                     "textposition": stands, "hoverinfo": "skip"}  # fmt: skip
            area = []
            if mark.filled is not None:
                area = [_area(across, np.full(len(across), mark.filled), up, mark.color, 0.5 * mark.opacity, x, y)]
                area[0]["showlegend"] = False
            return [*area, line, notes]
        case Band():
            every = max(1, -(-len(mark.x) * 2 // (MAX_TRACE_POINTS - 2)))
            at = slice(None, None, every)
            return [_area(mark.x[at], mark.low[at], mark.high[at], mark.color, mark.opacity, x, y)]
        case Points():
            columns = {"x": _values(_some(mark.x), x), "y": _values(_some(mark.y), y)}
            return [{"type": "scatter", "mode": "markers", **columns, "marker": _dots(mark, 6)}]
    assert isinstance(mark, Bars)
    left, right = bar_sides(mark, panel.marks)
    here = np.isfinite(np.stack([left, right])).all(axis=0)
    widths = (right - left)[here] * (1000 if x.time and mark.edges is not None else 1)  # dates count milliseconds
    place = _values(left[here], x if mark.edges is not None else Axis())
    words = {"hovertext": [escaped(label) for label in mark.labels]} if mark.labels else {}
    bars = {"type": "bar", "x": place, "y": _values(mark.heights[here], y), "offset": 0, "width": widths}
    return [{**bars, "marker": {"color": mark.color, "line": {"width": 0}}, **words}]


def _area(
    x: Numbers, low: Numbers, high: Numbers, color: str, opacity: float, across: Axis, up: Axis
) -> dict[str, Any]:
    gap = np.array([[np.nan, np.nan]])
    outline = np.concatenate([part for area in polygons(x, low, high) for part in (area, gap)] or [gap])
    return {"type": "scatter", "x": _values(outline[:, 0], across), "y": _values(outline[:, 1], up), "mode": "lines",
            "line": {"width": 0, "color": color}, "fill": "toself", "fillcolor": color, "opacity": opacity,
            "hoverinfo": "skip"}  # fmt: skip


def _space(panel: Panel, picture: Picture, spot: Spot, traces: list[Any], layout: dict[str, Any]) -> None:
    n = spot.suffix
    x, y = spot.inside(5, 5, 5, 5)
    axes = (picture.x, picture.y, picture.z or Axis())
    camera = {"eye": {"x": 1.6, "y": 1.6, "z": 1.15}, "center": {"z": -0.15}}  # all labels of the axes are seen
    scene: dict[str, Any] = {"domain": {"x": x, "y": y}, "camera": camera}
    for name, axis in zip("xyz", axes, strict=True):  # space shows numbers: neither logarithms nor dates
        scene[f"{name}axis"] = _axis(Axis(axis.title, axis.low, axis.high), deep=True)
    layout[f"scene{n}"] = scene
    layout[f"legend{n}"] = _legend(x, y)
    labelled = {id(mark) for mark in named(panel.marks, picture)}
    for mark in panel.marks:
        assert isinstance(mark, Line | Points)
        assert mark.z is not None
        common = {"type": "scatter3d", "scene": f"scene{n}", "legend": f"legend{n}", "opacity": mark.opacity,
                  "name": escaped(mark.name), "showlegend": id(mark) in labelled}  # fmt: skip
        columns = {name: _some(column) for name, column in zip("xyz", (mark.x, mark.y, mark.z), strict=True)}
        if isinstance(mark, Points):
            traces.append({**common, **columns, "mode": "markers", "marker": _dots(mark, 3)})
            continue
        style = {"color": mark.color, "width": 4, "dash": mark.dash}
        traces.append({**common, **columns, "mode": "lines+markers" if len(mark.x) == 1 else "lines", "line": style})
        places = [i for i, _ in mark.notes]
        spots = {"x": mark.x[places], "y": mark.y[places], "z": mark.z[places]}
        words = {"mode": "text", "text": [escaped(text) for _, text in mark.notes], "showlegend": False}
        traces.append({**common, **spots, **words})


def _grid(mark: Grid, picture: Picture, spot: Spot, traces: list[Any], layout: dict[str, Any]) -> None:
    n = spot.suffix
    rows, columns = mark.cells.shape
    down, across = max(1, -(-rows // MAX_HEATMAP_CELLS)), max(1, -(-columns // MAX_HEATMAP_CELLS))
    cells = mark.cells[::down, ::across]
    if cells.size < mark.cells.size:
        layout["annotations"].append(
            {"showarrow": False, "xref": "paper", "yref": "paper", "x": spot.x[1], "y": spot.y[1], "xanchor": "right",
             "yanchor": "top", "text": f"{cells.shape[0]} × {cells.shape[1]} of {rows} × {columns} cells"}
        )  # fmt: skip
    x, y = spot.inside(
        45 + 6 * max(map(len, mark.rows), default=2), 45 + 5 * max(map(len, mark.columns), default=0),
        15 if mark.written else 70, 22,
    )  # fmt: skip
    plain = {"showgrid": False, "zeroline": False}
    layout[f"xaxis{n}"] = {**plain, "title": {"text": escaped(picture.x.title)}, "domain": x, "anchor": f"y{n}"}
    layout[f"yaxis{n}"] = {**plain, "title": {"text": escaped(picture.y.title)}, "domain": y, "anchor": f"x{n}",
                           "autorange": "reversed"}  # fmt: skip
    for key, labels in (("yaxis", mark.rows), ("xaxis", mark.columns)):
        if labels:
            at = ticks(labels, 30)
            layout[key + n].update(tickvals=[i for i, _ in at], ticktext=[escaped(text) for _, text in at])
    low, high = scale(mark.cells)
    bar = {"x": x[1] + 0.005, "xanchor": "left", "y": sum(y) / 2, "len": y[1] - y[0], "thickness": 10}
    trace: dict[str, Any] = {
        "type": "heatmap", "z": cells, "xaxis": f"x{n}", "yaxis": f"y{n}", "zmin": low, "zmax": high,
        "x": np.arange(0, columns, across), "y": np.arange(0, rows, down), "name": escaped(mark.name),
        "colorscale": "Blues" if mark.written else "Viridis", "showscale": not mark.written, "colorbar": bar,
        "hoverongaps": False,
    }  # fmt: skip
    if mark.written:
        trace |= {"text": [[written(cell) for cell in row] for row in cells], "texttemplate": "%{text}"}
    traces.append(trace)
    layout["annotations"].append(
        {"showarrow": False, "xref": "paper", "yref": "paper", "x": sum(x) / 2, "y": y[1], "yanchor": "bottom",
         "text": escaped(cut_label(mark.name, int((x[1] - x[0]) * LINE_CHARACTERS)))}
    )  # fmt: skip


def _images(mark: Images, spot: Spot, traces: list[Any], layout: dict[str, Any]) -> None:
    n, count = spot.suffix, len(mark.images)
    tall, wide = (max(image.shape[i] for image in mark.images) for i in (0, 1))
    rows, columns = arrange(count, -(-count // mark.columns) if mark.columns else None, wide / tall)
    columns = mark.columns or columns
    gap = (CAPTION_SHARE if mark.captions else 0.1) * max(tall, wide)
    corners = [((i % columns) * 1.1 * wide, (i // columns) * (tall + gap)) for i in range(count)]
    x, y = spot.inside(5, 5, 5, 5)
    layout[f"xaxis{n}"] = {"visible": False, "domain": x, "anchor": f"y{n}", "range": [0, columns * 1.1 * wide],
                           "constrain": "domain"}  # fmt: skip
    layout[f"yaxis{n}"] = {"visible": False, "domain": y, "anchor": f"x{n}", "range": [rows * (tall + gap), 0],
                           "scaleanchor": f"x{n}", "constrain": "domain"}  # fmt: skip
    axes, room = {"xaxis": f"x{n}", "yaxis": f"y{n}"}, max(4, int((x[1] - x[0]) * 0.6 * LINE_CHARACTERS / columns))
    for (left, top), image in zip(corners, mark.images, strict=True):
        traces.append({**axes, "type": "image", "source": png_uri(image), "x0": left + 0.5, "y0": top + 0.5,
                       "dx": 1, "dy": 1, "hoverinfo": "skip"})  # fmt: skip
    traces.append({
        **axes, "type": "scatter", "mode": "text", "x": [left + wide / 2 for left, _ in corners[: len(mark.captions)]],
        "y": [top + tall for _, top in corners[: len(mark.captions)]],
        "text": ["<br>".join(map(escaped, caption_lines(caption, room, 2))) for caption in mark.captions],
        "textposition": "bottom center", "cliponaxis": False, "hoverinfo": "skip", "showlegend": False,
    })  # fmt: skip


def png_uri(image: Numbers) -> str:
    """Return an image of uint8 as a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _pie(mark: Pie, spot: Spot) -> dict[str, Any]:
    x, y = spot.inside(20, 20, 20, 20)
    return {
        "type": "pie", "values": mark.shares, "labels": [str(i) for i in range(len(mark.shares))], "sort": False,
        "text": list(map(escaped, mark.labels)), "textinfo": "text+percent", "hoverinfo": "text+percent",
        "direction": "clockwise", "showlegend": False, "domain": {"x": x, "y": y},
        "marker": {"colors": [COLORS[i % len(COLORS)] for i in range(len(mark.shares))]},
    }  # fmt: skip


def _table(mark: Table, spot: Spot) -> dict[str, Any]:
    x, y = spot.inside(10, 5, 10, 5)
    columns = [list(map(escaped, column)) for column in zip(*mark.rows, strict=True)] or [[] for _ in mark.titles]
    return {
        "type": "table", "domain": {"x": x, "y": y},
        "header": {"values": [f"<b>{escaped(title)}</b>" for title in mark.titles], "align": "left"},
        "cells": {"values": columns, "align": "left"},
    }  # fmt: skip


def _text(mark: Text, spot: Spot) -> dict[str, Any]:
    x, y = spot.inside(10, 5, 10, 5)
    room = max(2, int((y[1] - y[0]) * spot.height / 22))
    lines = list(map(escaped, mark.lines))
    if len(lines) > room:
        lines = [f"… {len(lines) - room + 1} older lines", *lines[len(lines) - room + 1 :]]
    white = {"fill": {"color": "white"}, "line": {"color": "white"}}
    return {
        "type": "table", "domain": {"x": x, "y": y}, "header": {"values": [""], "height": 1, **white},
        "cells": {"values": [lines], "align": "left", "font": _LETTERS, **white},
    }  # fmt: skip


def _axis(axis: Axis, deep: bool = False) -> dict[str, Any]:
    """Return an axis; an open end follows the data."""
    found: dict[str, Any] = {"title": {"text": escaped(axis.title)}}
    if axis.title and not deep:
        found["title"]["standoff"] = 6
    if not deep:
        found |= {"zeroline": False, "automargin": False}
    if axis.ticks:
        found |= {"tickvals": [at for at, _ in axis.ticks], "ticktext": [escaped(name) for _, name in axis.ticks]}
    found["type"] = "date" if axis.time else "log" if axis.log else "linear"
    if axis.low is not None or axis.high is not None:
        ends = [None if end is None else _values(np.array([end]), axis)[0] for end in (axis.low, axis.high)]
        found["range"] = [float(np.log10(end)) if axis.log and end is not None else end for end in ends]
    return found


def _values(values: Numbers, axis: Axis) -> Any:
    """Return numbers unchanged, times as text: a FigureWidget has no date arrays."""
    if not axis.time:
        return values
    known = np.isfinite(values)
    words = np.datetime_as_string((np.where(known, values, 0) * 1000).astype("datetime64[ms]"))
    return [str(word) if there else None for word, there in zip(words, known, strict=True)]


def _dots(mark: Points, size: int) -> dict[str, Any]:
    if mark.values is None:
        return {"color": mark.color, "size": size}
    low, high = scale(mark.values)
    return {"color": _some(mark.values), "cmin": low, "cmax": high, "colorscale": "Viridis", "size": size}


def _some(column: Numbers) -> Numbers:
    return column[:: max(1, -(-len(column) // MAX_TRACE_POINTS))]


def _legend(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    where = {"x": x[1], "y": y[1], "xanchor": "right", "yanchor": "top"}
    return {**where, "bgcolor": "rgba(255,255,255,0.7)", "font": {"size": 10}}
