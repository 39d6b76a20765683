"""Draws pictures as text: curves by plotext, tables by rich, images in blocks."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from looptap.visualizers.data.colors import DARK, LIGHT, Theme
from looptap.visualizers.data.ticks import round_numbers, tick_labels
from looptap.visualizers.drawing.axis_limits import apart, span
from looptap.visualizers.drawing.backends.blocks import ODD, bar, beside, half_blocks, in_blue, shaded
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
    Band,
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
_EDGES = {"bottom": "lower", "top": "upper"}  # as plotext names them
_MIN_PLOT_COLUMNS, _MIN_PLOT_LINES = 24, 8


def draw(picture: Picture, width: int = 80, height: int = 24, color: bool = True) -> str:
    """Draw a picture as at most ``height`` lines of ``width`` cells.

    Without ``color`` there are no escape sequences. What the job wrote can neither move the cursor nor change colours:
    control characters are shown as �.

    >>> from looptap.visualizers.drawing.picture import Pie, Picture
    >>> print(draw(Picture((Pie([3, 1], ("cats", "dogs")),)), width=30, color=False))
    cats  █████████████████  75.0%
    dogs  █████▋             25.0%
    """
    tidy = sanitize(picture, _theme())
    return "\n".join(_lines(tidy, max(_MIN_PLOT_COLUMNS, width), max(_MIN_PLOT_LINES, height), color))


def draw_all(
    pictures: Sequence[Picture], width: int = 80, height: int = 24, color: bool = True, rows: int | None = None
) -> str:
    """Draw pictures in ``rows`` rows, or one per row if each had less than 40 cells."""
    across = arrange(max(1, len(pictures)), rows)[1] if rows else max(1, min(len(pictures), width // 60))
    each = (width - 3 * (across - 1)) // across
    blocks = [draw(picture, each, height, color).split("\n") for picture in pictures]
    if across == 1:
        return "\n\n".join("\n".join(block) for block in blocks)
    found = []
    for i in range(0, len(blocks), across):
        row = [[_filled(line, each) for line in block] for block in blocks[i : i + across]]
        found.append("\n".join(line.rstrip() for line in beside(row, each, gap=3)))
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

    found = ((*one, mark) for mark in panel.marks for one in _curves(mark, panel, picture, width))
    curves: list[Any] = sorted((one for one in found if one[0].size), key=lambda one: one[2] != "bars")
    if not curves:
        return [*[""] * (height // 2), "no values yet".center(width).rstrip()]
    plane, ends = panel.kind == "plane", {}
    for across, axis in (("bottom", picture.x), ("top", picture.top)):
        ends[across] = _ends([x for x, *_, at, _, _ in curves if at == across], axis if axis and plane else Axis())
    for side, axis in (("left", picture.y), ("right", picture.right)):
        mine = [(y, kind) for _, y, kind, _, at, _ in curves if at == side]
        floor = np.zeros(0 if axis and axis.log else 1)
        columns = [y for y, _ in mine] + [floor for _, kind in mine if kind == "bars"]
        ends[side] = _ends(columns, axis if axis and plane else Axis())
    labelled = named(panel.marks, picture)
    signs = {id(mark): "braille" if color else _SIGNS[i % len(_SIGNS)] for i, mark in enumerate(labelled)}
    legend = [_painted("■ " if color else f"{signs[id(mark)]} ".replace("braille", "⣿"), mark.color, color) + mark.name
              for mark in labelled]  # fmt: skip
    with _LOCK:
        plt.clear_figure()
        plt.theme("clear")
        plt.plot_size(width, max(4, height - bool(legend)))
        for x, y, kind, across, side, mark in curves:
            how: dict[str, Any] = {"color": _rgb(mark.color), "marker": signs.get(id(mark), "braille"), "yside": side}
            how["xside"] = _EDGES[across]
            if kind == "bars":
                how["fillx"] = float(_between(np.zeros(1), ends[side])[0])
            paint = plt.scatter if kind == "points" else plt.plot
            paint(_between(x, ends[across]).tolist(), _between(y, ends[side]).tolist(), **how)
        _axes(plt, picture, panel, ends, width, {end for *_, across, side, _ in curves for end in (across, side)})
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


def _curves(mark: Any, panel: Panel, picture: Picture, width: int) -> list[tuple[Numbers, Numbers, str, str, str]]:
    """Return gapless curves (x, y, kind, across, side) to join, dot or fill."""
    side = getattr(mark, "side", "left") if picture.right else "left"
    across = getattr(mark, "across", "bottom") if picture.top else "bottom"
    x_axis, y_axis = (across == "top" and picture.top) or picture.x, (side == "right" and picture.right) or picture.y
    kind = "points" if isinstance(mark, Points) else "bars" if isinstance(mark, Bars) else "line"
    if isinstance(mark, Bars):
        left, right = bar_sides(mark, panel.marks)
        pairs = [(np.column_stack([left, right]).ravel(), np.repeat(mark.heights, 2))]
    elif isinstance(mark, Band):
        pairs = [(mark.x, mark.low), (mark.x, mark.high)]
    elif mark.z is not None:  # seen from the front and a little from above
        x, y, z = (_between(column, scale(column)) for column in (mark.x, mark.y, mark.z))
        pairs, x_axis, y_axis = [(x - 0.5 * y, z - 0.3 * x - 0.3 * y)], Axis(), Axis()
    else:
        pairs = [(mark.x, mark.y)]
    found = []
    for x, y in pairs:
        x, y = (np.log10(column) if axis.log else column for column, axis in ((x, x_axis), (y, y_axis)))
        known = np.isfinite(np.stack([x, y])).all(axis=0)
        if kind == "points":
            found.append((x[known], y[known], kind, across, side))
            continue
        starts = np.flatnonzero(np.diff(np.r_[False, known, False].astype(np.int8)))
        for a, b in list(zip(starts[::2], starts[1::2], strict=True))[-200:]:
            found.append((*thin(x[a:b], y[a:b], 8 * width), kind if b - a > 1 else "points", across, side))
    return found


def _axes(plt: Any, picture: Picture, panel: Panel, ends: dict[str, Any], width: int, used: set[str]) -> None:
    """Set limits, ticks and titles, all in 0..1: plotext hangs on lines far outside."""
    every = ("bottom", picture.x), ("top", picture.top), ("left", picture.y), ("right", picture.right)
    shown = [(end, axis) for end, axis in every if end in used and axis is not None]
    for end, axis in shown:
        if end in _EDGES:
            plt.xlim(0, 1, xside=_EDGES[end])
            plt.xlabel(_single(axis.title, width // 3) or None, xside=_EDGES[end])
        else:
            plt.ylim(0, 1, yside=end)
            plt.ylabel(_single(axis.title, width // 4) or None, yside=end)
    if panel.kind == "space":
        names = [axis.title if axis else "" for axis in (picture.x, picture.y, picture.z)]
        plt.xlabel(_single(" × ".join(name or letter for name, letter in zip(names, "xyz", strict=True)), width // 2))
        plt.ylabel(None, yside="left")
        plt.xticks([], [])
        plt.yticks([], [])
        return
    labels = bar_labels(panel.marks)
    for key, axis in shown:
        places, words = _ticks(ends[key], axis, max(2, width // 12) if key in _EDGES else 6)
        if key not in _EDGES:
            plt.yticks(places.tolist(), words, yside=key)
            continue
        if labels:
            few = ticks(labels, max(1, width // 12))
            places = _between(np.array([i for i, _ in few], float), ends[key])
            words = [_single(label, 10) for _, label in few]
        plt.xticks(places.tolist(), words, xside=_EDGES[key])


def _ticks(ends: tuple[float, float], axis: Axis, most: int) -> tuple[Numbers, list[str]]:
    """Return where ticks stand, in units of the limits, and what is written at them."""
    low, high = ends
    if axis.ticks:
        named = [((math.log10(at) if axis.log else at) - low, _single(name, 16)) for at, name in axis.ticks]
        named = [(at / (high - low), name) for at, name in named if 0 <= at <= high - low]
        return np.array([at for at, _ in named]), [name for _, name in named]
    if axis.time:
        at = np.linspace(low, high, most)
        words = [_number(n, axis) for n in at]
        return (at - low) / (high - low), [word[-8:] if high - low < 86400 else word[:10] for word in words]
    powers = list(range(math.ceil(low), math.floor(high) + 1)) if axis.log else []
    if len(powers) > 1:
        every = -(-len(powers) // most)
        return (np.array(powers[::every]) - low) / (high - low), tick_labels(
            [10.0**n for n in powers[::every]], log=True
        )
    at = np.array(round_numbers(10.0**low, 10.0**high, most) if axis.log else round_numbers(low, high, most))
    places = ((np.log10(at) if axis.log else at) - low) / (high - low)
    return places, tick_labels(at.tolist())


def _ends(columns: list[Numbers], axis: Axis) -> tuple[float, float]:
    low, high = span(columns) or (0.0, 1.0)
    given = [end if end is None or not axis.log else float(np.log10(end)) for end in (axis.low, axis.high)]
    low, high = low if given[0] is None else given[0], high if given[1] is None else given[1]
    return (low, high) if apart(low, high) else (low - (abs(low) * 0.1 or 0.5), low + (abs(low) * 0.1 or 0.5))


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
        row = beside(blocks, each, gap=2)
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
        file=file, width=width, force_terminal=color, color_system="truecolor" if color else None, no_color=not color,
        legacy_windows=False, highlight=False, force_jupyter=False,
    ).print(table)  # fmt: skip
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
