"""From a `Picture` to what a page of a notebook needs: a layout as plain data, and columns of numbers beside it.

A column that only grows is sent from where the page has it; any other is sent anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from looptap.visualizers.picture import Axis, Band, Bars, Grid, Line, Numbers, Picture, Points

COARSE = 4_000
"""Numbers of a column in a frame that nobody may be there to receive."""


@dataclass(frozen=True, slots=True)
class Column:
    """Numbers, and how many there have been in all where the older ones only slide away; None: all may be new."""

    numbers: Numbers
    total: int | None = None
    most: int = 0
    """How many a page keeps of those that slide."""


@dataclass(frozen=True, slots=True)
class Growing:
    """The points of a line that slide by; ``key`` is the same as long as they are the same."""

    key: str
    x: Column
    y: Column


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture as a page gets it: ``layout`` is plain data, its marks name ``columns`` by their keys."""

    layout: dict[str, Any]
    columns: dict[str, Column]


def drawable(picture: Picture) -> bool:
    """Whether all marks of the picture are lines, bands, points, bars and grids of two dimensions."""
    return all(
        isinstance(mark, Line | Band | Points | Bars | Grid) and getattr(mark, "z", None) is None
        for mark in picture.marks
    )


def frame_of(picture: Picture, growing: Mapping[int, Growing] | None = None) -> Frame:
    """The frame of a picture that is `drawable`. ``growing`` has the points of lines, by their place, that slide."""
    columns: dict[str, Column] = {}
    marks = []
    labels: dict[str, Sequence[str]] = {"x": (), "y": ()}
    for place, mark in enumerate(picture.marks):
        about: dict[str, Any] = {"m": type(mark).__name__.lower()}
        slides = growing.get(place) if growing else None
        for field in fields(mark):
            value = getattr(mark, field.name)
            if slides is not None and field.name in ("x", "y"):
                about[field.name] = key = f"{slides.key}.{field.name}"
                columns[key] = getattr(slides, field.name)
            elif isinstance(value, np.ndarray):
                about[field.name] = f"{place}{field.name}"
                columns[f"{place}{field.name}"] = Column(np.ascontiguousarray(value, np.float64).ravel())
            else:
                about[field.name] = value
        marks.append(about)
        if isinstance(mark, Grid):
            about["shape"] = mark.cells.shape
            labels = {"x": mark.columns, "y": mark.rows}
        elif isinstance(mark, Bars) and mark.labels:
            labels = {"x": mark.labels, "y": ()}
    layout = {
        "title": picture.title,
        "x": _axis(picture.x),
        "y": _axis(picture.y),
        "right": None if picture.right is None else _axis(picture.right),
        "labels": labels,
        "marks": marks,
        "rules": [(rule.x, rule.text) for rule in picture.rules],
        "badges": picture.badges,
        "guess": picture.guess,
        "frame": picture.frame,
    }
    return Frame(layout, columns)


def _axis(axis: Axis) -> dict[str, Any]:
    return {"title": axis.title, "low": axis.low, "high": axis.high, "log": axis.log, "time": axis.time}


class Sent:
    """What the pages of a chart have; `update` tells what they lack."""

    def __init__(self) -> None:
        self._layout: dict[str, Any] | None = None
        self._totals: dict[str, int] = {}

    def update(self, frame: Frame, *, full: bool, coarse: bool = False) -> tuple[dict[str, Any], list[memoryview]]:
        """The message and the buffers that bring all pages up to ``frame``; ``full`` says everything.

        ``coarse`` reduces what it says, for pages that may not be there: the next frame to them must be full.
        """
        message: dict[str, Any] = {"full": full}
        if full or frame.layout != self._layout:
            message["layout"] = frame.layout
        self._layout = None if coarse else frame.layout
        data: list[tuple[str, bool, int]] = []
        buffers = []
        for key, column in frame.columns.items():
            numbers, fresh = column.numbers, True
            had = self._totals.get(key)
            if column.total is not None and had is not None and not full:
                new = column.total - had
                if 0 <= new <= len(numbers):
                    numbers, fresh = numbers[len(numbers) - new :], False
            if coarse:
                numbers = numbers[:: max(1, len(numbers) // COARSE)]
            data.append((key, fresh, max(column.most, len(numbers))))
            buffers.append(memoryview(np.array(numbers, np.float64)))  # a copy: it is sent by another thread
        self._totals = {} if coarse else {k: c.total for k, c in frame.columns.items() if c.total is not None}
        return message | {"data": data}, buffers


