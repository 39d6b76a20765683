"""Charts as a page in the browser: one file, rewritten while streams live."""

from __future__ import annotations

import base64
import html
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.drawing.backends.with_matplotlib import Drawing, align, draw_all, new_figure

RELOAD_INTERVAL_SECONDS = 2.0
"""Seconds after which the page reloads itself."""


class Page:
    """The file, whose figure is drawn once and then updated.

    A new figure each time would take longer, and Python drops a Ctrl-C that comes while it throws the old one away.
    """

    def __init__(self, plot: ChartGrid, path: Path) -> None:
        self.path = path
        self._plot = plot
        self._shape = (0, 0)
        self._drawings: list[Drawing] = []
        self._figure = new_figure()

    def html(self, title: str, again: float | None = None) -> str:
        """Return the page, which reloads after ``again`` seconds, or is the last."""
        self._draw(afresh=again is None)
        picture = io.BytesIO()
        self._figure.savefig(picture, format="png")
        data = base64.b64encode(picture.getvalue()).decode()
        refresh = "" if again is None else f'<meta http-equiv="refresh" content="{again:g}">'
        return (
            f'<!doctype html><html><head><meta charset="utf-8">{refresh}<title>{html.escape(title)}</title>'
            "<style>body { margin: 1em; text-align: center } img { max-width: 100% }</style></head>"
            f'<body><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></body></html>\n'
        )

    def write(self, title: str, again: float | None = None) -> None:
        """Replace the file atomically: a browser never sees half of it."""
        new = self.path.with_suffix(".new")
        new.write_text(self.html(title, again), encoding="utf-8")
        os.replace(new, self.path)

    def _draw(self, afresh: bool) -> None:
        """Bring the figure up to date; a new one has no room left for values to come."""
        pictures, (down, across) = self._plot.pictures(), self._plot.shape
        if afresh or len(pictures) != len(self._drawings) or self._shape != (down, across):
            self._shape = down, across
            self._figure = new_figure(min(16.0, 3 + 4 * across), min(40.0, 1 + 3.2 * down))
            self._drawings = draw_all(pictures, self._figure, down)
            return
        changes = {drawing.update(one) for drawing, one in zip(self._drawings, pictures, strict=True)}
        if "structure" in changes and len(pictures) > 1:
            align(self._drawings, across)


def show_page(
    plot: ChartGrid,
    title: str,
    status: Callable[[], str] = lambda: "",
    *,
    open_page: Callable[[str], object] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Path:
    """Open the page, and rewrite it until all streams have ended or ``ended``.

    It remains, in a directory that only this user can read. Returns its path.
    """
    import webbrowser

    page = Page(plot, Path(tempfile.mkdtemp(prefix="looptap-")) / "plot.html")
    plot.pull()
    page.write(title, RELOAD_INTERVAL_SECONDS)
    (open_page or webbrowser.open)(page.path.as_uri())
    try:
        while plot.live and not ended():
            if plot.pull():
                page.write(" – ".join(filter(None, (title, status()))), RELOAD_INTERVAL_SECONDS)
            time.sleep(RELOAD_INTERVAL_SECONDS / 2)
    finally:
        plot.pull()
        page.write(" – ".join(filter(None, (title, status()))))
    return page.path
