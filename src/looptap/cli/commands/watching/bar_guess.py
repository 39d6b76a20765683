"""A guess of when a run will be done, from the progress bar around its loop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from looptap.cli.commands.watching.guess import MAX_FRACTION, SIGHT_TIMEOUT_SECONDS, EpochPlace, Guess
from looptap.client.estimates import commonest
from looptap.client.run import Run
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Record

_LOOK_SECONDS = 0.5
"""Seconds between two looks at the bar."""
ONE_PASS = "These are the times of one pass over the data; how many follow is not known."
"""The note of a bar that is not around the whole loop."""


class BarReports(Guess):
    """Reports from the outermost bar of tqdm, which has counted since it began.

    A bar that began after the first event, or goes over a DataLoader, is one pass: then the next one begins again.
    """

    def __init__(self, run: Run, on: str, first_event: float, every: float) -> None:
        from looptap.integrations.tee.bars import outer_bar

        super().__init__(run.stream(outer_bar, on=on, throttle=_LOOK_SECONDS), on, every)
        self._first_event = first_event
        self._bar: Mapping[str, Any] = {"began": math.nan}
        self._place, self._before, self._bars_count = EpochPlace(), 0.0, 0

    def count(self, record: Record) -> None:
        """See `Guess.count`."""
        bar = record.value
        if not isinstance(bar, Mapping):
            return
        if bar["began"] != self._bar["began"]:
            self._bars_count += 1
            self._place, self._before = EpochPlace(), bar["done"]
            self.begin(record.time - bar["elapsed"], bar["total"] - bar["initial"], bar["initial"])
        self._bar = bar
        self.advance(record.time, self._before + self._place.done(bar["done"], record.event))

    def basis(self) -> Mapping[str, Any]:
        """See `Guess.basis`."""
        bar = self._bar
        one_pass = bar["loader"] or self._bars_count > 1 or bar["began"] > self._first_event
        name = f" {bar['name']!r}" if bar["name"] else ""
        return {
            "guess": f"the bar{name} of tqdm, {bar['done']:,.0f} of {bar['total']:,.0f}",
            "fraction": min(self._counted / bar["total"], MAX_FRACTION), "note": ONE_PASS if one_pass else "",
        }  # fmt: skip


def bar_reports(run: Run, every: float) -> BarReports | None:
    """Return reports from the open bar of tqdm; None: there is none."""
    from looptap.integrations.tee.bars import outer_bar

    on = commonest(run)
    try:
        asked = run.stream(outer_bar, on=on)
        bar = asked.wait(1, SIGHT_TIMEOUT_SECONDS)[0]
        asked.detach()
    except LooptapError:  # of an older agent, or no event
        return None
    return BarReports(run, on, _first_event(run, on), every) if isinstance(bar, Mapping) else None


def _first_event(run: Run, on: str) -> float:
    """Return the wall time of the first kept event; infinity: unknown."""
    with contextlib.suppress(LooptapError):
        query = next((one.query for one in run.scalars if one.on == on and not one.exposed), None)
        if query is not None:
            kept = run.stream(query, on=on, history=True)
            kept.wait(1, SIGHT_TIMEOUT_SECONDS)
            first = kept.records_after(0)[0].wall
            kept.detach()
            return first
    return math.inf
