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
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from looptap.agent.outbox import Post
    from looptap.agent.taps import Plan

ENOUGH = 256
"""Events that the training thread leaves to the I/O thread; beyond, it evaluates itself what has piled up."""
MOST = 2048
"""Events beyond which it even waits for the I/O thread, which is at work on them."""
PIECE = 64
"""Events that are evaluated at once."""


PATIENCE = 0.5
"""Seconds that one thread waits for another one's piece."""

Waiting: TypeAlias = "tuple[Plan, int, float, float, int, dict[str, Any] | None]"
"""The plan of an event, its number, time, dt, the last event before its group, and its numbers: None ends the group."""


class Silence:
    """In place of the bell where nobody waits: it has always been rung already."""

    rung = True

    def wake(self) -> None:
        """Nobody is woken."""


class Backlog:
    """The events of an agent that wait for evaluation, of all types, in order."""

    __slots__ = ("enough", "evaluating", "events", "post")

    def __init__(self, post: Post | Silence) -> None:
        self.post = post
        self.events: deque[Waiting] = deque()
        self.enough = ENOUGH
        self.evaluating = threading.Lock()
        """Held while a piece is evaluated."""

    def quiet_twin(self) -> Backlog:
        """Another one, whose events no bell is rung for; one piece of either is evaluated at a time."""
        twin = Backlog(Silence())
        twin.evaluating = self.evaluating
        return twin

    def look(self) -> None:
        """See to what has just been appended: wake the I/O thread, or evaluate here if there is too much of it."""
        waiting = len(self.events)
        if waiting >= self.enough:
            self.drain(blocking=waiting >= MOST)
        else:
            self.post.wake()

    def drain(self, blocking: bool = True) -> None:
        """Evaluate all that waits now, and wait for another thread that is at it if ``blocking``."""
        while self.events and self.evaluate(blocking):
            pass

    def catch_up(self) -> None:
        """Evaluate, on the I/O thread, what waits; of a flood as much as the training thread leaves to it."""
        for _ in range(ENOUGH // PIECE):
            if not self.evaluate() or len(self.events) < PIECE:
                return

    def evaluate(self, blocking: bool = True) -> bool:
        """Evaluate up to 64 events; False if another thread is at it, or if nothing waits."""
        events, lock = self.events, self.evaluating
        if not events or not (lock.acquire(timeout=PATIENCE) if blocking else lock.acquire(False)):
            return False
        try:
            piece = [events.popleft() for _ in range(min(len(events), PIECE))]
            for plan, waiting in groupby(piece, itemgetter(0)):
                plan.evaluate(list(waiting))
        finally:
            lock.release()
        return True
