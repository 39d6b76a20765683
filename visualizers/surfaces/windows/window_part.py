"""`WindowPart`: the part of a window that one chart is drawn on."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy as np

from looptap.visualizers.cells import Cell
from looptap.visualizers.drawing.backends.matplotlib_marks import shown
from looptap.visualizers.drawing.backends.with_matplotlib import Drawing
from looptap.visualizers.drawing.picture import Band, Bars, Line, Mark, Picture, Points
from looptap.visualizers.drawing.sanitize import clean


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
        self.held: dict[Any, tuple[Any, Any]] = {}
        """Axes in which the user has zoomed or moved, with their limits."""

    @property
    def frames(self) -> int:
        """The number of frames to look back at."""
        return 0 if self.cell.chart is None else self.cell.chart.frames

    def update(self) -> str:
        """Read and set what is new; return what has to be redrawn, "" for nothing."""
        if not (self.cell.pull() or self.dirty):
            return ""
        self.dirty = False
        self.picture = without(self.cell.draw(), self.hidden)
        change = self.drawing.update(self.picture)
        if change == "structure":
            self.held.clear()
        if self.held:
            self.restore()
            change = "data"
        return change

    def clicked(self, event: Any) -> bool:
        """Hide or show the line whose name was clicked; alone by a double click."""
        names: set[str] = {name for mark in self.picture.marks if (name := getattr(mark, "name", ""))}
        for view in self.drawing.views:
            texts = view.legend.get_texts() if getattr(view, "legend", None) is not None else ()
            hit = next((text.get_text() for text in texts if text.contains(event)[0]), None)
            name = next((name for name in names if hit == shown(clean(name, 60))), None)
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


def without(picture: Picture, hidden: Set[str]) -> Picture:
    """Return a picture whose marks of these names or their look are empty.

    They keep their place among the names.
    """
    if not hidden:
        return picture
    looks = {_look(mark) for mark in picture.marks if getattr(mark, "name", "") in hidden}
    return replace(picture, marks=tuple(_emptied(mark) if _look(mark) in looks else mark for mark in picture.marks))


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
