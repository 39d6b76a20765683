"""`WindowPart`: the part of a window that one chart is drawn on."""

from __future__ import annotations

from typing import Any

from looptap.visualizers.cells import Cell
from looptap.visualizers.drawing.backends.with_matplotlib import Drawing


class WindowPart:
    """One chart in the window, and the axes whose limits the user holds."""

    def __init__(self, cell: Cell, figure: Any) -> None:
        self.cell = cell
        cell.pull()
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
        self.picture = self.cell.draw()
        change = self.drawing.update(self.picture)
        if change == "structure":
            self.held.clear()
        if self.held:
            self.restore()
            change = "data"
        return change

    def show(self, index: int | None) -> None:
        """Show an earlier frame, None for the newest."""
        if self.cell.chart is not None:
            self.cell.chart.show(index)
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
