"""Charts in a terminal, redrawn while streams live; elsewhere printed once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.drawing.backends.with_text import all_as_text

MIN_FRAME_SECONDS = 0.1
"""Seconds between two frames, at least."""
GATHER_SECONDS = 5.0
"""Seconds for which values are collected before they are printed once."""


def show_terminal(
    plot: ChartGrid, title: str, status: Callable[[], str] = lambda: "", *, wait: float = GATHER_SECONDS
) -> None:
    """Draw a plot in the terminal until all streams have ended; keep the last frame.

    If stdout is no terminal, what arrives within ``wait`` seconds is printed once.
    """
    console = Console(highlight=False)
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        deadline = time.monotonic() + wait
        while plot.live and time.monotonic() < deadline:
            time.sleep(MIN_FRAME_SECONDS)
        plot.pull()
        print(chart_lines(plot, console.width, 20 * plot.shape[0], title, status(), color=False).plain)
        return

    def frame() -> Text:
        rows = max(1, -(-len(plot.cells) // max(1, min(len(plot.cells), console.width // 60))))
        height = max(8, (console.height - 3) // rows - 1)
        return chart_lines(plot, console.width - 1, height, title, status(), color=True)

    plot.pull()
    with Live(frame(), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        size: Any = console.size
        while True:
            alive, start = plot.live, time.monotonic()  # read before pulling, so that the last values are seen
            if plot.pull() or console.size != size or not alive:
                size = console.size
                live.update(frame(), refresh=True)
            if not alive:
                return
            time.sleep(max(MIN_FRAME_SECONDS, 2 * (time.monotonic() - start)))


def chart_lines(plot: ChartGrid, width: int, height: int, title: str, status: str, *, color: bool) -> Text:
    """Return the charts, each of at most ``height`` lines, under the run's title."""
    head = "".join(c for c in f"{title}  {status}".rstrip() if c.isprintable())
    text = all_as_text(plot.pictures(), width, height, color)
    return Text.assemble((head[: max(1, width)], "bold"), "\n", Text.from_ansi(text, no_wrap=True))
