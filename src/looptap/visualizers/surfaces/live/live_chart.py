"""`Live`: keeps a canvas up to date with its chart, at the pace of its pages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from looptap.visualizers.cells import Cell
from looptap.visualizers.surfaces.live.driver import driver
from looptap.visualizers.surfaces.live.frame_channel import Asked, LiveCanvas
from looptap.visualizers.surfaces.live.growing import growing
from looptap.visualizers.surfaces.pages.frames import frame_of

MIN_FRAME_SECONDS = 1 / 60
"""Seconds between two frames, at least."""
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.004, 0.05  # between checks for new values, at first and later
_UNACKNOWLEDGED_FRAME_SECONDS = 0.5  # seconds between frames for pages that cannot acknowledge them
_HIDDEN_FRAME_SECONDS = 1.0
_UNSEEN_POLL_SECONDS = 10.0  # seconds between checks of a chart that no page shows
_MAX_STARTING_FRAMES = 10  # frames sent to a page that is just opening


class Live:
    """A chart and its canvas, updated by the driver's thread until `close`.

    ``canvas`` makes the canvas; it gets the function to call with what a page asks for.
    """

    def __init__(self, cell: Cell, canvas: Callable[[Asked], LiveCanvas]) -> None:
        self.cell = cell
        self.canvas = canvas(self._asked)
        self.closed = False
        self._tries = 0
        self._pause = _FIRST_POLL_SECONDS
        self._dirty = True
        self._made = time.time()

    def start(self) -> None:
        """Show the chart, and keep it up to date."""
        self._tries = 0
        driver.add(self)

    def close(self) -> None:
        """Stop showing, and free the canvas."""
        self.closed = True
        self.canvas.close()

    def step(self, now: float) -> float | None:
        """Send a frame if it is new and a page can take it; return the seconds to wait."""
        if self.closed:
            return None
        canvas = self.canvas
        if not canvas.watched(now):
            return self._blindly(now)
        self._tries = 0
        if not canvas.ready():
            return 0.01
        if not (self._pull() or canvas.channel.behind):
            self._pause = min(_MAX_POLL_SECONDS, self._pause * 1.5)
            return self._pause
        self._show()
        self._pause = _FIRST_POLL_SECONDS
        return _HIDDEN_FRAME_SECONDS if canvas.channel.hidden else MIN_FRAME_SECONDS

    def _blindly(self, now: float) -> float:
        """Send frames blindly: a page may be opening, or unable to answer during a cell."""
        deaf = self.canvas.deaf(now)
        if not deaf and self._tries >= _MAX_STARTING_FRAMES:
            self._pull()
            return _UNSEEN_POLL_SECONDS
        self._tries += 1
        if self._pull() or self._tries < _MAX_STARTING_FRAMES:
            self._show(blind=True)
        return _UNACKNOWLEDGED_FRAME_SECONDS

    def _pull(self) -> bool:
        if self.cell.pull():
            self._dirty, self._made = True, time.time()
        return self._dirty

    def _show(self, *, blind: bool = False) -> None:
        self._dirty = False
        with self.cell.lock:
            chart = self.cell.chart
            with contextlib.nullcontext() if chart is None else chart.lock:  # growing columns are views of its buffer
                picture = self.cell.draw(raw=True)  # a page smooths by itself
                frame = frame_of(picture, {} if chart is None else growing(chart, picture))
                frame.layout["playing"] = not self.cell.paused
                frame.layout["kinds"] = self.cell.kinds
                message = self.canvas.channel.made(frame, blind=blind, made=self._made)
        self.canvas.send(*message)

    def _asked(self, message: dict[str, Any]) -> None:
        """Seek another frame, play or pause, as a page requests."""
        kind, chart = message.get("t"), self.cell.chart
        if kind == "seek" and isinstance(index := message.get("frame"), int) and chart is not None:
            chart.show(index)
        elif kind == "x" and isinstance(x := message.get("x"), str) and chart is not None and x in ("", *chart.xs):
            chart.x = x
        elif kind == "kind" and isinstance(wanted := message.get("kind"), str):
            self.cell.draw_as(wanted)
        elif kind == "play" and message.get("on"):
            if chart is not None:
                chart.show(None)
            self.cell.paused = False
        elif kind == "play":
            self.cell.paused = True
        self._dirty = True
        driver.add(self)
