"""Events whose queries are evaluated a moment later, because these are arithmetic on a few numbers.

After a training step the caches hold the loop's code, not looptap's: a query evaluated there costs ten times what it
costs in a row. So the training thread only copies the numbers, and the queries of some twenty events run together, on
the I/O thread when the bell has rung; in a loop so fast that they pile up, on the training thread, which has the caches
warm then. Every other query is evaluated at its event.

Guarantees: each query sees its events and the ends of its groups in their order, none twice; what waits is bounded, by
work and not by loss. Assumes that events are appended under the lock of their types.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from looptap.agent.outbox import Post
    from looptap.agent.taps import Plan

GATHER = 0.015
"""Seconds that an event waits for company."""
STALLED = 0.018
"""Seconds after which no further event has come to evaluate it: then the I/O thread does."""
ENOUGH = 256
"""Events that are company enough."""
MOST = 2048
"""Events beyond which it even waits for the I/O thread, which is at work on them."""
PIECE = 64
"""Events that are evaluated at once."""


PATIENCE = 0.5
"""Seconds that one thread waits for another one's piece."""

Waiting: TypeAlias = "tuple[Plan, int, float, float, int, dict[str, Any] | None]"
"""The plan of an event, its number, time, dt, the last event before its group, and its numbers: None ends the group."""


class Backlog:
    """The events of an agent that wait for evaluation, of all types, in order."""

    __slots__ = ("_lock", "due", "events", "gather", "post")

    def __init__(self, post: Post) -> None:
        self.post = post
        self.events: deque[Waiting] = deque()
        self.gather = GATHER
        self.due = 0.0
        """The time of an event from which on those that wait are to be evaluated."""
        self._lock = threading.Lock()

    def look(self, now: float) -> None:
        """See to what has just been appended: have the first one wait, and evaluate all when their time has come."""
        events = self.events
        if len(events) == 1:
            self.due = now + self.gather
        if now >= self.due or len(events) >= ENOUGH:
            self.drain(blocking=len(events) >= MOST)
        else:
            self.post.wake()

    def rescue(self, now: float) -> None:
        """Evaluate, on the I/O thread, what no further event has come for."""
        events = self.events
        try:
            stalled = now >= events[0][2] + STALLED
        except IndexError:
            return
        if stalled:
            self.evaluate()

    def drain(self, blocking: bool = True) -> None:
        """Evaluate all that waits now, and wait for another thread that is at it if ``blocking``."""
        while self.events and self.evaluate(blocking):
            pass

    def evaluate(self, blocking: bool = True) -> bool:
        """Evaluate up to 64 events; False if another thread is at it, or if nothing waits."""
        events = self.events
        if not events or not (self._lock.acquire(timeout=PATIENCE) if blocking else self._lock.acquire(False)):
            return False
        try:
            for _ in range(min(len(events), PIECE)):
                plan, number, now, dt, began, observables = events.popleft()
                plan.evaluate(number, now, dt, began, observables)
        finally:
            self._lock.release()
        return True
