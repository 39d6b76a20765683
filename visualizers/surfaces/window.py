"""`ChartWindow`: charts in a matplotlib window, at most 30 frames a second.

Everything here runs on the thread of the window's toolkit, which owns matplotlib. A timer makes the charts read new
values; while the limits of the axes hold, only the lines are drawn, over a saved picture of the rest. A slow turn
delays the next, so that the window always answers.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from matplotlib.legend import Legend
from matplotlib.text import Text

from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.drawing.backends.with_matplotlib import align
from looptap.visualizers.surfaces.framebar import FrameBar
from looptap.visualizers.surfaces.window_part import WindowPart

MIN_FRAME_SECONDS = 0.03
"""Seconds from one frame to the next, at least."""
_PLAYBACK_FRAME_SECONDS = 0.1  # seconds between two frames that are played back
_STATUS_INTERVAL_SECONDS = 0.5  # seconds between two updates of the title
_FRAME_BAR_SHARE = 0.07  # share of the height, for the slider of frames
HELP = "space: pause   s: save   ←, →, End: frames   Enter: play   h: whole view   q: close"


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
        self.frames = self.redrawn = 0
        """The number of frames shown, and of those that redrew everything."""
        down, across = plot.shape
        self.figure = pyplot.figure(figsize=(min(16, 3 + 4 * across), min(10, 1.4 + 3 * down)), layout="none")
        self.canvas: Any = self.figure.canvas
        self.manager: Any = self.canvas.manager
        self.parts: list[WindowPart] = []
        self.bar: FrameBar | None = None
        self._background: Any = None  # the picture of all that does not move
        self._shown_labels: list[Any] = []  # the texts in it
        self._stamps: dict[Any, Any] = {}  # drawn legends, by artist
        self._saving = False
        self._playing = 0.0
        self.shown_title = ""
        self._looked = 0.0
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
            ("draw_event", self._drawn), ("resize_event", self._resized), ("close_event", self._closed),
            ("key_press_event", self._key), ("button_release_event", self._released),
            ("button_press_event", self._pressed),
        ):  # fmt: skip
            self.canvas.mpl_connect(name, handler)
        self._print = self.canvas.print_figure
        self.canvas.print_figure = self._print_whole

    def show(self, block: bool | None = None) -> None:
        """Show the window; wait until it is closed if ``block``, like pyplot.show().

        Ctrl-C in the terminal closes it, and raises KeyboardInterrupt.
        """
        with self._interruptible():
            self._pyplot.show(block=block)
        if self._interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Note Ctrl-C and cut a turn short: the toolkit would swallow an exception."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            self._interrupted = True
            # An interrupted turn leaves Tk with callbacks for deleted images, and it would print an error for each.
            window: Any = getattr(self.manager, "window", None)
            if hasattr(window, "report_callback_exception"):
                window.report_callback_exception = lambda *_: None
            if self._turning:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def close(self) -> None:
        """Close the window."""
        self._pyplot.close(self.figure)

    # ------------------------------------------------------------ arranging

    def _arrange(self) -> None:
        """Give each chart its part of the figure, and the frames their slider."""
        self.figure.clear()
        cells = list(self.plot.cells)
        self.plot.pull()
        framed = any(cell.chart is not None and cell.chart.frames for cell in cells)
        shares = [1 - _FRAME_BAR_SHARE * framed, _FRAME_BAR_SHARE] if framed else [1]
        whole = {"left": 0, "right": 1, "top": 1, "bottom": 0, "hspace": 0}
        grid = self.figure.add_gridspec(len(shares), 1, height_ratios=shares, **whole)
        area = self.figure.add_subfigure(grid[0])
        places = area.subfigures(*self.plot.shape, squeeze=False).ravel()
        self.parts = [WindowPart(cell, place) for cell, place in zip(cells, places, strict=False)]
        self.bar = None
        if framed:
            self.bar = FrameBar(self.figure.add_axes((0.08, 0.0, 0.84, 0.6 * _FRAME_BAR_SHARE)), self.go_to)
            self._move_bar()
        self._align()
        self._animate(True)
        self._background = None

    def _align(self) -> None:
        """Give the axes of a row one height, and those of a column one left side."""
        align([part.drawing for part in self.parts], self.plot.shape[1])
        for part in self.parts:
            part.restore()

    def _artists(self) -> Iterator[Any]:
        for part in self.parts:
            yield from (artist for artist in part.drawing.artists if not _is_label(artist))
        if self.bar is not None:
            yield from self.bar.artists

    def _labels(self) -> list[Any]:
        """Return the texts in the axes, drawn with the background: they are slow."""
        return [
            (artist, artist.get_text(), artist.get_position())
            for part in self.parts for artist in part.drawing.artists if _is_label(artist)
        ]  # fmt: skip

    def _animate(self, animated: bool) -> None:
        """Exclude what moves from full draws."""
        for artist in self._artists():
            artist.set_animated(animated)
            if isinstance(artist, Legend):
                artist.get_frame().set_alpha(1.0)  # see _draw_artists

    def _resized(self, event: Any) -> None:
        for part in self.parts:
            part.drawing.layout()
        self._align()

    # ------------------------------------------------------------ drawing

    def turn(self) -> None:
        """Show what is new; called by the timer."""
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
        if [part.cell for part in self.parts] != self.plot.cells or self._wants_bar():
            self._arrange()
            changes = {"structure"}
        else:
            self._play(start)
            if self._at_home():
                self._release()
            changes = {part.update() for part in self.parts} - {""}
        self._move_bar()
        if "structure" in changes:
            self._align()
            self._animate(True)
        if changes:
            self._paint(whole=changes != {"data"})
        if start - self._looked > _STATUS_INTERVAL_SECONDS:
            self._looked = start
            self._call_it()
        took = time.monotonic() - start
        period = max(MIN_FRAME_SECONDS, 1.5 * took)  # the toolkit needs time for the mouse and for keys
        # Tk's timer counts from the end of a turn, those of other toolkits from its start.
        wait = max(1, round(1000 * (period - took if "Tk" in type(self.timer).__name__ else period)))
        if abs(wait - self.timer.interval) > 0.2 * self.timer.interval:
            self.timer.interval = wait

    def _paint(self, whole: bool) -> None:
        self.frames += 1
        blits = self.canvas.supports_blit and self._background is not None
        if whole or not blits or self._labels() != self._shown_labels:
            self.redrawn += 1
            self.canvas.draw()
            return
        self.canvas.restore_region(self._background)
        self._draw_artists()
        self.canvas.blit(self.figure.bbox)

    def _drawn(self, event: Any) -> None:
        """Keep the background that was just drawn, and draw what moves over it."""
        if self._saving or self._gone():
            return
        if self.canvas.supports_blit:
            self._background = self.canvas.copy_from_bbox(self.figure.bbox)
            self._stamps.clear()
        self._shown_labels = self._labels()
        self._draw_artists()

    def _draw_artists(self) -> None:
        """Draw what moves; draw a legend once, then copy it: it is slower than all lines."""
        for artist in self._artists():
            if artist in self._stamps:
                self.canvas.restore_region(self._stamps[artist])
                continue
            self.figure.draw_artist(artist)
            if isinstance(artist, Legend) and self.canvas.supports_blit:
                self._stamps[artist] = self.canvas.copy_from_bbox(artist.get_window_extent())

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

        match event.key:
            case " ":
                self.pause(not self.paused)
            case "s" | "ctrl+s":
                self.save()
            case "left" | "right" if self._framed():
                self._playing = 0.0
                self.step(-1 if event.key == "left" else 1)
            case "end" if self._framed():
                self.go_to(None)
            case "enter" if self._framed():
                self._playing = 0.0 if self._playing else time.monotonic()
            case "h" | "r" | "home":
                self._release()
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
        if event.dblclick:
            self._release()

    def _released(self, event: Any) -> None:
        """Keep the view that the user has set with the tools of the toolbar."""
        if event.inaxes is None or not getattr(self.canvas.toolbar, "mode", ""):
            return
        for part in self.parts:
            if event.inaxes in part.drawing.figure.axes:
                part.hold()

    def _release(self) -> None:
        if any([part.release() for part in self.parts]):
            self._animate(True)
            if self.canvas.toolbar is not None:
                self.canvas.toolbar.update()  # forgets the earlier views
            self._background = None

    def _at_home(self) -> bool:
        """Return whether Home was pressed after a zoom: it restores outdated limits."""
        views: list[Any] = getattr(getattr(self.canvas.toolbar, "_nav_stack", None), "_elements", [])
        return any(part.held for part in self.parts) and len(views) > 1 and views[-1] is views[0]

    # ------------------------------------------------------------ saving and closing

    def save(self, path: str = "") -> str:
        """Write the window to ``path``, by default a new PNG file here; return the path."""
        if not path:
            name = re.sub(r"[^\w.+-]+", "_", self.title)[:80].strip("_") or "looptap"
            path = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.png"
        try:
            self.figure.savefig(path)
        except (OSError, ValueError) as error:
            self._tell(f"{path} cannot be written: {error}")
            return ""
        self._tell(f"saved: {path}")
        return path

    def _tell(self, text: str) -> None:
        self._say(text)
        if self.canvas.toolbar is not None:
            self.canvas.toolbar.set_message(text)

    def _print_whole(self, *args: Any, **how: Any) -> Any:
        """Print the figure with what moves; also called by the toolbar's save button."""
        self._saving = True
        self._animate(False)
        try:
            return self._print(*args, **how)
        finally:
            self._animate(True)
            self._saving = False
            self._background = None
            with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
                self.canvas.draw_idle()

    def _gone(self) -> bool:
        """Return whether the window is closed; its toolkit may report that a little late."""
        return self.closed or self.figure.canvas is not self.canvas

    def _closed(self, event: Any) -> None:
        self.closed = True
        self.timer.stop()


def _is_label(artist: Any) -> bool:
    return isinstance(artist, Text) and artist.axes is not None
