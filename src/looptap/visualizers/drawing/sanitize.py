"""`sanitize`: makes a picture safe to draw: finite numbers or NaN, clean text."""

from __future__ import annotations

import re
import time
import unicodedata
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from looptap.visualizers.data.colors import COLORS, LIGHT, Theme
from looptap.visualizers.drawing.axis_limits import apart
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
    VerticalLine,
)

MAX_MAGNITUDE = 1e100
"""Larger numbers are clipped to this: beyond it the libraries' own arithmetic overflows."""
MAX_NOTES = 100
MAX_IMAGES = 400
MAX_BARS = 500
MAX_ROWS = 200
MAX_COLUMNS = 30
MAX_LINES = 1000
MAX_VERTICAL_LINES = 100
MAX_NAME_CHARACTERS = 60
"""The most of each that a surface draws; a badge counts the rest."""

_MAX_READ_NAME_CHARACTERS = 400
_NAMED = {
    "black": "#000000",
    "blue": "#0000ff",
    "brown": "#a52a2a",
    "cyan": "#00ffff",
    "gray": "#808080",
    "green": "#008000",
    "grey": "#808080",
    "magenta": "#ff00ff",
    "olive": "#808000",
    "orange": "#ffa500",
    "pink": "#ffc0cb",
    "purple": "#800080",
    "red": "#ff0000",
    "white": "#ffffff",
    "yellow": "#ffff00",
}
_PLOTTABLE_EPOCH_SECONDS = (-8.5e9, 10.5e9)  # the years 1700 to 2300: other numbers are no dates


@lru_cache(maxsize=8192)
def clean(text: str, most: int = 120) -> str:
    """Return one line of at most ``most`` characters, � for the unprintable ones.

    >>> clean("a\\x1b[31m\\tb")
    'a�[31m b'
    """
    text = text[: 4 * most]
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
    shown = "".join(c for i, c in enumerate(shown) if i < 8 or not _piled(shown, i))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def short_name(name: str, most: int = MAX_NAME_CHARACTERS) -> str:
    """Return a name of at most ``most`` characters; of a longer one both ends stay.

    In the path of a layer, as many parts as necessary are their first letters, from the left.

    >>> short_name("encoder.layer.10.attention.query.weight", 24)
    'e.l.10.a.query.weight'
    >>> short_name("the loss of the first of two models", 24)
    'the loss of the…o models'
    """
    name = clean(name, _MAX_READ_NAME_CHARACTERS)
    *parts, last = name.split(".") if " " not in name else [name]
    for i, part in enumerate(parts):
        if len(name) <= most:
            break
        parts[i] = part if part.isdecimal() else part[:1]
        name = ".".join([*parts, last])
    end = most // 3
    return name if len(name) <= most else f"{name[: max(0, most - end - 1)]}…{name[len(name) - end :]}"


def color_of(color: str, index: int) -> str:
    """Return #rrggbb: ``color`` if it is known, else the index-th of our colours."""
    known = color if re.fullmatch(r"#[0-9a-fA-F]{6}", color) else _NAMED.get(color)
    return known or COLORS[index % len(COLORS)]


def flat_floats(values: Any) -> Numbers:
    """Return one dimension of float64, infinities as NaN, magnitudes bounded."""
    numbers: Numbers = np.array(values, dtype=np.float64).ravel()
    numbers[np.isinf(numbers)] = np.nan
    np.clip(numbers, -MAX_MAGNITUDE, MAX_MAGNITUDE, out=numbers)
    return numbers


def local_time(seconds: Numbers) -> Numbers:
    """Shift seconds since the epoch so that a library showing UTC shows local time."""
    known = seconds[np.isfinite(seconds)]
    newest = float(np.clip(known.max(), *_PLOTTABLE_EPOCH_SECONDS)) if known.size else 0.0
    shifted: Numbers = np.clip(seconds + time.localtime(newest).tm_gmtoff, *_PLOTTABLE_EPOCH_SECONDS)
    return shifted


def sanitize(picture: Picture, theme: Theme = LIGHT) -> Picture:
    """Return a picture whose numbers, texts and colours every library can draw.

    Badges name what is left out. `local_time` shifts times, so do this once. What is empty becomes a
    `Text` that says so. Our colours become those of ``theme``.
    """
    notices: list[str] = []
    axes = {edge: _axis(axis) for edge, axis in picture.edges.items()}
    x, y, space = axes["bottom"], axes["left"], _axis(picture.z or Axis())
    if any(isinstance(mark, Bars) and mark.edges is None for mark in picture.marks):
        x = axes["bottom"] = Axis(x.title)  # labels are at 0, 1, 2, ...
    marks = []
    for place, mark in enumerate(picture.marks):
        edges = getattr(mark, "across", ""), getattr(mark, "side", "")
        color = theme.of(color_of(getattr(mark, "color", ""), place))
        marks.append(_mark(mark, color, axes.get(edges[0], x), axes.get(edges[1], y), space, notices))
    for mark in marks:
        axes = {mark.across: Axis(), mark.side: Axis()} | axes
    rules = [
        VerticalLine(float(at[0]), clean(rule.text, 60)) for rule in picture.rules if (at := _along([rule.x], x)).size
    ]
    rules = [rule for rule in rules if rule.x == rule.x]
    _tell(notices, len(rules), MAX_VERTICAL_LINES, "newest rules")
    badges = [*(clean(badge, 300) for badge in picture.badges[:20]), *notices]
    return Picture(
        marks=tuple(marks),
        title=clean(picture.title),
        x=x,
        y=y,
        z=space if picture.z else None,
        top=axes.get("top"),
        right=axes.get("right"),
        rules=tuple(rules[-MAX_VERTICAL_LINES:]),
        badges=tuple(badges),
        guess=clean(picture.guess, 300),
        frame=picture.frame,
        offers=picture.offers,
    )


def _mark(mark: Mark, color: str, x: Axis, y: Axis, space: Axis, notices: list[str]) -> Mark:
    match mark:
        case Line() | Points() | Band() | Bars():
            named = replace(mark, name=short_name(mark.name), color=color, opacity=_opacity(mark.opacity))
            return _drawn(named, x, y, space, notices)
        case Grid():
            return _grid(mark)
        case Images():
            return _images(mark, notices)
        case Pie():
            shares = np.maximum(np.nan_to_num(flat_floats(mark.shares)), 0.0)
            _tell(notices, len(shares), MAX_COLUMNS, "first shares")
            shares = shares[:MAX_COLUMNS]
            if not shares.sum() > 0:
                return Text(("There is nothing to draw yet.",))
            return Pie(shares / shares.sum(), _padded(mark.labels, len(shares), 40))
        case Table():
            _tell(notices, len(mark.rows), MAX_ROWS, "first rows")
            width = max([len(mark.titles), *map(len, mark.rows)], default=0)
            _tell(notices, width, MAX_COLUMNS, "first columns")
            width = min(width, MAX_COLUMNS)
            return Table(_cells(mark.titles, width), tuple(_cells(row, width) for row in mark.rows[:MAX_ROWS]))
        case Text():
            _tell(notices, len(mark.lines), MAX_LINES, "newest lines")
            return Text(tuple(clean(line, 400) for line in mark.lines[-MAX_LINES:]))
    raise TypeError(
        f"A picture is made of marks, and {type(mark).__name__} is none; see looptap.visualizers.drawing.picture."
    )


def _drawn(mark: Line | Points | Band | Bars, x: Axis, y: Axis, z: Axis, notices: list[str]) -> Mark:
    """Return a mark on axes, its columns equally long."""
    if isinstance(mark, Bars):
        return _bars(mark, x, y, notices)
    if isinstance(mark, Band):
        across, low, high = _even(_along(mark.x, x), _along(mark.low, y), _along(mark.high, y))
        return replace(mark, x=across, low=low, high=high)
    columns = [_along(mark.x, x), _along(mark.y, y), *([] if mark.z is None else [_along(mark.z, z)])]
    if isinstance(mark, Points) and mark.values is not None:
        *columns, values = _even(*columns, flat_floats(mark.values))
        mark = replace(mark, values=values)
    across, up, *deep = _even(*columns)
    if isinstance(mark, Points):
        samples = tuple(map(_image, mark.images)) if len(mark.images) == len(across) else ()
        return replace(mark, x=across, y=up, z=deep[0] if deep else None, images=samples)
    notes = [(i, clean(text, 60)) for i, text in mark.notes if 0 <= i < len(across)]
    _tell(notices, len(notes), MAX_NOTES, "newest notes")
    floor = mark.filled
    if floor is not None:
        floor = float(_along([floor], y)[0])
        floor = None if floor != floor or deep else floor
    dash = mark.dash if mark.dash in ("solid", "dash", "dot", "dashdot") else "solid"
    return replace(
        mark, x=across, y=up, z=deep[0] if deep else None, notes=tuple(notes[-MAX_NOTES:]), filled=floor, dash=dash
    )


def _bars(mark: Bars, x: Axis, y: Axis, notices: list[str]) -> Bars:
    heights = _along(mark.heights, y)
    if mark.edges is not None:
        edges = _along(mark.edges, x)
        count = max(0, min(len(heights), len(edges) - 1))
        return replace(mark, heights=heights[:count], edges=edges[: count + 1], labels=())
    _tell(notices, len(heights), MAX_BARS, "first bars")
    heights = heights[:MAX_BARS]
    labels = _padded(mark.labels, len(heights), 40) if mark.labels else tuple(map(str, range(len(heights))))
    return replace(mark, heights=heights, labels=labels)


def _grid(mark: Grid) -> Mark:
    cells = np.asarray(mark.cells)
    if cells.ndim != 2:
        cells = np.atleast_2d(cells.squeeze()) if cells.squeeze().ndim < 2 else cells.reshape(len(cells), -1)
    if not cells.size:
        return Text(("The matrix has no cells yet.",))
    rows, columns = cells.shape
    return Grid(
        flat_floats(cells).reshape(rows, columns),
        _padded(mark.rows, rows, 24) if mark.rows else (),
        _padded(mark.columns, columns, 24) if mark.columns else (),
        mark.written,
        clean(mark.name, 60),
    )


def _images(mark: Images, notices: list[str]) -> Mark:
    _tell(notices, len(mark.images), MAX_IMAGES, "first images")
    images = tuple(_image(image) for image in mark.images[:MAX_IMAGES])
    if not images:
        return Text(("There is no image yet.",))
    captions = _padded(mark.captions, len(images), 120) if mark.captions else ()
    return Images(images, captions, max(0, mark.columns))


def _image(image: Any) -> Numbers:
    pixels = np.asarray(image)
    if pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or not pixels.size:
        return np.full((1, 1, 3), 127, np.uint8)
    return pixels if pixels.dtype == np.uint8 else np.clip(np.nan_to_num(pixels), 0, 255).astype(np.uint8)


def _along(values: Any, axis: Axis) -> Numbers:
    """Return numbers for an axis: positive if it is logarithmic, local if of time."""
    numbers = flat_floats(values)
    if axis.log:
        numbers[~(numbers > 1 / MAX_MAGNITUDE)] = np.nan
    return local_time(numbers) if axis.time else numbers


def _axis(axis: Axis) -> Axis:
    axis = replace(axis, title=clean(axis.title, 40), log=axis.log and not axis.time)
    low, high = (
        None if end is None or np.isnan(number := _along([end], axis)[0]) else float(number)
        for end in (axis.low, axis.high)
    )
    if low is not None and high is not None and not apart(low, high):
        low = high = None
    places = [(float(_along([at], axis)[0]), clean(text, 24)) for at, text in axis.ticks[:MAX_BARS]]
    ticks = () if axis.time else tuple((at, text) for at, text in places if at == at)
    return replace(axis, low=low, high=high, ticks=ticks)


def _even(*columns: Numbers) -> list[Numbers]:
    shortest = min(map(len, columns))
    return [column[:shortest] for column in columns]


def _opacity(opacity: float) -> float:
    return min(1.0, max(0.0, opacity)) if opacity == opacity else 1.0


def _padded(texts: tuple[str, ...], count: int, most: int) -> tuple[str, ...]:
    return tuple(short_name(text, most) for text in texts[:count]) + tuple(map(str, range(len(texts), count)))


def _cells(row: tuple[str, ...], width: int) -> tuple[str, ...]:
    return tuple(clean(cell, 80) for cell in row[:width]) + ("",) * (width - len(row))


def _tell(notices: list[str], count: int, most: int, what: str) -> None:
    if count > most:
        notices.append(f"Only the {most} {what} of {count} are drawn.")


def _piled(text: str, i: int) -> bool:
    """Return whether a character is the fourth or later of stacked accents."""
    return all(unicodedata.combining(c) for c in text[i - 3 : i + 1])
