"""`show`: a plot in a window, browser or terminal, whichever works here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from looptap.streams.stream.state_and_cost import LIVE
from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.charts.legends import run_of
from looptap.visualizers.surfaces.capabilities import Place, choose_place


def show(
    plot: ChartGrid,
    *,
    place: str = "",
    block: bool | None = None,
    title: str = "",
    report: Callable[[str], object] | None = None,
) -> Any:
    """Show a plot; return the `ChartWindow` if it is one.

    ``report`` gets a line on where it is shown and one on what was saved; by default both are printed to stderr.

    A window waits until it is closed if ``block``, by default as ``pyplot.show()`` does: in a script it waits, after
    ``pyplot.ion()`` it does not, and then moves while ``pyplot.pause`` or another loop of the toolkit runs. Elsewhere
    it waits, unless ``block`` is False, until no stream lives any more. Raises what `choose_place` raises.
    """
    say = report or (lambda text: print(f"looptap: {text}", file=sys.stderr, flush=True))
    found = choose_place(place)
    name = title or title_of(plot)
    if found.obstacles or report:
        say(f"{name} in {found}.")
    if found.backend:
        window = _window(plot, found, name, say)
        window.show(block)
        return window

    def elsewhere() -> None:
        if found.name == "browser":
            from looptap.visualizers.surfaces.page import show_page

            show_page(plot, name, lambda: status_of(plot))
        else:
            from looptap.visualizers.surfaces.terminal import show_terminal

            show_terminal(plot, name, lambda: status_of(plot))

    if block is False:
        threading.Thread(target=elsewhere, name="looptap-plot", daemon=True).start()
    else:
        elsewhere()
    return None


def _window(plot: ChartGrid, place: Place, title: str, say: Callable[[str], object]) -> Any:
    from matplotlib import get_backend, pyplot

    if place.name != "window" and get_backend(auto_select=False) != place.backend:
        pyplot.switch_backend(place.backend)
    from looptap.visualizers.surfaces.window import HELP, ChartWindow

    window = ChartWindow(plot, title=title, status=lambda: status_of(plot), say=say)
    say(f"in the window: {HELP}")
    return window


def title_of(plot: ChartGrid) -> str:
    """Return the runs of the streams, or else the streams' names."""
    streams = [stream for cell in plot.cells for stream in cell.streams]
    runs = dict.fromkeys(str(getattr(run_of(stream), "id", "")) for stream in streams)
    names = [name for name in runs if name] or list(dict.fromkeys(stream.name for stream in streams))
    return ", ".join(names)[:200] or "looptap"


def status_of(plot: ChartGrid) -> str:
    """Return which runs are lost or have ended; "" while all are live."""
    said: dict[str, None] = {}
    for cell in plot.cells:
        for stream in cell.streams:
            run = run_of(stream)
            if run is not None and getattr(run, "state", LIVE) != LIVE:
                said[f"{run.state}: {run.reason}" if run.reason else str(run.state)] = None
    return "; ".join(said)
