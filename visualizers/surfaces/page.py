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
from looptap.visualizers.drawing.backends.with_matplotlib import draw_all, new_figure

RELOAD_INTERVAL_SECONDS = 2.0
"""Seconds after which the page reloads itself."""


def page(plot: ChartGrid, title: str, again: float | None) -> str:
    """Return the page, which reloads after ``again`` seconds; texts are escaped."""
    down, across = plot.shape
    figure = new_figure(min(16.0, 3 + 4 * across), min(40.0, 1 + 3.2 * down))
    draw_all(plot.pictures(), figure, down)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    data = base64.b64encode(picture.getvalue()).decode()
    refresh = "" if again is None else f'<meta http-equiv="refresh" content="{again:g}">'
    return (
        f'<!doctype html><html><head><meta charset="utf-8">{refresh}<title>{html.escape(title)}</title>'
        "<style>body { margin: 1em; text-align: center } img { max-width: 100% }</style></head>"
        f'<body><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></body></html>\n'
    )


def write(plot: ChartGrid, title: str, path: Path, again: float | None) -> None:
    """Replace the page at ``path`` atomically: a browser never sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(page(plot, title, again), encoding="utf-8")
    os.replace(new, path)


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

    path = Path(tempfile.mkdtemp(prefix="looptap-")) / "plot.html"
    plot.pull()
    write(plot, title, path, RELOAD_INTERVAL_SECONDS)
    (open_page or webbrowser.open)(path.as_uri())
    try:
        while plot.live and not ended():
            if plot.pull():
                write(plot, " – ".join(filter(None, (title, status()))), path, RELOAD_INTERVAL_SECONDS)
            time.sleep(RELOAD_INTERVAL_SECONDS / 2)
    finally:
        plot.pull()
        write(plot, " – ".join(filter(None, (title, status()))), path, None)
    return path
