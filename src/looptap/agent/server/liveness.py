"""Liveness of the loop: event counts, their ages, and long-running client code.

The I/O thread looks once a heartbeat, whether or not a client is connected: `emit` only counts, and notes no time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from looptap.agent.loop.event_sources import EventSources
from looptap.agent.run.active_code import Inside, evaluations
from looptap.protocol.statistics import EventActivity, LongEvaluation

log = logging.getLogger("looptap")

LONG_SECONDS = 5.0
"""Seconds in one evaluation of a query, or in one command, after which clients and the log hear of it."""


class LoopLiveness:
    """The age of each event type's last event, exact to a heartbeat."""

    def __init__(self, sources: EventSources, owner: Callable[[object], str]) -> None:
        self._sources, self._owner = sources, owner
        self._counts: dict[str, int] = {}
        self._moved: dict[str, float] = {}  # when a look last found that a type had new events
        self._began = self._delivered = self._last_beat = time.monotonic()
        self._found: dict[int, tuple[Inside, float]] = {}  # by thread, with the beat before it was found
        self.inside: list[Inside] = []
        """The queries and commands that have run for `LONG_SECONDS` and have not returned."""

    def beat(self) -> None:
        """Update, and record what has been running for long. I/O thread only."""
        delivers, before, self._last_beat = self.update(), self._last_beat, time.monotonic()
        if delivers and self._delivered <= before:
            self._look_inside(self._last_beat, before)
        else:  # events are delivered one at a time: where one has come, the one before is over
            self._found = {}
            self._note([])

    def update(self) -> bool:
        """Record which event counts have moved; True if some type has work to do."""
        now, delivers = time.monotonic(), False
        for name, source in self._sources.types():
            count = source.number
            if count != self._counts.get(name, 0):
                self._counts[name], self._moved[name] = count, now
                if source.evaluates:
                    self._delivered = now
            delivers = delivers or source.evaluates
        return delivers

    def _look_inside(self, now: float, before: float) -> None:
        earlier, self._found = self._found, {}
        for one in evaluations():
            known, since = earlier.get(one.thread, (one, before))
            self._found[one.thread] = one, since if one.same(known) else before
        late = [one._replace(seconds=now - since) for one, since in self._found.values() if now - since >= LONG_SECONDS]
        self._note([one._replace(client=self._owner(one.subject)) for one in late])

    def _note(self, inside: list[Inside]) -> None:
        if not (inside or self.inside):
            return
        before, self.inside = self.inside, inside
        for one in before:
            one.subject.overdue = 0.0
        for one in inside:
            one.subject.overdue = one.seconds
            if not any(map(one.same, before)):
                log.warning(
                    "looptap: the loop is waiting for %s. It cannot be interrupted; looptap stacks shows where it is.",
                    one,
                )

    def idle(self) -> float:
        """Update, and return the seconds since the last event, or since the start."""
        self.update()
        return time.monotonic() - max(self._moved.values(), default=self._began)

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last event of each type."""
        now = time.monotonic()
        return {name: now - moved for name, moved in list(self._moved.items())}

    def age(self) -> float:
        """Return the seconds since the agent started."""
        return time.monotonic() - self._began

    def report(self) -> dict[str, EventActivity]:
        """Update, and return the count and the age of the last event, by type."""
        self.update()
        return {name: EventActivity(count=self._counts[name], idle=age) for name, age in self.ages().items()}

    def as_info(self) -> list[LongEvaluation]:
        """Describe the queries and commands that have been running for long."""
        return [one.as_info() for one in self.inside]
