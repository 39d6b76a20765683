"""Shared layout: the panels of a picture, their arrangement, places of bars."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from looptap.streams.text import cut
from looptap.visualizers.drawing.picture import (
    Band,
    Bars,
    Grid,
    Images,
    Line,
    Mark,
    Numbers,
    PanelKind,
    Picture,
    Pie,
    Points,
    Table,
)


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Marks that share axes, in the plane or in space, or a single other mark."""

    kind: PanelKind
    marks: tuple[Mark, ...]


CAPTION_SHARE = 0.55
"""Of the height of an image, the space below it for its caption."""

_MIN_NAME_CHARACTERS = 3  # of a name before its value in a caption; without room for them there is the value
_MAX_NOTES = 3  # beside a picture that cannot have them in it


def caption_lines(caption: str, letters: int, lines: int) -> list[str]:
    """Return a caption in up to ``lines`` lines of ``letters``, broken at commas.

    >>> caption_lines("label 7, drawn 3, loss 0.01", 9, 2), caption_lines("label 7, drawn 117, loss 0.01", 9, 2)
    (['label 7,', 'drawn 3…'], ['label 7,', 'drawn 117'])
    """
    found: list[str] = []
    for part in caption.split(", "):
        if found and len(f"{found[-1]}, {part}") <= letters:
            found[-1] += f", {part}"
        else:
            found.append(part)
    more = len(found) > lines
    ends = ["," if place < min(len(found), lines) - 1 else "…" * more for place in range(len(found))]
    whole = [line + end if len(line + end) <= letters else line for line, end in zip(found[:lines], ends, strict=False)]
    return [_shortened(line, max(3, letters)) for line in whole]


def _shortened(line: str, letters: int) -> str:
    """Return a line of at most so many letters; of "prediction 3" the 3 stays."""
    name, _, value = line.rpartition(" ")
    if len(line) <= letters or not name:
        return cut(line, letters)
    room = letters - len(value) - 1
    return f"{cut(name, room)} {value}" if room >= _MIN_NAME_CHARACTERS else cut(value, letters)


def panels(picture: Picture) -> tuple[Panel, ...]:
    """Return the panels of a picture by first mark; without marks an empty plane."""
    found: dict[Hashable, list[Mark]] = {}
    for place, mark in enumerate(picture.marks):
        key = mark.panel if mark.panel in ("plane", "space") else place
        found.setdefault(key, []).append(mark)
    return tuple(Panel(marks[0].panel, tuple(marks)) for marks in found.values()) or (Panel("plane", ()),)


def structure(picture: Picture) -> Hashable:
    """Return what stays the same while only data changes, to keep the artists."""
    axes = tuple(
        None if axis is None else (axis.title, axis.log, axis.time, axis.low, axis.high, axis.ticks)
        for axis in (picture.x, picture.y, picture.z, picture.top, picture.right)
    )
    return axes, picture.title, len(picture.rules), bool(picture.guess), tuple(map(_build, picture.marks))


def arrange(count: int, rows: int | None = None, wide: float = 1.5) -> tuple[int, int]:
    """Return rows and columns for ``count`` panels; ``wide`` is their aspect ratio.

    >>> arrange(4), arrange(3, rows=1)
    ((2, 2), (1, 3))
    """
    if rows is None:
        columns = max(1, min(count, round(math.sqrt(count * 1.5 / wide) + 0.1)))
        return math.ceil(count / columns), columns
    rows = max(1, min(rows, count))
    return rows, math.ceil(count / rows)


def bar_labels(marks: Sequence[Mark]) -> tuple[str, ...]:
    """Return all bar labels once: the index of a label is the place of its bar."""
    return tuple(dict.fromkeys(label for mark in marks if isinstance(mark, Bars) for label in mark.labels))


def bar_sides(mark: Bars, marks: Sequence[Mark]) -> tuple[Numbers, Numbers]:
    """Return the left and right edges of a mark's bars, grouped with other ``marks``."""
    if mark.edges is not None:
        return np.minimum(mark.edges[:-1], mark.edges[1:]), np.maximum(mark.edges[:-1], mark.edges[1:])
    labelled = [other for other in marks if isinstance(other, Bars) and other.edges is None]
    place = {label: i for i, label in enumerate(bar_labels(marks))}
    width = 0.8 / len(labelled)
    left = np.array([place[label] for label in mark.labels], float) - 0.4 + labelled.index(mark) * width
    return left, left + width


def polygons(x: Numbers, low: Numbers, high: Numbers) -> list[Numbers]:
    """Return an outline (n, 2) for each gapless part of the area between two curves."""
    known = np.isfinite([x, low, high]).all(axis=0)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    return [
        np.column_stack([np.r_[x[a:b], x[a:b][::-1]], np.r_[low[a:b], high[a:b][::-1]]])
        for a, b in list(pairwise(ends))[::2]
    ]


def thin(x: Numbers, y: Numbers, most: int) -> tuple[Numbers, Numbers]:
    """Return at most ``most`` points: the lowest and highest of each stretch."""
    if len(y) <= most:
        return x, y
    stretch = -(-len(y) * 2 // (most - 2))
    whole = len(y) // stretch * stretch
    known = np.nan_to_num(y[:whole]).reshape(-1, stretch)
    start = np.arange(0, whole, stretch)
    picked = np.unique(np.r_[start + known.argmin(1), start + known.argmax(1), whole - 1, len(y) - 1])
    return x[picked], y[picked]


def shrunk(cells: Numbers, rows: int, columns: int) -> Numbers:
    """Return at most so many rows and columns, evenly picked."""
    down, across = (
        np.linspace(0, n - 1, min(n, most)).round().astype(int)
        for n, most in zip(cells.shape, (rows, columns), strict=True)
    )
    picked: Numbers = cells[np.ix_(down, across)]
    return picked


def ticks(labels: Sequence[str], most: int) -> list[tuple[int, str]]:
    """Return at most ``most`` of the labels with their places, evenly spread."""
    step = max(1, math.ceil(len(labels) / max(1, most)))
    return [(i, labels[i]) for i in range(0, len(labels), step)]


def scale(values: Numbers) -> tuple[float, float]:
    """Return the smallest and largest finite number, apart from each other."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return low - 0.5 - abs(low), high + 0.5 + abs(high)


def written(cell: float) -> str:
    """Return a number as it is written in a cell.

    >>> written(12.0), written(0.12345), written(float("nan"))
    ('12', '0.123', '')
    """
    if cell != cell:
        return ""
    return f"{cell:.0f}" if cell == round(cell) and abs(cell) < 1e6 else f"{cell:.3g}"


def frame_words(picture: Picture) -> str:
    """Return which of the kept frames is shown, counted from one."""
    return f"frame {picture.frame[0] + 1} of {picture.frame[1]}" if picture.frame and picture.frame[1] > 1 else ""


def notes_of(picture: Picture) -> list[tuple[float | None, str]]:
    """Return the newest notes of lines with their x; those of ridges are one."""
    ridges = dict(picture.y.ticks)
    lines = [mark for mark in picture.marks if isinstance(mark, Line) and mark.notes and mark.z is None]
    layers = [f"{ridges[mark.filled]} {mark.notes[0][1]}" for mark in lines if mark.filled in ridges]
    found = [(float(mark.x[i]), text) for mark in lines if mark.filled is None for i, text in mark.notes]
    return [*([(None, ", ".join(layers))] if layers else []), *sorted(found)[-_MAX_NOTES:]]


def time_words(seconds: float) -> str:
    """Return a wall-clock time, to the second."""
    return str(np.datetime64(int(seconds), "s")).replace("T", " ")


def named(marks: Sequence[Mark], picture: Picture) -> list[Line | Band | Points | Bars]:
    """Return the marks of a legend, each name once; none if a title has the only one."""
    found: dict[str, Line | Band | Points | Bars] = {}
    for mark in marks:
        if isinstance(mark, Line | Band | Points | Bars) and mark.name and (mark.name not in found):
            found[mark.name] = mark
    titled = picture.title or any(axis and axis.title in found for axis in (picture.y, picture.z, picture.right))
    return [] if len(found) == 1 and titled else list(found.values())


def _build(mark: Mark) -> Hashable:
    common = (
        type(mark).__name__,
        *(getattr(mark, field, None) for field in ("name", "color", "opacity", "side", "across")),
    )
    match mark:
        case Line():
            return *common, mark.z is None, mark.dash, mark.filled is None
        case Points():
            return *common, mark.z is None, mark.values is None
        case Bars():
            return *common, mark.edges is None, mark.labels
        case Grid():
            return *common, mark.cells.shape, mark.rows, mark.columns, mark.written
        case Images():
            return *common, tuple(image.shape for image in mark.images), bool(mark.captions), mark.columns
        case Pie():
            return *common, len(mark.shares)
        case Table():
            return *common, len(mark.titles)
    return common
