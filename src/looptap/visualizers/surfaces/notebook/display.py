"""A plot in a notebook: its live charts side by side, and the saved still."""

from __future__ import annotations

from typing import Any

import ipywidgets

from looptap.streams.stream.stream import Stream
from looptap.visualizers.cells import Cell
from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.live.driver import driver
from looptap.visualizers.surfaces.live.frame_channel import Asked
from looptap.visualizers.surfaces.live.live_chart import Live
from looptap.visualizers.surfaces.notebook.canvas import Canvas
from looptap.visualizers.surfaces.notebook.kernels import answer_anywhere, shell
from looptap.visualizers.surfaces.notebook.stills import Still

_PLOT_PIXELS = 300, 240, 190
"""The height of a plot in one, two, and more rows: nine charts fit on a screen."""
_GAP_PIXELS, _MIN_CHART_PIXELS = 8, 240  # a narrow page has fewer charts in a row
_POLL_INTERVAL_SECONDS = 0.2  # seconds between checks for added and removed charts
_shown: dict[str, tuple[str, list[PlotView]]] = {}  # by cell: its last execution and its views


class PlotView:
    """A plot in a notebook; follows as charts are added and removed."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.still = Still(self._pictures, lambda: plot.live)
        self.box = ipywidgets.GridBox(layout=ipywidgets.Layout(width="100%", grid_gap=f"{_GAP_PIXELS}px"))
        self._lives: dict[Cell, Live] = {}
        self._shape = (0, 0)
        self.closed = False
        self._arrange()

    def display(self) -> None:
        """Put the view into the output of the running cell."""
        from IPython.display import display

        display(self.box)
        if Still.wanted():
            self.still.display()
        self.start()

    def start(self) -> None:
        """Follow the plot; the caller shows `box`."""
        driver.add(self)

    def close(self) -> None:
        """Stop showing; the streams continue."""
        self.closed = True
        self.still.close()
        for live in self._lives.values():
            live.close()
        self.box.close()

    def step(self, now: float) -> float | None:
        """Follow added and removed charts."""
        if self.closed:
            return None
        self._arrange()
        return _POLL_INTERVAL_SECONDS

    def _arrange(self) -> None:
        cells = list(self.plot.cells)
        if cells == list(self._lives) and self._shape == self.plot.shape:
            return
        self._shape = rows, columns = self.plot.shape
        for cell in [cell for cell in self._lives if cell not in cells]:
            self._lives.pop(cell).close()
        height = _PLOT_PIXELS[min(rows, len(_PLOT_PIXELS)) - 1]

        def canvas(asked: Asked) -> Canvas:
            return Canvas(asked, height=height, still=self.still.name)

        lives = {cell: self._lives.get(cell) or Live(cell, canvas) for cell in cells}
        fresh = [live for cell, live in lives.items() if cell not in self._lives]
        self._lives = lives
        self.box.children = [live.canvas for live in lives.values()]
        share = f"(100% - {_GAP_PIXELS * (columns - 1)}px) / {columns}"
        self.box.layout.grid_template_columns = (
            f"repeat(auto-fill, minmax(min(100%, max({_MIN_CHART_PIXELS}px, {share})), 1fr))"
        )
        answer_anywhere(self.box)
        for live in fresh:
            live.start()

    def _pictures(self) -> tuple[list[Picture], int]:
        return self.plot.pictures(), self.plot.shape[0]


def show_in_cell(what: Plot | Stream) -> None:
    """Show a plot or a stream in the running cell; close what the cell showed before."""
    view = PlotView(what if isinstance(what, Plot) else Plot(what))
    parent: dict[str, Any] = getattr(shell(), "parent_header", None) or {}
    cell = str((parent.get("metadata") or {}).get("cellId") or "")
    execution = str((parent.get("header") or {}).get("msg_id") or "")
    if cell:
        before, views = _shown.get(cell, ("", []))
        if before != execution:
            for old in views:
                old.close()
            views = []
        _shown[cell] = execution, [*views, view]
    view.display()
