"""`WindowPart`: the part of a window that one chart is drawn on."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.text import Text

from looptap.visualizers.cells import Cell
from looptap.visualizers.drawing.backends.matplotlib_marks import drawable
from looptap.visualizers.drawing.backends.with_matplotlib import Drawing
from looptap.visualizers.drawing.picture import Band, Bars, Line, Mark, Picture, Points
from looptap.visualizers.drawing.sanitize import short_name

ORDERS = ("", "name", "value")
"""The orders of the names of lines: as they are drawn, by name, by newest value."""
_ORDER_SECONDS = 1.0  # between two sortings by value


class WindowPart:
    """One chart in the window, and the axes whose limits the user holds."""

    def __init__(self, cell: Cell, figure: Any) -> None:
        self.cell = cell
        cell.pull()
        self.hidden: set[str] = set()
        """The names that were clicked away."""
        self.picture = cell.draw()
        self.drawing = Drawing(figure, self.picture)
        self.dirty = False
        self._ranked: tuple[str, set[str]] = "", set()
        self._ranked_at, self._ranks = 0.0, dict[Any, int]()
        self.held: dict[Any, tuple[Any, Any]] = {}
        """Axes in which the user has zoomed or moved, with their limits."""

    @property
    def frames(self) -> int:
        """The number of frames to look back at."""
        return 0 if self.cell.chart is None else self.cell.chart.frames

    @property
    def moving(self) -> list[Any]:
        """The artists that are drawn over the picture of the rest.

        The cells of a matrix are not where numbers stand on them: they change with these, which are part of the rest.
        """
        under = {view.cells for view in self.drawing.views if getattr(view, "numbers", None)}
        return [artist for artist in self.drawing.artists if artist not in under and not _is_label(artist)]

    @property
    def labels(self) -> list[Any]:
        """The texts in the axes and their places, drawn with the rest: they are slow."""
        labels = [artist for artist in self.drawing.artists if _is_label(artist)]
        return [(label, label.get_text(), label.get_position()) for label in labels]

    def update(self, order: str = "") -> str:
        """Take new values over; return the part to be redrawn, "" for nothing.

        ``order`` is one of `ORDERS`, for the names.
        """
        if not (self.cell.pull() or self.dirty):
            return ""
        self.dirty = False
        self.picture = self._sorted(without(self.cell.draw(), self.hidden), order)
        change = self.drawing.update(self.picture)
        if change == "structure":
            self.held.clear()
        if self.held:
            self.restore()
            change = "data"
        return change

    def _sorted(self, picture: Picture, order: str) -> Picture:
        """Return a picture whose marks are in this order, by value for a second."""
        now, names = time.monotonic(), {name for mark in picture.marks if (name := getattr(mark, "name", ""))}
        if not order or len(names) < 2:
            return picture
        if (order, names) != self._ranked or now - self._ranked_at > _ORDER_SECONDS:
            self._ranked, self._ranked_at, self._ranks = (order, names), now, sorted_places(picture.marks, order)
        last = len(self._ranks)
        return replace(picture, marks=tuple(sorted(picture.marks, key=lambda mark: self._ranks.get(_look(mark), last))))

    def clicked(self, event: Any) -> bool:
        """Hide or show the line whose name was clicked; alone by a double click."""
        names: set[str] = {name for mark in self.picture.marks if (name := getattr(mark, "name", ""))}
        for view in self.drawing.views:
            texts = view.legend.get_texts() if getattr(view, "legend", None) is not None else ()
            hit = next((text.get_text() for text in texts if text.contains(event)[0]), None)
            name = next((name for name in names if hit == drawable(short_name(name))), None)
            if name is None:
                continue
            if event.dblclick:
                self.hidden = set() if self.hidden >= names - {name} else names - {name}
            else:
                self.hidden ^= {name}
            self.dirty = True
            return True
        return False

    def show(self, index: int | None) -> None:
        """Show an earlier frame, None for the newest."""
        if self.cell.chart is not None:
            self.cell.chart.show(index)
            self.dirty = True

    def turn(self) -> None:
        """Show the values as the next kind of chart, if there is one."""
        if kinds := self.cell.kinds[1:]:
            self.cell.draw_as(kinds[0])
            self.dirty = True

    def hold(self) -> None:
        """Keep the limits as the user has set them."""
        self.held = {axes: (axes.get_xlim(), axes.get_ylim()) for axes in self.drawing.figure.axes}

    def restore(self) -> None:
        """Set the limits that are held."""
        for axes, (x, y) in self.held.items():
            axes.set_xlim(x)
            axes.set_ylim(y)

    def release(self) -> bool:
        """Let the limits follow the data again; return whether they were held."""
        held, self.held = bool(self.held), {}
        if held:
            self.drawing = Drawing(self.drawing.figure, self.picture)
            self.dirty = True
        return held


def _is_label(artist: Any) -> bool:
    return isinstance(artist, Text) and artist.axes is not None


def without(picture: Picture, hidden: Set[str]) -> Picture:
    """Return a picture whose marks of these names or their look are empty.

    They keep their place among the names.
    """
    if not hidden:
        return picture
    looks = {_look(mark) for mark in picture.marks if getattr(mark, "name", "") in hidden}
    return replace(picture, marks=tuple(_emptied(mark) if _look(mark) in looks else mark for mark in picture.marks))


def sorted_places(marks: Sequence[Mark], order: str) -> dict[Any, int]:
    """Return the place of each look when names are sorted by name or newest value."""
    drawn = [mark for mark in marks if isinstance(mark, Line | Band | Points | Bars) and mark.name]
    named = {_look(mark): mark for mark in reversed(drawn)}
    key = _natural if order == "name" else _newest
    return {look: place for place, look in enumerate(sorted(named, key=lambda look: key(named[look])))}


def _natural(mark: Any) -> list[tuple[int, str]]:
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", mark.name.lower())]


def _newest(mark: Any) -> float:
    """Return the newest number with its sign turned: the largest comes first."""
    column = mark.y if isinstance(mark, Line | Points) else mark.heights if isinstance(mark, Bars) else mark.high
    known = column[np.isfinite(column)]
    return -float(known[-1]) if known.size else np.inf


def _look(mark: Mark) -> tuple[str, str] | None:
    color = getattr(mark, "color", "")
    return (color, getattr(mark, "dash", "solid")) if color else None


def _emptied(mark: Mark) -> Mark:
    def empty(numbers: Any) -> Any:
        return np.full(len(numbers), np.nan)

    match mark:
        case Line() | Points():
            return replace(mark, y=empty(mark.y), opacity=0.3)
        case Band():
            return replace(mark, low=empty(mark.low), high=empty(mark.high), opacity=0.3)
        case Bars():
            return replace(mark, heights=empty(mark.heights), opacity=0.3)
    return mark
