"""`WindowPainter`: draws moving marks over a saved picture of the rest."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.legend import Legend

from looptap.visualizers.cells import Cell
from looptap.visualizers.drawing.backends.with_csv import csv_of


class WindowPainter:
    """Draws a figure in a window; used by the thread of the window's toolkit.

    ``artists`` returns what moves, in drawing order; ``labels`` the texts that are drawn with the background, with all
    that their drawing depends on.
    """

    def __init__(self, figure: Any, artists: Callable[[], Iterable[Any]], labels: Callable[[], list[Any]]) -> None:
        self.figure, self.canvas = figure, figure.canvas
        self.frames = self.redrawn = 0
        """The number of frames shown, and of those that redrew everything."""
        self._artists, self._labels = artists, labels
        self._background: Any = None  # the picture of all that does not move
        self._shown_labels: list[Any] = []  # the texts in it
        self._stamps: dict[Any, Any] = {}  # drawn legends, by artist
        self._saving = False
        self._print = self.canvas.print_figure
        self.canvas.print_figure = self._print_whole

    def forget(self) -> None:
        """Draw everything in the next frame."""
        self._background = None

    def animate(self, animated: bool) -> None:
        """Exclude the moving marks from full draws."""
        for artist in self._artists():
            artist.set_animated(animated)

    def paint(self, whole: bool) -> None:
        """Show a frame; ``whole`` draws everything again."""
        self.frames += 1
        blits = self.canvas.supports_blit and self._background is not None
        if whole or not blits or self._labels() != self._shown_labels:
            self.redrawn += 1
            self.canvas.draw()
            return
        self.canvas.restore_region(self._background)
        self._draw_artists()
        self.canvas.blit(self.figure.bbox)

    def drawn(self) -> None:
        """Keep the background just drawn, and draw the moving marks over it."""
        if self._saving:
            return
        if self.canvas.supports_blit:
            self._background = self.canvas.copy_from_bbox(self.figure.bbox)
            self._stamps.clear()
        self._shown_labels = self._labels()
        self._draw_artists()

    def save(self, path: str, cells: Sequence[Cell]) -> str:
        """Write the figure, or as .csv the numbers of its charts; return why that failed."""
        try:
            if path.endswith(".csv"):
                text = "\r\n".join(csv_of(cell.draw(raw=True, whole=True)) for cell in cells)
                Path(path).write_text(text, encoding="utf-8", newline="")
            else:
                self.figure.savefig(path)
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def _draw_artists(self) -> None:
        """Draw the moving marks; draw a legend once, then copy it: legends are slow."""
        for artist in self._artists():
            if artist in self._stamps:
                self.canvas.restore_region(self._stamps[artist])
                continue
            self.figure.draw_artist(artist)
            if isinstance(artist, Legend) and self.canvas.supports_blit:
                self._stamps[artist] = self.canvas.copy_from_bbox(artist.get_window_extent())

    def _print_whole(self, *args: Any, **how: Any) -> Any:
        """Print the figure with its moving marks; the toolbar's save button calls it too."""
        self._saving = True
        self.animate(False)
        try:
            return self._print(*args, **how)
        finally:
            self.animate(True)
            self._saving = False
            self.forget()
            with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
                self.canvas.draw_idle()


def file_name(title: str, suffix: str = ".png") -> str:
    """Return the name of a new file of a window."""
    name = re.sub(r"[^\w.+-]+", "_", title)[:80].strip("_") or "looptap"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}{suffix}"
