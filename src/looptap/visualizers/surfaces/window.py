"""`ChartWindow`: charts in a matplotlib window, at most 30 frames a second.

Everything here runs on the thread of the window's toolkit, which owns matplotlib. A timer makes the charts read new
values; while the limits of the axes hold, only the lines are drawn, over a saved picture of the rest. A slow turn
delays the next, so that the window always answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.data.colors import DARK, LIGHT
from looptap.visualizers.drawing.backends.matplotlib_marks import theme_of
from looptap.visualizers.drawing.backends.with_matplotlib import align
from looptap.visualizers.surfaces.panels.side_panel import ControlsReader, SidePanel, runs_to_control
from looptap.visualizers.surfaces.panels.window_width import MAX_WINDOW_INCHES, PANEL_INCHES, widen
from looptap.visualizers.surfaces.windows.clipboard import copy_text
from looptap.visualizers.surfaces.windows.framebar import FrameBar
from looptap.visualizers.surfaces.windows.interrupts import interruptible
from looptap.visualizers.surfaces.windows.pointer import Pointer
from looptap.visualizers.surfaces.windows.window_painter import WindowPainter, file_name
from looptap.visualizers.surfaces.windows.window_part import WindowPart
from looptap.visualizers.surfaces.windows.window_view import WindowView

MIN_FRAME_SECONDS = 0.03
"""Seconds from one frame to the next, at least."""
_PLAYBACK_FRAME_SECONDS = 0.1  # seconds between two frames that are played back
_STATUS_INTERVAL_SECONDS = 0.5  # seconds between two updates of the title
_FRAME_BAR_SHARE = 0.07  # share of the height, for the slider of frames
HELP = (
    "space: pause   s: save   g: SVG   d: CSV   y: copy query   l: log   e: smoothing   x: x axis   c: outliers\n"
    "k: knobs   t: dark   ←, →, End: frames   Enter: play   n: sort names   h: whole view   r: reset   q: close"
)


class ChartWindow:
    """A plot on a pyplot figure, with keys and a slider for earlier frames.

    ``status`` returns the state of the run for the title, and ``say`` is called with a report of each action. The
    window opens at once; `show` waits until the user closes it.
    """

    def __init__(
        self,
        plot: ChartGrid,
        *,
        title: str = "looptap",
        status: Callable[[], str] = lambda: "",
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        from matplotlib import pyplot

        self._pyplot, self.plot = pyplot, plot
        self.title, self._status, self._say = title, status, say
        self.closed = self.paused = self._interrupted = self._turning = False
        down, across = plot.shape
        self.figure = pyplot.figure(
            figsize=(min(MAX_WINDOW_INCHES, 3 + 4 * across), min(10, 1.4 + 3 * down)), layout="none"
        )
        self.canvas: Any = self.figure.canvas
        self.manager: Any = self.canvas.manager
        self.parts: list[WindowPart] = []
        self.bar: FrameBar | None = None
        self.painter = WindowPainter(self.figure, self._artists, self._labels)
        self._playing = 0.0
        self.view = WindowView(
            lambda: self.parts,
            lambda suffix: self.save(suffix=suffix),
            lambda text: self._tell(copy_text(self.canvas, text)),
        )
        self.panel: SidePanel | None = None
        self._reader = ControlsReader(runs_to_control(plot))
        self._panel_wanted: bool | None = None  # None: if the job has knobs
        self._first_knob = 0  # of the panel, which the wheel moves
        self._stale = False  # whether everything has to be arranged again
        self._pointed: Any = None  # where the mouse is, if that was not drawn yet
        self.shown_title, self._looked = "", 0.0
        self._connect()
        self._arrange()
        self._call_it()
        self.timer = self.canvas.new_timer(interval=round(1000 * MIN_FRAME_SECONDS))
        self.timer.add_callback(self.turn)
        self.timer.start()

    def _connect(self) -> None:
        if (default := getattr(self.manager, "key_press_handler_id", None)) is not None:
            self.canvas.mpl_disconnect(default)  # matplotlib's own meaning of space, s and the arrows
        for name, handler in (
            ("draw_event", self._drawn),
            ("resize_event", self._resized),
            ("close_event", self._closed),
            ("key_press_event", self._key),
            ("button_release_event", self._released),
            ("button_press_event", self._pressed),
            ("motion_notify_event", self._move),
            ("figure_leave_event", self._move),
            ("scroll_event", self._scrolled),
        ):
            self.canvas.mpl_connect(name, handler)

    def show(self, block: bool | None = None) -> None:
        """Show the window; wait until it is closed if ``block``, like pyplot.show().

        Ctrl-C in the terminal closes it, and raises KeyboardInterrupt.
        """
        with interruptible(self.manager, self._interrupt):
            self._pyplot.show(block=block)
        if self._interrupted:
            raise KeyboardInterrupt

    def _interrupt(self) -> None:
        self._interrupted = True  # elsewhere the toolkit would swallow the exception
        if self._turning:
            raise KeyboardInterrupt

    @property
    def frames(self) -> int:
        """The number of frames shown."""
        return self.painter.frames

    @property
    def redrawn(self) -> int:
        """The number of frames that redrew everything."""
        return self.painter.redrawn

    def close(self) -> None:
        """Close the window."""
        self._pyplot.close(self.figure)

    # ------------------------------------------------------------ arranging

    def _arrange(self) -> None:
        """Give each chart its part of the figure, and the frames their slider."""
        hidden = {id(part.cell): part.hidden for part in self.parts}
        self.parts, self.bar, self.panel = [], None, None  # widgets that are made may draw
        self.figure.clear()
        self.pointer = Pointer(self.figure)
        cells = list(self.plot.cells)
        self.plot.pull()
        framed = any(cell.chart is not None and cell.chart.frames for cell in cells)
        shares = [1 - _FRAME_BAR_SHARE * framed, _FRAME_BAR_SHARE] if framed else [1]
        whole = {"left": 0, "right": 1, "top": 1, "bottom": 0, "hspace": 0, "wspace": 0}
        wide = self.figure.get_size_inches()[0]
        wanted = self.wants_panel  # asked for once: the controls come by another thread
        beside = [max(0.3 * wide, wide - PANEL_INCHES), PANEL_INCHES] if wanted else [1]
        grid = self.figure.add_gridspec(len(shares), len(beside), height_ratios=shares, width_ratios=beside, **whole)
        area = self.figure.add_subfigure(grid[0, 0])
        if wanted:
            side = self.figure.add_subfigure(grid[:, 1])
            self.panel = SidePanel(side, self._reader.knobs, self.view, self._first_knob)
        self._stale = False
        places = area.subfigures(*self.plot.shape, squeeze=False).ravel()
        self.parts = [WindowPart(cell, place) for cell, place in zip(cells, places, strict=False)]
        for part in self.parts:
            part.hidden = hidden.get(id(part.cell), part.hidden)
            part.dirty = bool(part.hidden)
        if framed:
            share = beside[0] / sum(beside)
            place = 0.08 * share, 0.0, 0.84 * share, 0.6 * _FRAME_BAR_SHARE
            self.bar = FrameBar(self.figure.add_axes(place), self.go_to)
            self._move_bar()
        self._align()
        self.painter.animate(True)
        self.painter.forget()

    def _align(self) -> None:
        """Give the axes of a row one height, and those of a column one left side."""
        align([part.drawing for part in self.parts], self.plot.shape[1])
        for part in self.parts:
            part.restore()

    def _artists(self) -> Iterator[Any]:
        for part in self.parts:
            yield from part.moving
        if self.bar is not None:
            yield from self.bar.artists
        yield from self.pointer.artists

    def _labels(self) -> list[Any]:
        return [label for part in self.parts for label in part.labels]

    def _resized(self, event: Any) -> None:
        for part in self.parts:
            part.drawing.layout()
        self._align()
        self._stale = self.panel is not None  # its widgets have their size in inches

    # ------------------------------------------------------------ drawing

    def turn(self) -> None:
        """Draw new values; called by the timer."""
        if self._gone():
            return
        self._turning = True
        try:
            self._turn()
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._turning = False
        if self._interrupted:
            self._pyplot.close("all")

    def _turn(self) -> None:
        start = time.monotonic()
        if self._wants_arranging():
            widen(self.figure, self.wants_panel - (self.panel is not None))
            self._arrange()
            changes = {"structure"}
        else:
            self._play(start)
            if self._at_home():
                self._release()
            changes = {part.update(self.view.order) for part in self.parts} - {""}
        self._move_bar()
        if "structure" in changes:
            self._align()
            self.painter.animate(True)
        turned = self.panel is not None and self.panel.update()
        event, self._pointed = self._pointed, None
        pointed = event is not None and self.pointer.move(event, self.parts)
        if changes or turned or pointed:
            self.painter.paint(whole=turned or not changes <= {"data"})
        if start - self._looked > _STATUS_INTERVAL_SECONDS:
            self._looked = start
            self._call_it()
        took = time.monotonic() - start
        period = max(MIN_FRAME_SECONDS, 1.5 * took)  # the toolkit needs time for the mouse and for keys
        # Tk's timer counts from the end of a turn, those of other toolkits from its start.
        wait = max(1, round(1000 * (period - took if "Tk" in type(self.timer).__name__ else period)))
        if abs(wait - self.timer.interval) > 0.2 * self.timer.interval:
            self.timer.interval = wait

    @property
    def wants_panel(self) -> bool:
        """True if the panel is to be shown: on request, else if the job has knobs."""
        if self._panel_wanted is not None:
            return self._panel_wanted
        return any(knob.info is not None for _, knob in self._reader.knobs)

    def _wants_arranging(self) -> bool:
        """Return whether charts, the slider of frames, or the panel came or went."""
        if self.wants_panel != (self.panel is not None) or self._stale:
            return True
        if self.panel is not None and not self.panel.fits(self._reader.knobs):
            return True
        return [part.cell for part in self.parts] != self.plot.cells or self._wants_bar()

    def _wants_bar(self) -> bool:
        return self.bar is None and any(part.frames for part in self.parts)

    def _call_it(self) -> None:
        """Show the run and its state in the title."""
        parts = [self.title, self._status(), "paused" if self.paused else ""]
        title = " – ".join(filter(None, parts))
        if title != self.shown_title:
            self.shown_title = title
            self.manager.set_window_title("".join(c for c in title if c.isprintable())[:300])

    # ------------------------------------------------------------ frames

    def _framed(self) -> list[WindowPart]:
        """Return the charts that have frames, the one with the most first."""
        return sorted((part for part in self.parts if part.frames), key=lambda part: -part.frames)

    def _move_bar(self) -> None:
        framed = self._framed()
        if self.bar is not None and framed and framed[0].picture.frame is not None:
            self.bar.show(*framed[0].picture.frame)

    def go_to(self, index: int | None) -> None:
        """Show frame ``index`` of the chart with the most frames, None for the newest."""
        framed = self._framed()
        for part in framed:
            back = 0 if index is None else framed[0].frames - 1 - index
            part.show(max(0, part.frames - 1 - back) if back > 0 else None)

    def step(self, by: int) -> bool:
        """Go some frames forward or back; return False if there are none."""
        framed = self._framed()
        if not framed or framed[0].picture.frame is None:
            return False
        index, count = framed[0].picture.frame
        new = min(max(0, index + by), count - 1)
        self.go_to(None if new >= count - 1 else new)
        return new != index

    def _play(self, now: float) -> None:
        if self._playing and now >= self._playing:
            self._playing = now + _PLAYBACK_FRAME_SECONDS if self.step(1) else 0.0

    # ------------------------------------------------------------ keys and the mouse

    def _key(self, event: Any) -> None:
        from matplotlib.backend_bases import key_press_handler

        if (self.panel is not None and self.panel.typing) or self.view.pressed(event.key):
            return
        match event.key:
            case "k":
                self._panel_wanted = not self.wants_panel
            case "t":
                self.figure.set_facecolor((LIGHT if theme_of(self.figure).dark else DARK).ground)
                self._stale = True
            case " ":
                self.pause(not self.paused)
            case "left" | "right" if self._framed():
                self._playing = 0.0
                self.step(-1 if event.key == "left" else 1)
            case "end" if self._framed():
                self.go_to(None)
            case "enter" if self._framed():
                self._playing = 0.0 if self._playing else time.monotonic()
            case "h" | "home":
                self._release()
            case "r":
                self._release()
                self.view.reset()
            case _:
                key_press_handler(event, self.canvas, self.canvas.toolbar)

    def pause(self, paused: bool) -> None:
        """Pause or resume the pictures; the streams continue."""
        self.paused = paused
        if paused:
            self.plot.pause()
        else:
            self.plot.resume()
        for part in self.parts:
            part.dirty = True
        self._call_it()

    def _pressed(self, event: Any) -> None:
        if any([part.clicked(event) for part in self.parts]):
            return
        if event.dblclick and (event.inaxes is None or event.inaxes.figure is not getattr(self.panel, "figure", None)):
            self._release()

    def _move(self, event: Any) -> None:
        self._pointed = event

    def _scrolled(self, event: Any) -> None:
        """Move through the knobs that have no room at once."""
        if self.panel is not None and self.panel.figure.bbox.contains(event.x, event.y):
            by = 1 if event.step < 0 and self.panel.hidden else -1 if event.step > 0 else 0
            new = max(0, self._first_knob + by)
            self._stale, self._first_knob = self._stale or new != self._first_knob, new

    def _released(self, event: Any) -> None:
        """Keep the view that the user has set with the tools of the toolbar."""
        if event.inaxes is None or not getattr(self.canvas.toolbar, "mode", ""):
            return
        for part in self.parts:
            if event.inaxes in part.drawing.figure.axes:
                part.hold()

    def _release(self) -> None:
        if any([part.release() for part in self.parts]):
            self.painter.animate(True)
            if self.canvas.toolbar is not None:
                self.canvas.toolbar.update()  # forgets the earlier views
            self.painter.forget()

    def _at_home(self) -> bool:
        """Return whether Home was pressed after a zoom: it restores outdated limits."""
        views: list[Any] = getattr(getattr(self.canvas.toolbar, "_nav_stack", None), "_elements", [])
        return any(part.held for part in self.parts) and len(views) > 1 and views[-1] is views[0]

    # ------------------------------------------------------------ saving and closing

    def save(self, path: str = "", suffix: str = ".png") -> str:
        """Write the window to ``path``, by default a new file here; return the path."""
        path = path or file_name(self.title, suffix)
        failed = self.painter.save(path, self.plot.cells)
        self._tell(f"{path} cannot be written: {failed}" if failed else f"saved: {path}")
        return "" if failed else path

    def _tell(self, text: str) -> None:
        self._say(text)
        if (toolbar := self.canvas.toolbar) is not None:
            toolbar.set_message(text.replace("\n", "   "))

    def _drawn(self, event: Any) -> None:
        if not self._gone():
            self.painter.drawn()

    def _gone(self) -> bool:
        """Return whether the window is closed; its toolkit may report that a little late."""
        return self.closed or self.figure.canvas is not self.canvas

    def _closed(self, event: Any) -> None:
        self.closed = True
        self._reader.close()
        self.timer.stop()
