"""The streams that the screen opens by itself: declared ones, and curves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from looptap.cli.top.model import Facts
from looptap.client.run import Run
from looptap.client.streams.live import LiveStream
from looptap.store.queue import COMMANDS
from looptap.streams.stream.state_and_cost import LIVE
from looptap.visualizers.first_curves import MAX_FIRST_CURVES_COUNT, Curve, first_curves

MAX_DEFAULT_STREAMS = 12
"""The most declared streams shown from the start."""
MAX_BUFFERED_VALUES = 20_000
"""Values of a stream that the client keeps."""


class DefaultStreams:
    """What to open, each once: a stream that was dropped is not opened again.

    Without queries of the user's own there are curves of what events carry, too.
    """

    def __init__(self, run: Run, queries: bool) -> None:
        self._run, self._queries = run, queries
        self._declared: set[str] = set()
        self._curves: set[Curve] = set()

    def new(self, seen: Facts) -> list[Curve]:
        """Return what to open now, and note that it is open."""
        if self._run.state != LIVE:
            return []
        names = [name for name in _declared(seen) if name not in self._declared]
        names = names[: MAX_DEFAULT_STREAMS - len(self._declared)]
        curves = [] if self._queries else first_curves(seen.scalars, seen.streams)
        curves = [one for one in curves if one not in self._curves][: MAX_FIRST_CURVES_COUNT - len(self._curves)]
        self._declared.update(names)
        self._curves.update(curves)
        return [*(Curve(name) for name in names), *curves]

    def open(self, new: Iterable[Curve]) -> list[LiveStream]:
        """Attach the streams. Raises what `Run.stream` raises."""
        how: dict[str, Any] = {"history": True, "buffer": MAX_BUFFERED_VALUES}
        return [self._run.stream(one.query, on=one.on or None, name=one.name, **how) for one in new]

    def left(self, seen: Facts) -> int:
        """Return how many declared streams there are besides."""
        return len(_declared(seen)) - len(self._declared)


def _declared(seen: Facts) -> list[str]:
    """Return the names of declared streams; the commands have a part of their own."""
    return [one.name for one in seen.streams if one.name != COMMANDS]
