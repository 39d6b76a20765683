"""Frames for a notebook's pages: a layout as plain data, columns of numbers.

A column that only grows is sent from where the page has it; any other is sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from looptap.visualizers.drawing.layouts import Panel, bar_labels, bar_sides, panels
from looptap.visualizers.drawing.picture import Axis, Bars, Grid, Images, Mark, Numbers, Picture, Points
from looptap.visualizers.drawing.sanitize import sanitize

MAX_COARSE_NUMBERS = 4_000
"""The most numbers of a column in a frame that may have no receiver."""


_NO_OFFERS = {"smooth": None, "clip": False, "over": "", "xs": (), "queries": ()}


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers; ``total`` counts all there have been if the column only grows."""

    numbers: Numbers
    total: int | None = None
    most: int = 0
    """The most numbers that a page keeps of a growing column."""


@dataclass(frozen=True, slots=True)
class Growing:
    """The points of a line that only grows; a new ``key`` means other points."""

    key: str
    x: Column
    y: Column


@dataclass(frozen=True, slots=True)
class CanvasFrame:
    """A picture for a page: its marks in ``layout`` name ``columns`` by their keys."""

    layout: dict[str, Any]
    columns: dict[str, Column]


def frame_of(picture: Picture, growing: Mapping[int, Growing] | None = None) -> CanvasFrame:
    """Return the frame of a picture; ``growing`` are its growing lines by mark index."""
    found = sanitize(picture)
    sliding = {id(found.marks[place]): column for place, column in (growing or {}).items()}
    columns: dict[str, Column] = {}
    laid_out = [_panel(panel, f"{i}", sliding, columns) for i, panel in enumerate(panels(found))]
    layout = {
        "title": found.title,
        "x": _axis(found.x),
        "y": _axis(found.y),
        "z": _axis(found.z),
        "top": _axis(found.top),
        "right": _axis(found.right),
        "panels": laid_out,
        "rules": [(rule.x, rule.text) for rule in found.rules],
        "badges": found.badges,
        "guess": found.guess,
        "frame": found.frame,
        **_NO_OFFERS,
        **found.offers,
    }
    return CanvasFrame(layout, columns)


def _panel(panel: Panel, key: str, sliding: Mapping[int, Growing], columns: dict[str, Column]) -> dict[str, Any]:
    marks = [_mark(mark, f"{key}.{i}", panel, sliding.get(id(mark)), columns) for i, mark in enumerate(panel.marks)]
    return {"kind": panel.kind, "marks": marks, "labels": bar_labels(panel.marks)}


def _mark(mark: Mark, key: str, panel: Panel, slides: Growing | None, columns: dict[str, Column]) -> dict[str, Any]:
    about: dict[str, Any] = {"m": type(mark).__name__.lower()}
    arrays: dict[str, Column] = {}
    for field in fields(mark):
        value = getattr(mark, field.name)
        if slides is not None and field.name in ("x", "y"):
            about[field.name] = f"{slides.key}.{field.name}"
            columns[about[field.name]] = getattr(slides, field.name)
        elif isinstance(value, np.ndarray):
            arrays[field.name] = Column(np.ascontiguousarray(value, np.float64).ravel())
        else:
            about[field.name] = value
    if isinstance(mark, Grid):
        about["shape"] = mark.cells.shape
    elif isinstance(mark, Bars):
        left, right = bar_sides(mark, panel.marks)
        arrays |= {"left": Column(left), "right": Column(right)}
    elif isinstance(mark, Images | Points):
        about["images"] = [image.shape for image in mark.images]
        arrays |= {f"image{i}": Column(np.ascontiguousarray(image)) for i, image in enumerate(mark.images)}
    for name, column in arrays.items():
        about.setdefault(name, f"{key}.{name}")
        columns[f"{key}.{name}"] = column
    if isinstance(mark, Images | Points):
        about["key"] = key
    return about


def _axis(axis: Axis | None) -> dict[str, Any] | None:
    if axis is None:
        return None
    return {
        "title": axis.title,
        "low": axis.low,
        "high": axis.high,
        "log": axis.log,
        "time": axis.time,
        "ticks": axis.ticks,
    }


class SentFrame:
    """The frame that a chart's pages have; `update` returns the changes."""

    def __init__(self) -> None:
        self._layout: dict[str, Any] | None = None
        self._totals: dict[str, int] = {}

    def update(
        self, frame: CanvasFrame, *, full: bool, coarse: bool = False
    ) -> tuple[dict[str, Any], list[memoryview]]:
        """Return message and buffers for ``frame``: what changed, or all if ``full``.

        ``coarse`` sends fewer points, for pages that may not be there; the next frame is then sent in full.
        """
        message: dict[str, Any] = {"full": full}
        if full or frame.layout != self._layout:
            message["layout"] = frame.layout
        self._layout = None if coarse else frame.layout
        data: list[tuple[str, bool, int, bool]] = []
        buffers = []
        for key, column in frame.columns.items():
            numbers, fresh = column.numbers, True
            had = self._totals.get(key)
            if column.total is not None and had is not None and not full:
                new = column.total - had
                if 0 <= new <= len(numbers):
                    numbers, fresh = numbers[len(numbers) - new :], False
            if coarse and column.total is not None:
                numbers = numbers[:: max(1, len(numbers) // MAX_COARSE_NUMBERS)]
            pixels = numbers.dtype == np.uint8
            data.append((key, fresh, max(column.most, numbers.size), pixels))
            # A copy: it is sent by another thread.
            buffers.append(memoryview(numbers.tobytes() if pixels else np.array(numbers, np.float64).tobytes()))
        self._totals = {} if coarse else {k: c.total for k, c in frame.columns.items() if c.total is not None}
        return message | {"data": data}, buffers
