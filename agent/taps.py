"""The event types of a run: numbers, groups, and the queries and commands that wait for their events.

Guarantees: events of one type are numbered without a gap and reach the queries in that order, from whichever thread
they come; an idle type costs a count. Assumes that attached queries are replaced as a whole (copy on write), never
changed in place.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from looptap.agent.queries import AttachedQuery
from looptap.streams.events import Event, Lazy, LazyEvent, Source
from looptap.streams.pipelines import Latest
from looptap.streams.snapshots import take

Command = Callable[[Event], None]


class Tap:
    """One type of events."""

    __slots__ = (
        "_counter", "_last", "_lock", "began", "busy", "closes", "commands", "latest", "number", "queries", "source",
        "tick",
    )  # fmt: skip

    def __init__(self, source: Source, lock: threading.RLock, closes: tuple[Tap, ...] = ()) -> None:
        self.source, self._lock, self.closes = source, lock, closes
        self._counter = itertools.count(1)
        self.tick: Callable[[], int] = self._counter.__next__  # one C call: exact from any thread
        self.number = 0  # of the newest event; where threads race, `seen` is exact
        self.began = 0  # the number of the last event before the open group
        self.queries: tuple[AttachedQuery, ...] = ()
        self.latest: tuple[Latest, ...] = ()
        self.commands: deque[Command] = deque()
        self._last = 0.0
        self.busy = bool(closes)

    @property
    def seen(self) -> int:
        """Events so far, exactly."""
        return int(repr(self._counter)[6:-1]) - 1  # 'count(8)': the number of the next one

    def update(self) -> None:
        """Decide anew whether an event has anything to do beyond being counted."""
        self.busy = bool(self.closes or self.queries or self.latest or self.commands)

    def deliver(self, observables: dict[str, Any]) -> None:
        """Raise one event: close groups, run commands, evaluate queries. Nothing but KeyboardInterrupt comes out."""
        if _capturing():
            return
        with self._lock:
            number = self.number = self.tick()
            now = monotonic()
            for inner in self.closes:
                inner.end_group(now)
            if not (self.queries or self.commands or self.latest):
                return
            kind = Event
            if Lazy.used and Lazy in map(type, observables.values()):
                kind = LazyEvent
            event = kind(observables, self.source, number, now, now - self._last if self._last else 0.0)
            self._last = now
            try:
                self._run(event, number, now)
            finally:
                observables.clear()  # nothing of the loop outlives the event, whatever a query has kept of it

    def _run(self, event: Event, number: int, now: float) -> None:
        while self.commands:
            self.commands.popleft()(event)
        for place in self.latest:
            try:
                place.value = take(getattr(event, place.name))[0]
            except Exception:  # the query that asked shows None; its own reads complain
                place.value = None
        started = now
        for query in self.queries:
            query.post(event, number, now, self.began)
            ended = monotonic()
            query.seconds += ended - started
            started = ended

    def end_group(self, now: float) -> None:
        """End the open group: the windows that follow it close."""
        with self._lock:
            self.began = self.seen
            for query in self.queries:
                if query.grouped and query.events:
                    query.close(self.number, now)
            if not self.queries:
                self._last = 0.0


class Deaf(dict[str, Tap]):
    """The event types of an inert agent: every name leads to a tap that counts and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._tap = Tap(Source("inert"), threading.RLock())

    def __missing__(self, name: object) -> Tap:
        return self._tap


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: then nothing may touch the device."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
