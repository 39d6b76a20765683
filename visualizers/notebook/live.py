"""`Live`: keeps a canvas showing what a chart holds: as fast as the pages draw, and as slowly as they must."""

from __future__ import annotations

import time
from typing import Any

from looptap.visualizers.chart import Chart
from looptap.visualizers.notebook.canvas import Canvas
from looptap.visualizers.notebook.driver import driver
from looptap.visualizers.notebook.frames import frame_of
from looptap.visualizers.notebook.growing import growing
from looptap.visualizers.notebook.kernels import pulse

FASTEST = 1 / 60
"""Seconds between two frames, at least."""
_STILL = 0.05  # seconds until the next look at a chart that has nothing new
_BLIND = 0.5  # seconds between frames for pages that cannot tell whether they are there
_HIDDEN = 1.0
_ALONE = 10.0  # seconds between looks at a chart that no page shows
_TRIES = 10  # frames for a page that is only now being made


class Live:
    """A chart and the canvas that shows it, moved by the driver's thread from `start` to `close`."""

    def __init__(self, chart: Chart, *, height: int = 300) -> None:
        self.chart = chart
        self.canvas = Canvas(self._asked, height=height)
        self.closed = False
        self._tries = 0
        self._pause = FASTEST
        self._dirty = True
        self._made = time.time()

    def start(self) -> None:
        """Show what there is, and go on."""
        self._tries = 0
        driver.add(self)

    def close(self) -> None:
        """Leave the picture as it is, and free what it took."""
        self.closed = True
        self.canvas.close()

    def step(self, now: float) -> float | None:
        """Send a frame if there is something new and somebody can take it; the seconds until the next look."""
        if self.closed:
            return None
        canvas = self.canvas
        if not canvas.watched(now):
            return self._blindly(now)
        self._tries = 0
        if not canvas.ready():
            return 0.01
        if not (self._pull() or canvas.behind):
            self._pause = min(_STILL, self._pause * 1.5)
            return self._pause
        self._show()
        self._pause = FASTEST
        return _HIDDEN if canvas.hidden else FASTEST

    def _blindly(self, now: float) -> float:
        """Nobody is known to look: a page may be on its way, or cannot speak while a cell runs."""
        deaf = pulse.deaf(now)
        if not deaf and self._tries >= _TRIES:
            self._pull()
            return _ALONE
        self._tries += 1
        if self._pull() or self._tries < _TRIES:
            self._show(blind=True)
        return _BLIND

    def _pull(self) -> bool:
        if self.chart.pull():
            self._dirty, self._made = True, time.time()
        return self._dirty

    def _show(self, *, blind: bool = False) -> None:
        self._dirty = False
        with self.chart.lock:  # what grows is a view of what the chart goes on writing to
            picture = self.chart.draw()
            frame = frame_of(picture, growing(self.chart, picture))
            frame.layout["playing"] = not self.chart.paused
            message = self.canvas.made(frame, blind=blind, made=self._made)
        self.canvas.send(*message)

    def _asked(self, message: dict[str, Any]) -> None:
        """A page asks for another frame, or to hold the one it has."""
        kind = message.get("t")
        if kind == "seek" and isinstance(message.get("frame"), int):
            self.chart.show(message["frame"])
        elif kind == "play":
            self._play(bool(message.get("on")))
        self._dirty = True
        driver.add(self)

    def _play(self, on: bool) -> None:
        if on:
            self.chart.show(None)
            self.chart.resume()
        else:
            self.chart.pause()
