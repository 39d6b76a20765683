"""The event types of a run: numbers, groups, and the queries and commands that wait for their events.

Guarantees: events of one type are numbered without a gap and reach the queries in that order, from whichever thread
they come; an idle type costs a count. Assumes that attached queries are replaced as a whole (copy on write), never
changed in place.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from looptap.agent.budget import CHEAP
from looptap.agent.guard import captures
from looptap.agent.queries import AttachedQuery
from looptap.streams.events import Event, Lazy, LazyEvent, Source, lazies
from looptap.streams.pipelines import Latest
from looptap.streams.snapshots import take

Command = Callable[[Event], None]

EVENT_TYPES = 1000
"""Types of events that an agent follows; a loop that makes up a new name at each step must not grow without bound."""


class Tap:
    """One type of events."""

    __slots__ = (
        "_last", "_lock", "_own", "began", "busy", "capturing", "closes", "commands", "latest", "number", "queries",
        "source",
    )  # fmt: skip

    def __init__(self, source: Source, lock: threading.RLock, closes: tuple[Tap, ...] = ()) -> None:
        self.source, self._lock, self.closes = source, lock, closes
        # Of the newest event. `number += 1` on a slot is exact from any thread: between its three instructions the
        # interpreter neither calls nor jumps back, and only there does it hand the GIL to another thread.
        self.number = 0
        self.began = 0  # the number of the last event before the open group
        self.queries: tuple[AttachedQuery, ...] = ()
        self.latest: tuple[Latest, ...] = ()
        self.commands: deque[Command] = deque()
        self._last = 0.0
        self._own = 0.0  # what the queries took at the last event
        self.update()

    def update(self) -> None:
        """Decide anew whether an event has anything to do beyond being counted."""
        self.capturing = captures()
        self.busy = bool(self.closes or self.queries or self.latest or self.commands)

    def deliver(self, observables: dict[str, Any]) -> None:
        """Raise one event: close groups, run commands, evaluate queries. Nothing but KeyboardInterrupt comes out."""
        if self.capturing is not None and self.capturing():
            self.number += 1  # counted as if nobody listened
            return
        with self._lock:
            self.number = number = self.number + 1
            now = monotonic()
            if self.closes:
                for inner in self.closes:
                    inner.end_group(now)
            if not (self.queries or self.commands or self.latest):
                return
            dt = now - self._last if self._last else 0.0
            self._last = now
            if lazies and Lazy in map(type, observables.values()):
                event: Event = LazyEvent(observables, self.source, number, now, dt)
            else:  # Event(…) spelled out: half the time of a call
                event = _new(Event)
                event.__dict__ = observables
                event._source, event._number, event._time, event._dt = self.source, number, now, dt
            try:
                if self.commands or self.latest:
                    self._prepare(event)
                started = monotonic()  # what an event costs with any query is no query's fault
                for query in self.queries:
                    meter = query.meter
                    if meter.skip:
                        meter.skip -= 1
                        continue
                    query.post(event, number, now, self.began)
                    ended = monotonic()
                    cost = ended - started
                    query.seconds += cost
                    if cost > CHEAP:
                        query.charge(cost, dt - self._own, number, now)
                        ended = monotonic()
                    elif meter.every != 1:
                        meter.forget()  # it has become cheap
                    started = ended
                self._own = started - now
            finally:
                observables.clear()  # nothing of the loop outlives the event, whatever a query has kept of it
                if type(event) is LazyEvent:
                    event._lazies.clear()

    def _prepare(self, event: Event) -> None:
        """Run the commands, and note what queries on other events want of this one."""
        while self.commands:
            self.commands.popleft()(event)
        for place in self.latest:
            try:
                place.value = take(getattr(event, place.name))[0]
            except Exception:  # the query that asked shows None; its own reads complain
                place.value = None

    def end_group(self, now: float) -> None:
        """End the open group: the windows that follow it close."""
        with self._lock:
            self.began = self.number
            for query in self.queries:
                if query.grouped and query.events:
                    query.close(self.number, now)
            if not self.queries:
                self._last = 0.0


class Taps:
    """All event types of a run. A type is opened by its first event or by who attaches to it."""

    def __init__(self, groups: tuple[str, ...], standing: dict[str, Any], rank: int) -> None:
        self.standing, self.rank = standing, rank
        self.lock = threading.RLock()
        self.by_name: dict[str, Tap] = {}
        for name in groups:
            closes = tuple(self.by_name.values())
            self.by_name[name] = Tap(Source(name, standing, rank), self.lock, closes)

    def open(self, event: str) -> Tap:
        """The tap of ``event``, made if need be. Raises ValueError beyond 1,000 types, TypeError for no text."""
        tap = self.by_name.get(event)
        if tap is None:
            if not isinstance(event, str):
                raise TypeError(f"an event is named by text, not {event!r:.60}.")
            if len(self.by_name) >= EVENT_TYPES:
                raise ValueError(f"{EVENT_TYPES} types of events, the bound; put what varies into an observable.")
            tap = self.by_name.setdefault(event, self._new(event))
        return tap

    def _new(self, event: str) -> Tap:
        return Tap(Source(event, self.standing, self.rank), self.lock)

    def counts(self) -> dict[str, int]:
        """Events so far, by type; a name that was only asked for does not appear."""
        return {name: tap.number for name, tap in list(self.by_name.items()) if tap.number}


class Deaf(Taps):
    """The event types of an inert agent: all names lead to one tap that nobody listens to."""

    def __init__(self) -> None:
        super().__init__((), {}, 0)
        self._tap = Tap(Source("inert"), self.lock)

    def _new(self, event: str) -> Tap:
        return self._tap

    def counts(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}


_new = object.__new__

