"""Draws pictures as text: curves by plotext, tables by rich, images in blocks."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from looptap.visualizers.data.colors import DARK, LIGHT, Theme
from looptap.visualizers.data.ticks import round_numbers, tick_labels
from looptap.visualizers.drawing.axis_limits import apart, span
from looptap.visualizers.drawing.backends.blocks import ODD, bar, half_blocks, in_blue, shaded, side_by_side
from looptap.visualizers.drawing.layouts import (
    Panel,
    arrange,
    bar_labels,
    bar_sides,
    caption_lines,
    frame_words,
    named,
    notes_of,
    panels,
    scale,
    shrunk,
    thin,
    ticks,
    time_words,
    written,
)
from looptap.visualizers.drawing.picture import (
    Axis,
    Bars,
    Grid,
    Images,
    Numbers,
    Picture,
    Pie,
    Points,
    Table,
    Text,
)
from looptap.visualizers.drawing.sanitize import sanitize, short_name

_LOCK = threading.Lock()  # plotext keeps one figure for the whole process
_SIGNS = ("braille", "•", "+", "x", "o", "*", "#")  # markers of curves where there are no colours
_KINDS = {Points: "points", Bars: "bars"}
_MIN_PLOT_COLUMNS, _MIN_PLOT_LINES = 24, 8


class _Edge(NamedTuple):
    """An axis as plotext names it; its title has 1 / ``share`` of the width."""

    letter: str
    where: dict[str, str]
    share: int


_EDGES = {
    "bottom": _Edge("x", {"xside": "lower"}, 3),
    "top": _Edge("x", {"xside": "upper"}, 3),
    "left": _Edge("y", {"yside": "left"}, 4),
    "right": _Edge("y", {"yside": "right"}, 4),
}


class _Stroke(NamedTuple):
    """A gapless curve to join, dot or fill."""

    x: Numbers
    y: Numbers
    kind: str
    across: str
    side: str
    mark: Any

    def along(self, edge: str, axis: Axis) -> list[Numbers]:
        """Return the numbers that the axis at an edge has to show."""
        floor = np.zeros(1 if self.kind == "bars" and not axis.log else 0)
        return {self.across: [self.x], self.side: [self.y, floor]}.get(edge, [])


def drawn_text(picture: Picture, width: int = 80, height: int = 24, color: bool = True) -> str:
    """Draw a picture as at most ``height`` lines of ``width`` cells.

    Without ``color`` there are no escape sequences. What the job wrote can neither move the cursor nor change colours:
    control characters are shown as �.

    >>> from looptap.visualizers.drawing.picture import Pie, Picture
    >>> print(drawn_text(Picture((Pie([3, 1], ("cats", "dogs")),)), width=30, color=False))
    cats  █████████████████  75.0%
    dogs  █████▋             25.0%
    """
    tidy = sanitize(picture, _theme())
    return "\n".join(_lines(tidy, max(_MIN_PLOT_COLUMNS, width), max(_MIN_PLOT_LINES, height), color))


def all_as_text(
    pictures: Sequence[Picture], width: int = 80, height: int = 24, color: bool = True, rows: int | None = None
) -> str:
    """Draw pictures in ``rows`` rows, or one per row if each had less than 40 cells."""
    across = arrange(max(1, len(pictures)), rows)[1] if rows else max(1, min(len(pictures), width // 60))
    each = (width - 3 * (across - 1)) // across
    blocks = [drawn_text(picture, each, height, color).split("\n") for picture in pictures]
    if across == 1:
        return "\n\n".join("\n".join(block) for block in blocks)
    found = []
    for i in range(0, len(blocks), across):
        row = [[_filled(line, each) for line in block] for block in blocks[i : i + across]]
        found.append("\n".join(line.rstrip() for line in side_by_side(row, each, gap=3)))
    return "\n\n".join(found)


def _lines(picture: Picture, width: int, height: int, color: bool) -> list[str]:
    head = [text for text in (picture.title, frame_words(picture), picture.guess) if text]
    if picture.title and picture.frame:
        head = [f"{picture.title}  ({frame_words(picture)})", *head[2:]]
    rules = [f"| {_number(rule.x, picture.x)}: {rule.text}" for rule in picture.rules[-5:]]
    notes = [text if x is None else f"• {_number(x, picture.x)}: {text}" for x, text in notes_of(picture)]
    said = [*rules, *("! " + badge for badge in picture.badges), *notes][: max(1, height // 4)]
    notices = [_cut(text, width) for text in said]
    room = max(5, (height - len(head) - len(notices)) // len(found := panels(picture)))
    body = (line for panel in found for line in _panel(panel, picture, width, room, color))
    return [*(_cut(text, width) for text in head), *body, *notices]


def _panel(panel: Panel, picture: Picture, width: int, height: int, color: bool) -> list[str]:
    mark = panel.marks[0] if panel.marks else None
    match mark:
        case Grid():
            return _grid(mark, picture, width, height, color)
        case Images():
            return _images(mark, width, height, color)
        case Pie():
            return _labelled(mark.labels, mark.shares, width, float(mark.shares.max()), color)[:height]
        case Table():
            return _table(mark, width, height, color)
        case Text():
            return [_cut(line, width) for line in mark.lines[-height:]]
    bars = [mark for mark in panel.marks if isinstance(mark, Bars) and mark.edges is None]
    if len(bars) == len(panel.marks) and bars and len(bar_labels(bars)) * len(bars) <= height:
        return _bars(bars, width, color)
    return _plot(panel, picture, width, height, color)


def _plot(panel: Panel, picture: Picture, width: int, height: int, color: bool) -> list[str]:
    """Draw lines, bands, points and bars by plotext."""
    import plotext as plt

    strokes = [one for mark in panel.marks for one in _strokes(mark, panel, picture, width) if one.x.size]
    strokes.sort(key=lambda one: one.kind != "bars")
    if not strokes:
        return [*[""] * (height // 2), "no values yet".center(width).rstrip()]
    used = {edge for one in strokes for edge in (one.across, one.side)}
    axes = {edge: axis for edge, axis in picture.edges.items() if edge in used}
    plain = axes if panel.kind == "plane" else dict.fromkeys(axes, Axis())
    ends = {
        edge: _ends([column for one in strokes for column in one.along(edge, axis)], axis)
        for edge, axis in plain.items()
    }
    labelled = named(panel.marks, picture)
    signs = {id(mark): "braille" if color else _SIGNS[i % len(_SIGNS)] for i, mark in enumerate(labelled)}
    legend = [
        _painted("■ " if color else f"{signs[id(mark)]} ".replace("braille", "⣿"), mark.color, color) + mark.name
        for mark in labelled
    ]
    with _LOCK:
        plt.clear_figure()
        plt.theme("clear")
        plt.plot_size(width, max(4, height - bool(legend)))
        for one in strokes:
            how: dict[str, Any] = {"color": _rgb(one.mark.color), "marker": signs.get(id(one.mark), "braille")}
            how |= _EDGES[one.across].where | _EDGES[one.side].where
            if one.kind == "bars":
                how["fillx"] = float(_between(np.zeros(1), ends[one.side])[0])
            paint = plt.scatter if one.kind == "points" else plt.plot
            paint(_between(one.x, ends[one.across]).tolist(), _between(one.y, ends[one.side]).tolist(), **how)
        _axes(plt, axes, ends, bar_labels(panel.marks), width)
        if panel.kind == "space":
            _hide_axes(plt, picture, width)
        drawn = plt.build()
        plt.clear_figure()
        lines = (drawn if color else plt.uncolorize(drawn)).split("\n")
    return [*_legend(legend, width), *(line for line in lines if line.strip())][:height]


def _legend(names: Sequence[str], width: int) -> list[str]:
    """Return a line of the names that fit, coloured or not, and the number of others."""
    ends = list(accumulate(cell_len(RichText.from_ansi(name).plain) + 3 for name in names))  # with the space after each
    if not ends or ends[-1] - 3 <= width:
        return ["   ".join(names)] if names else []
    shown = sum(end + len(f"… {len(names)} more") <= width for end in ends)
    return ["   ".join([*names[:shown], f"… {len(names) - shown} more"])]


def _strokes(mark: Any, panel: Panel, picture: Picture, width: int) -> Iterator[_Stroke]:
    """Yield the gapless parts of a mark."""
    across, side = picture.edges_of(mark)
    x_axis, y_axis = picture.edges[across], picture.edges[side]
    kind = _KINDS.get(type(mark), "line")
    pairs = [(*mark.xs, y) for y in mark.ys]
    if isinstance(mark, Bars):
        pairs = [(np.column_stack(bar_sides(mark, panel.marks)).ravel(), np.repeat(mark.heights, 2))]
    elif mark.panel == "space":  # seen from the front and a little from above
        x, y, z = (_between(column, scale(column)) for column in (mark.x, mark.y, mark.z))
        pairs, x_axis, y_axis = [(x - 0.5 * y, z - 0.3 * x - 0.3 * y)], Axis(), Axis()
    for x, y in pairs:
        x, y = _scaled(x, x_axis), _scaled(y, y_axis)
        known = np.isfinite(np.stack([x, y])).all(axis=0)
        if kind == "points":
            yield _Stroke(x[known], y[known], kind, across, side, mark)
            continue
        starts = np.flatnonzero(np.diff(np.r_[False, known, False].astype(np.int8)))
        for a, b in list(zip(starts[::2], starts[1::2], strict=True))[-200:]:
            joined = kind if b - a > 1 else "points"
            yield _Stroke(*thin(x[a:b], y[a:b], 8 * width), joined, across, side, mark)


def _axes(plt: Any, axes: Mapping[str, Axis], ends: Mapping[str, Any], labels: Sequence[str], width: int) -> None:
    """Set limits, ticks and titles, all in 0..1: plotext hangs on lines far outside."""
    for edge, axis in axes.items():
        letter, where, share = _EDGES[edge]
        getattr(plt, f"{letter}lim")(0, 1, **where)
        getattr(plt, f"{letter}label")(_single(axis.title, width // share) or None, **where)
        places, words = _ticks(ends[edge], axis, 6 if letter == "y" else max(2, width // 12))
        if labels and letter == "x":
            few = ticks(labels, max(1, width // 12))
            places = _between(np.array([i for i, _ in few], float), ends[edge])
            words = [_single(label, 10) for _, label in few]
        getattr(plt, f"{letter}ticks")(places.tolist(), words, **where)


def _hide_axes(plt: Any, picture: Picture, width: int) -> None:
    """Write the names of three axes below a picture of space, which has no ticks."""
    names = [axis.title if axis else "" for axis in (picture.x, picture.y, picture.z)]
    plt.xlabel(_single(" × ".join(name or letter for name, letter in zip(names, "xyz", strict=True)), width // 2))
    plt.ylabel(None, yside="left")
    plt.xticks([], [])
    plt.yticks([], [])


def _ticks(ends: tuple[float, float], axis: Axis, most: int) -> tuple[Numbers, list[str]]:
    """Return where ticks stand, in units of the limits, and what is written at them."""
    low, high = ends
    if axis.ticks:
        places = (_scaled(np.array([at for at, _ in axis.ticks]), axis) - low) / (high - low)
        inside = np.flatnonzero((places >= 0) & (places <= 1))
        return places[inside], [_single(axis.ticks[place][1], 16) for place in inside]
    if axis.time:
        at = np.linspace(low, high, most)
        words = [_number(n, axis) for n in at]
        return (at - low) / (high - low), [word[-8:] if high - low < 86400 else word[:10] for word in words]
    powers = list(range(math.ceil(low), math.floor(high) + 1)) if axis.log else []
    if len(powers) > 1:
        at = 10.0 ** np.array(powers[:: -(-len(powers) // most)])
    else:
        first, last = (10.0**low, 10.0**high) if axis.log else ends
        at = np.array(round_numbers(first, last, most))
    return (_scaled(at, axis) - low) / (high - low), tick_labels(at.tolist(), log=len(powers) > 1)


def _ends(columns: list[Numbers], axis: Axis) -> tuple[float, float]:
    low, high = span(columns) or (0.0, 1.0)
    low = low if axis.low is None else float(_scaled(np.float64(axis.low), axis))
    high = high if axis.high is None else float(_scaled(np.float64(axis.high), axis))
    room = abs(low) * 0.1 or 0.5
    return (low, high) if apart(low, high) else (low - room, low + room)


def _scaled(column: Any, axis: Axis) -> Any:
    return np.log10(column) if axis.log else column


def _between(column: Numbers, ends: tuple[float, float]) -> Numbers:
    """Return numbers in units of the limits, clipped a little outside of them."""
    low, width = ends[0], ends[1] - ends[0]
    return (np.clip(column, low - 0.2 * width, low + 1.2 * width) - low) / width


def _bars(marks: Sequence[Bars], width: int, color: bool) -> list[str]:
    """Draw horizontal bars by label; those of several marks stand together."""
    many = len(marks) > 1
    found = []
    largest = max((abs(end) for end in span(mark.heights for mark in marks) or ()), default=0.0)
    for label in bar_labels(marks):
        for mark in marks:
            if label in mark.labels:
                height = float(mark.heights[mark.labels.index(label)])
                found.append((f"{label} {mark.name}" if many else label, height, mark.color))
    names, heights, paints = zip(*found, strict=True) if found else ((), (), ())
    return _labelled(names, np.array(heights, float), width, largest, color, paints)


def _labelled(
    labels: Sequence[str], numbers: Numbers, width: int, largest: float, color: bool, paints: Sequence[str] = ()
) -> list[str]:
    """Return lines of name, bar and number; without ``paints``, shares in percent."""
    texts = [written(n) or "nan" if paints else f"{100 * n:.1f}%" for n in numbers]
    tail, head = max(map(len, texts), default=0), min(max(map(cell_len, labels), default=0), width // 3)
    room = max(1, width - head - tail - 4)
    colors = _theme().colors
    paints = paints or [colors[i % len(colors)] for i in range(len(labels))]
    found = []
    for label, number, text, paint in zip(labels, numbers, texts, paints, strict=True):
        drawn = bar(abs(float(number)), largest, room)
        name, rest = set_cell_size(short_name(label, head), head), " " * (room - len(drawn))
        found.append(f"{name}  {_painted(drawn, paint, color)}{rest}  {text.rjust(tail)}")
    return found


def _grid(mark: Grid, picture: Picture, width: int, height: int, color: bool) -> list[str]:
    rows, columns = mark.cells.shape
    letters = max(len(written(cell)) for cell in mark.cells[:height].ravel()) if mark.written else 0
    names = mark.rows or tuple(map(str, range(rows)))
    head = min(max(map(cell_len, names)), max(16, width // 3))
    room = width - head - 1
    if letters and columns * (letters + 1) <= room and rows + 1 <= height:
        titles = mark.columns or tuple(map(str, range(columns)))
        lines = [" " * head + "".join(" " + _cut(title, letters).rjust(letters) for title in titles)]
        low, high = scale(mark.cells)
        for name, row in zip(names, mark.cells, strict=True):
            cells = (in_blue(written(cell).rjust(letters), cell, low, high, color) for cell in row)
            lines.append(set_cell_size(short_name(name, head), head) + "".join(" " + cell for cell in cells))
        return lines
    each = 2 if 2 * columns <= room else 1
    small = shrunk(mark.cells, max(1, height - 2), max(1, room // each))
    places = np.linspace(0, rows - 1, len(small)).round().astype(int)
    low, high = scale(mark.cells)
    body = shaded((small - low) / (high - low), each)
    kept = [set_cell_size(short_name(names[i], head), head) + " " + line for i, line in zip(places, body, strict=True)]
    about, odd = f"{mark.name}  " * bool(mark.name), f", {ODD} is NaN" * bool(np.isnan(small).any())
    return [*kept, _cut(f"{about}{rows} × {columns}, blank {low:.4g} to full {high:.4g}{odd}", width)]


def _images(mark: Images, width: int, height: int, color: bool) -> list[str]:
    count = len(mark.images)
    wide = max(image.shape[1] for image in mark.images)
    each = max(8, min(wide if color else 2 * wide, 32 if count > 1 else width, width))
    across = min(mark.columns or count, max(1, (width + 2) // (each + 2)), count)
    down = max(4, height // max(1, min(-(-count // across), max(1, height // 8))) - 1)
    found: list[str] = []
    drawn = 0
    for i in range(0, count, across):
        blocks = []
        for j in range(i, min(i + across, count)):
            lines = half_blocks(mark.images[j], each, down) if color else _grey(mark.images[j], each, down)
            caption = caption_lines(mark.captions[j], each, 2) if j < len(mark.captions) else []
            blocks.append([*lines, *(set_cell_size(_cut(line, each), each) for line in caption)])
        row = side_by_side(blocks, each, gap=2)
        if found and len(found) + len(row) > height:
            break
        found += row
        drawn += len(blocks)
    if drawn < count:
        found.append(_cut(f"… and {count - drawn} more images", width))
    return found


def _grey(image: Numbers, width: int, height: int) -> list[str]:
    grey = image[..., :3].mean(axis=2) / 255
    each = 2 if 2 * image.shape[1] <= width else 1
    small = shrunk(grey, height, width // each)
    return [line + " " * (width - len(line)) for line in shaded(small, each)]


def _table(mark: Table, width: int, height: int, color: bool) -> list[str]:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in mark.titles:
        table.add_column(RichText(title), overflow="ellipsis", no_wrap=True)
    room = max(1, height - 2)
    rows = mark.rows if len(mark.rows) <= room else mark.rows[: max(1, room - 1)]
    for row in rows:
        table.add_row(*map(RichText, row))
    file = io.StringIO()
    Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="truecolor" if color else None,
        no_color=not color,
        legacy_windows=False,
        highlight=False,
        force_jupyter=False,
    ).print(table)
    lines = [line.rstrip() for line in file.getvalue().rstrip("\n").split("\n")]
    return [*lines, *([f"… and {len(mark.rows) - len(rows)} more rows"] if len(rows) < len(mark.rows) else [])]


def _painted(text: str, color: str, colored: bool) -> str:
    red, green, blue = _rgb(color)
    return f"\x1b[38;2;{red};{green};{blue}m{text}\x1b[0m" if colored and text else text


def _theme() -> Theme:
    """Return the theme of the terminal: dark, unless it says otherwise."""
    return LIGHT if os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else DARK


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _number(number: float, axis: Axis) -> str:
    return time_words(number) if axis.time else f"{number:.4g}"


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def _single(text: str, width: int) -> str:
    """Return text of characters one cell wide, the only ones plotext counts."""
    return _cut("".join(c if cell_len(c) == 1 else "▯" for c in text), width)


def _filled(line: str, width: int) -> str:
    """Return a line padded with spaces to ``width``, not counting its colours."""
    return line + " " * max(0, width - cell_len(RichText.from_ansi(line).plain))
