"""Draws pictures with plotly: `figure_of` makes a figure, `update` its data.

Lines are SVG: without a GPU, WebGL traces fall seconds behind. plotly is imported when it is first needed.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from looptap.visualizers.drawing.backends.plotly_traces import LINE_CHARACTERS, Spot, cut_label, escaped, spot_traces
from looptap.visualizers.drawing.layouts import arrange, frame_words, panels, structure
from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.drawing.sanitize import sanitize

Change: TypeAlias = Literal["data", "layout", "structure"]

_TEXT_LINE_PIXELS = 18  # pixels that a line of words above or below the axes takes
_MAX_BADGES = 3
_WORDS = {"showarrow": False, "xref": "paper", "yref": "paper", "xanchor": "left", "align": "left"}


def figure_of(*pictures: Picture, rows: int | None = None) -> Any:
    """Return a plotly Figure of pictures side by side, optionally in ``rows`` rows.

    >>> from looptap.visualizers.drawing.picture import Line, Picture
    >>> figure = figure_of(Picture((Line([0, 1], [2, 3], name="a < b"),)))
    >>> figure.data[0].y.tolist(), figure.data[0].name
    ([2.0, 3.0], 'a &lt; b')
    """
    import plotly.graph_objects as go

    traces, layout = _described(pictures, rows)
    return go.Figure({"data": traces, "layout": layout})


def update(figure: Any, picture: Picture) -> Change:
    """Show the next picture in a Figure or FigureWidget of `figure_of`, in one batch.

    "data": traces got new data. "layout": rules, badges, titles or limits changed as well. "structure": all traces were
    replaced.
    """
    traces, layout = _described([picture], None)
    now = figure.layout.to_plotly_json()
    if now.get("meta") != layout["meta"] or [trace.type for trace in figure.data] != [t["type"] for t in traces]:
        with figure.batch_update():
            figure.data = ()
            figure.layout = layout
            figure.add_traces(traces)
        return "structure"
    changed = [key for key, value in layout.items() if key != "template" and not _same(value, now.get(key))]
    with figure.batch_update():
        for trace, new in zip(figure.data, traces, strict=True):
            old = trace.to_plotly_json()
            for key, value in new.items():
                if not _same(value, old.get(key)):
                    trace[key] = value
        for key in changed:
            figure.layout[key] = layout[key]
    return "layout" if changed else "data"


def _described(pictures: Sequence[Picture], rows: int | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return traces and layout of pictures, as plain data."""
    tidied = [sanitize(picture) for picture in pictures]
    down, across = arrange(max(1, len(tidied)), rows)
    height = max(300, 340 * down)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "template": "plotly_white",
        "margin": {"l": 20, "r": 20, "t": 34, "b": 10},
        "height": height,
        "annotations": [],
        "shapes": [],
        "showlegend": True,
        "uirevision": "looptap",
        "barmode": "overlay",
        "hovermode": "closest",
        "font": {"size": 11},
        "meta": hashlib.sha256(repr([structure(picture) for picture in tidied]).encode()).hexdigest()[:16],
    }
    drawn = 0
    for i, picture in enumerate(tidied):
        row, column = divmod(i, across)
        apart = 0.8 * _TEXT_LINE_PIXELS / height * (row + 1 < down)  # the words below one are not those above the next
        box = (column / across, 1 - (row + 1) / down + apart, 1 / across, 1 / down - apart)
        drawn += _add(picture, box, height, drawn, traces, layout)
    layout["showlegend"] = any(trace.get("showlegend") for trace in traces)
    return traces, layout


def _add(
    picture: Picture, box: tuple[float, ...], height: int, before: int, traces: list[Any], layout: dict[str, Any]
) -> int:
    """Add a picture to the box (left, bottom, width, height); return its panel count."""
    left, bottom, width, tall = box
    line = _TEXT_LINE_PIXELS / height
    letters = int(width * LINE_CHARACTERS)
    guess = _wrapped(picture.guess, letters)
    header = 1.5 * line * bool(picture.title or picture.frame) + line * len(guess)
    badges = list(picture.badges)
    if len(badges) > _MAX_BADGES:
        first, rest = badges[: _MAX_BADGES - 1], badges[_MAX_BADGES - 1 :]
        badges = [*first, f"… and {len(rest)} more: {rest[0]}"]
    badges = [line for badge in badges for line in _wrapped("⚠ " + badge, letters)]
    say = layout["annotations"].append
    top = bottom + tall
    title = f"<b>{escaped(cut_label(picture.title, letters // 2))}</b>"
    say({**_WORDS, "x": left, "y": top, "yanchor": "top", "text": title, "font": {"size": 14}})
    last = {"x": left + 0.98 * width, "xanchor": "right"}
    say({**_WORDS, **last, "y": top, "yanchor": "top", "text": frame_words(picture)})
    gray = {"text": "<br>".join(map(escaped, guess)) or " ", "font": {"color": "#666666"}}
    say({**_WORDS, "x": left, "y": top - header + line * max(1, len(guess)), "yanchor": "top", **gray})
    for i, text in enumerate(reversed(badges)):
        badge = {"text": escaped(text), "font": {"color": "#a04000"}}
        say({**_WORDS, "x": left, "y": bottom + line * i, "yanchor": "bottom", **badge})
    found = panels(picture)
    rows, columns = arrange(len(found))
    low = bottom + line * (len(badges) + 0.3 * bool(badges))
    room = max(0.1 * tall, top - header - low)
    for i, panel in enumerate(found):
        row, column = divmod(i, columns)
        x, y = left + width * column / columns, low + room * (rows - 1 - row) / rows
        spot = Spot((x, x + width / columns), (y, y + room / rows), height, before + i + 1)
        spot_traces(panel, picture, spot, traces, layout)
    return len(found)


def _wrapped(text: str, letters: int) -> list[str]:
    """Return text wrapped to two lines at most."""
    lines = textwrap.wrap(text, max(4, letters))
    return lines if len(lines) < 3 else [lines[0], cut_label(" ".join(lines[1:]), letters)]


def _same(new: Any, old: Any) -> bool:
    """Return whether two descriptions are equal, arrays by their numbers."""
    if isinstance(new, np.ndarray) or isinstance(old, np.ndarray):
        if new is None or old is None or np.shape(new) != np.shape(old):
            return False
        new, old = np.asarray(new), np.asarray(old)
        both = new.dtype.kind == old.dtype.kind == "f"
        return bool(np.array_equal(new, old, equal_nan=both))
    if isinstance(new, dict) and isinstance(old, dict):
        return all(_same(new.get(key), old.get(key)) for key in {*new, *old})
    if isinstance(new, list | tuple) and isinstance(old, list | tuple):
        return len(new) == len(old) and all(map(_same, new, old))
    return (_empty(new) and _empty(old)) or bool(new == old)


def _empty(value: Any) -> bool:
    """Return whether plotly keeps nothing of a value."""
    return value is None or (isinstance(value, tuple | list | dict) and not value)
