"""`looptap plot`: streams as charts, in a window or wherever they can be seen from here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from looptap.cli.formats import several
from looptap.cli.output import DONE, MISTYPED, complain
from looptap.cli.sources import source, streams_of
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.chart import IncompatibleStreams
from looptap.visualizers.plot import Plot

POLL_INTERVAL_SECONDS = 0.05
"""Seconds between two looks while values are waited for."""


def plot(
    name: str,
    queries: Sequence[str],
    how: dict[str, Any],
    look: dict[str, Any],
    *,
    together: bool = False,
    place: str = "",
    save: str = "",
    after: float = 5.0,
    go_on: bool = False,
    wait: float | None = None,
) -> int:
    """Show ``queries`` to the run ``name`` as charts until the user has seen enough; returns the exit code.

    ``how`` are the further arguments of `Run.stream`, ``look`` those of `Plot`.
    """
    from looptap.visualizers.surfaces.capabilities import NoPlace
    from looptap.visualizers.surfaces.showing import show

    with source(name, follow=go_on, wait=wait) as run:
        streams = streams_of(run, queries, how)
        try:
            charts = Plot(streams, **look) if together else Plot(*streams, **look)
        except IncompatibleStreams as error:
            return complain(str(error))
        except ValueError as error:  # a kind of chart that there is not
            complain(str(error))
            return MISTYPED
        if save:
            return _save(charts, streams, save, after)
        try:
            show(charts, place=place, block=True, told=lambda text: print(f"looptap: {text}", file=sys.stderr))
        except (NoPlace, ValueError) as error:
            return complain(str(error))
        except KeyboardInterrupt:  # enough seen
            pass
    return DONE


def _save(charts: Plot, streams: Sequence[Stream], path: str, after: float) -> int:
    """Write what came within ``after`` seconds to a file."""
    deadline = time.monotonic() + after
    while charts.live and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_SECONDS)
    charts.pull()
    if not any(stream.arrived for stream in streams):
        return complain(f"No value of {streams[0].name!r} came within {after:g} s, and nothing was saved.")
    try:
        charts.save(path)
    except (ValueError, ImportError) as error:
        return complain(str(error))
    print(f"{several(sum(stream.arrived for stream in streams), 'value')} drawn; saved: {path}")
    return DONE
