"""`Window`: charts in a window of matplotlib's, drawn anew 30 times a second at most.

Everything here runs on the thread of the window's toolkit, which owns matplotlib. A timer has the charts take in what
is new; while the limits of the axes hold, only the lines are drawn, over the picture of the rest. A turn that takes
long makes the next come later, so that the window always answers.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matplotlib.legend import Legend
from matplotlib.text import Text

from looptap.visualizers.chart import Chart
from looptap.visualizers.drawing.panels import arrange
from looptap.visualizers.drawing.with_matplotlib import Drawing
from looptap.visualizers.framebar import FrameBar

FRAME = 0.033
"""Seconds between two frames, at least."""
_PLAY = 0.1  # seconds between two frames that are played back
_STATUS = 0.5  # seconds between two looks at what the title says
_BAR = 0.07  # of the height, for the bar of frames
HELP = "space: pause   s: save   ←, →, End: frames   Enter: play   h: whole view   q: close"


class Cell:
    """One chart in the window, and what of its view the user holds fast."""

    def __init__(self, chart: Chart, part: Any) -> None:
        self.chart = chart
        chart.pull()
        self.drawing = Drawing(part, chart.draw())
        self.dirty = False
        self.held: dict[Any, tuple[Any, Any]] = {}
        """Axes in which the user has zoomed or moved, with their limits."""

    def update(self) -> str:
        """Take in what is new and set it; "" if there is nothing, else what it takes to show it."""
        changed = self.chart.pull()
        if not (changed or self.dirty):
            return ""
        self.dirty = False
        change = self.drawing.update(self.chart.draw())
        if change == "structure":
            self.held.clear()
        if self.held:
            self._restore()
            change = "data"
        return change

    def hold(self) -> None:
        """Keep the limits as the user has set them."""
        self.held = {axes: (axes.get_xlim(), axes.get_ylim()) for axes in self.drawing.figure.axes}

    def release(self) -> None:
        """Let the limits follow the data again."""
        if self.held:
            self.held.clear()
            self.drawing.layout()
            self.dirty = True

    def _restore(self) -> None:
        for axes, (x, y) in self.held.items():
            axes.set_xlim(x)
            axes.set_ylim(y)


class Window:
    """Charts on one figure of pyplot's, with keys and a bar for earlier frames.

    ``charts`` returns the charts, and is asked again and again; ``rows`` is in how many rows they stand, None as suits
    the window. ``status`` is said in the title. It is open when it is made; `show` waits until the user closes it.
    """

    def __init__(
        self,
        charts: Callable[[], Sequence[Chart]],
        *,
        title: str = "looptap",
        rows: int | None = None,
        status: Callable[[], str] = lambda: "",
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        from matplotlib import pyplot

        self._pyplot, self._charts, self._rows = pyplot, charts, rows
        self.title, self._status, self._say = title, status, say
        self.closed = self.paused = False
        self.frames = self.redrawn = 0
        """How many frames were shown, and for how many of them everything was drawn anew."""
        count = len(charts())
        down, across = arrange(max(1, count), rows)
        self.figure = pyplot.figure(figsize=(min(16, 3 + 4 * across), min(10, 1.4 + 3 * down)), layout="none")
        self.canvas: Any = self.figure.canvas
        self.manager: Any = self.canvas.manager
        self.cells: list[Cell] = []
        self.bar: FrameBar | None = None
        self._background: Any = None  # the picture of all that stands
        self._standing: list[Any] = []  # the texts in it
        self._stamps: dict[Any, Any] = {}  # pictures of legends
        self._saving = False
        self._playing = 0.0
        self._told = ""
        self._looked = 0.0
        self._connect()
        self._arrange()
        self._call_it()
        self.timer = self.canvas.new_timer(interval=round(1000 * FRAME))
        self.timer.add_callback(self.turn)
        self.timer.start()

    def _connect(self) -> None:
        if (default := getattr(self.manager, "key_press_handler_id", None)) is not None:
            self.canvas.mpl_disconnect(default)  # space, s and the arrows mean something else here
        for name, handler in (
            ("draw_event", self._drawn), ("resize_event", self._resized), ("close_event", self._closed),
            ("key_press_event", self._key), ("button_release_event", self._released),
            ("button_press_event", self._pressed),
        ):  # fmt: skip
            self.canvas.mpl_connect(name, handler)
        self._print = self.canvas.print_figure
        self.canvas.print_figure = self._print_whole

    def show(self, block: bool | None = None) -> None:
        """Show the window; wait until it is closed if ``block``, by default as pyplot.show() does."""
        self._pyplot.show(block=block)

    def close(self) -> None:
        """Close the window."""
        self._pyplot.close(self.figure)

    # ------------------------------------------------------------ arranging

    def _arrange(self) -> None:
        """Give each chart its part of the figure, and the frames their bar."""
        charts = list(self._charts())
        self.figure.clear()
        framed = any(chart.frames for chart in charts)
        shares = [1 - _BAR * framed, _BAR] if framed else [1]
        grid = self.figure.add_gridspec(len(shares), 1, height_ratios=shares, left=0, right=1, top=1, bottom=0, hspace=0)
        area = self.figure.add_subfigure(grid[0])
        width, height = self.figure.get_size_inches()
        down, across = arrange(max(1, len(charts)), self._rows, 1.5 * 1.5 * height / width)
        parts = area.subfigures(down, across, squeeze=False).ravel()
        self.cells = [Cell(chart, part) for chart, part in zip(charts, parts, strict=False)]
        self.bar = None
        if framed:
            self.bar = FrameBar(self.figure.add_axes((0.08, 0.0, 0.84, 0.6 * _BAR)), self.go_to)
            self._move_bar()
        self._animate(True)
        self._background = None

    def _artists(self) -> Iterator[Any]:
        for cell in self.cells:
            yield from (artist for artist in cell.drawing.artists if not _is_label(artist))
        if self.bar is not None:
            yield from self.bar.artists

    def _labels(self) -> list[Any]:
        """The texts in the axes: they are drawn with what stands, for a text takes longer than a line."""
        return [
            (artist, artist.get_text(), artist.get_position())
            for cell in self.cells for artist in cell.drawing.artists if _is_label(artist)
        ]  # fmt: skip

    def _animate(self, animated: bool) -> None:
        """Have what moves left out when everything else is drawn."""
        for artist in self._artists():
            artist.set_animated(animated)
            if isinstance(artist, Legend):
                artist.get_frame().set_alpha(1.0)  # see _draw_artists

    def _resized(self, event: Any) -> None:
        for cell in self.cells:
            cell.drawing.layout()
            cell._restore()

    # ------------------------------------------------------------ drawing

    def turn(self) -> None:
        """Show what is new; what the timer calls."""
        if self._gone():
            return
        start = time.monotonic()
        if [cell.chart for cell in self.cells] != list(self._charts()) or self._wants_bar():
            self._arrange()
            changes = {"structure"}
        else:
            self._play(start)
            if self._at_home():
                self._release()
            changes = {cell.update() for cell in self.cells} - {""}
        self._move_bar()
        if "structure" in changes:
            self._animate(True)
        if changes:
            self._paint(whole=changes != {"data"})
        if start - self._looked > _STATUS:
            self._looked = start
            self._call_it()
        took = time.monotonic() - start
        wait = round(1000 * max(FRAME, 1.5 * took))  # the toolkit needs time for the mouse and for keys
        if abs(wait - self.timer.interval) > 0.2 * self.timer.interval:
            self.timer.interval = wait

    def _paint(self, whole: bool) -> None:
        self.frames += 1
        blits = self.canvas.supports_blit and self._background is not None
        if whole or not blits or self._labels() != self._standing:
            self.redrawn += 1
            self.canvas.draw()
            return
        self.canvas.restore_region(self._background)
        self._draw_artists()
        self.canvas.blit(self.figure.bbox)

    def _drawn(self, event: Any) -> None:
        """Everything but what moves was drawn: keep that, and draw the rest over it."""
        if self._saving or self._gone():
            return
        if self.canvas.supports_blit:
            self._background = self.canvas.copy_from_bbox(self.figure.bbox)
            self._stamps.clear()
        self._standing = self._labels()
        self._draw_artists()

    def _draw_artists(self) -> None:
        """Draw what moves. A legend takes longer than all lines: it is drawn once, and then put where it was."""
        for artist in self._artists():
            if artist in self._stamps:
                self.canvas.restore_region(self._stamps[artist])
                continue
            self.figure.draw_artist(artist)
            if isinstance(artist, Legend) and self.canvas.supports_blit:
                self._stamps[artist] = self.canvas.copy_from_bbox(artist.get_window_extent())

    def _wants_bar(self) -> bool:
        return self.bar is None and any(cell.chart.frames for cell in self.cells)

    def _call_it(self) -> None:
        """Say in the title which run it is, and how it is."""
        parts = [self.title, self._status(), "paused" if self.paused else ""]
        title = " – ".join(filter(None, parts))
        if title != self._told:
            self._told = title
            self.manager.set_window_title("".join(c for c in title if c.isprintable())[:300])

    # ------------------------------------------------------------ frames

    def _framed(self) -> list[Cell]:
        """The charts that have frames, the one with the most first."""
        return sorted((cell for cell in self.cells if cell.chart.frames), key=lambda cell: -cell.chart.frames)

    def _move_bar(self) -> None:
        framed = self._framed()
        if self.bar is not None and framed:
            index, count = framed[0].drawing._picture.frame or (framed[0].chart.frames - 1, framed[0].chart.frames)
            self.bar.show(index, count)

    def go_to(self, index: int | None) -> None:
        """Show the frame ``index`` of the chart that has the most, and those of the same age; None the newest."""
        framed = self._framed()
        for cell in framed:
            back = 0 if index is None else framed[0].chart.frames - 1 - index
            cell.chart.show(None if not back else max(0, cell.chart.frames - 1 - back))
            cell.dirty = True

    def step(self, by: int) -> bool:
        """Go some frames on, or back; False if there is nothing further."""
        framed = self._framed()
        if not framed:
            return False
        index, count = framed[0].drawing._picture.frame or (0, 0)
        new = min(max(0, index + by), count - 1)
        self.go_to(None if new >= count - 1 else new)
        return new != index

    def _play(self, now: float) -> None:
        if self._playing and now >= self._playing:
            self._playing = now + _PLAY if self.step(1) else 0.0

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
        """Let the pictures stand, or move again; the streams go on."""
        self.paused = paused
        for cell in self.cells:
            cell.chart.pause() if paused else cell.chart.resume()
            cell.dirty = True
        self._call_it()

    def _pressed(self, event: Any) -> None:
        if event.dblclick:
            self._release()

    def _released(self, event: Any) -> None:
        """The user has zoomed or moved with the tools of the toolbar: that view is kept."""
        if event.inaxes is None or not getattr(self.canvas.toolbar, "mode", ""):
            return
        for cell in self.cells:
            if event.inaxes in cell.drawing.figure.axes:
                cell.hold()

    def _release(self) -> None:
        if any(cell.held for cell in self.cells):
            for cell in self.cells:
                cell.release()
            if self.canvas.toolbar is not None:
                self.canvas.toolbar.update()  # forgets the views that one could go back to
            self._background = None

    def _at_home(self) -> bool:
        """Whether the toolbar's Home was pressed after a zoom: it puts back limits that are of the past by now."""
        stack: Any = getattr(self.canvas.toolbar, "_nav_stack", None)
        return any(cell.held for cell in self.cells) and len(stack or ()) > 1 and getattr(stack, "_pos", -1) == 0

    # ------------------------------------------------------------ saving and closing

    def save(self, path: str = "") -> str:
        """Write the window as it is to ``path``, by default a new PNG file here; returns the path."""
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
        """Print the figure with what moves; also what the toolbar's button for saving calls."""
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
        """Whether the window is closed; its toolkit may tell of that a little later than its figure loses it."""
        return self.closed or self.figure.canvas is not self.canvas

    def _closed(self, event: Any) -> None:
        self.closed = True
        self.timer.stop()


def _is_label(artist: Any) -> bool:
    return isinstance(artist, Text) and artist.axes is not None
