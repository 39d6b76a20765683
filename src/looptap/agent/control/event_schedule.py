"""Work scheduled by event number, for one type of events."""

from __future__ import annotations

import threading
from bisect import insort
from operator import itemgetter
from typing import Protocol

from looptap.agent.control.command import FollowUp
from looptap.agent.loop.evaluation_plan import DeferredActions
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.streams.events import Event


class Scheduled(Protocol):
    """Something that can be scheduled, such as a command."""

    def run(self, event: Event) -> FollowUp | None:
        """Execute it; a second call, after Ctrl-C, repeats nothing that has begun."""


class EventSchedule:
    """Work that waits for events of type ``on``, in event order on every rank."""

    def __init__(self, queries: QueryRegistry, on: str) -> None:
        self._queries, self._on = queries, on
        self.pending: list[tuple[int, str, Scheduled]] = []
        """Pending entries, sorted by event number and id."""
        self._running: Scheduled | None = None  # done, or left by Ctrl-C
        self._lock = threading.Lock()
        self._registered = False

    def add(self, number: int, id: str, scheduled: Scheduled) -> None:
        """Schedule for event ``number``, or the next if that has passed. Any thread."""
        with self._lock:
            insort(self.pending, (number, id, scheduled), key=itemgetter(0, 1))
            if self._registered:
                return
            self._registered = True
        self._queries.at_next(self._on, self.run)

    def drop(self, id: str) -> int:
        """Unschedule ``id``; return its event's number. I/O thread.

        Returns 0 if the loop thread has taken it.
        """
        with self._lock:
            number = next((number for number, known, _ in self.pending if known == id), 0)
            self.pending = [one for one in self.pending if one[1] != id]
            return number

    def run(self, event: Event) -> FollowUp | None:
        """Run the work that is due at this event; keep the rest. Loop thread."""
        actions = []
        while (scheduled := self._running or self._next(event._number)) is not None:
            if (then := scheduled.run(event)) is not None:
                actions.append(then)
            self._running = None
        with self._lock:
            self._registered = again = len(self.pending) > 0
        if again:  # after Ctrl-C it is called at the next event anyway
            self._queries.at_next(self._on, self.run)
        return DeferredActions(actions).run if actions else None

    def _next(self, number: int) -> Scheduled | None:
        with self._lock:
            if self.pending and self.pending[0][0] <= number:
                self._running = self.pending[0][2]
                del self.pending[0]
            return self._running
