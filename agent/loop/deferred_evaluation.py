"""Deferred evaluation of queries that are arithmetic on a few numbers.

After a training step the caches hold the loop's code, not looptap's: a query evaluated there costs ten times what it
costs in a row. So the training thread only copies the numbers, and the queries of some twenty events run together, on
the I/O thread after a wakeup; in a loop so fast that they pile up, on the training thread, which has the caches
warm then. Every other query is evaluated at its event.

Guarantees: each query sees its events and the ends of its groups in order, none twice; the number of pending events is
bounded by evaluating them, not by dropping any. Ctrl-C during an evaluation costs a query one value: the next
evaluation does the rest of the piece. Assumes that events are appended under the lock of their types.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import groupby, islice, repeat, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from looptap.agent.handoff.value_queue import QueueSet

MAX_PENDING_EVENTS = 256
"""Events that the training thread leaves to the I/O thread; beyond, it evaluates them itself."""
MAX_PENDING_EVENTS_WITHOUT_WAIT = 2048
"""Events beyond which it even waits for the I/O thread to finish its piece."""
OVERFLOW_EVENTS = 65_536
"""Events beyond which the deferred queries fail: they must not pile up without bound."""
EVENTS_PER_BATCH = 64
"""Events that are evaluated at once."""


LOCK_TIMEOUT_SECONDS = 0.5
"""Seconds that one thread waits for another one's piece."""


class Evaluable(Protocol):
    """The plan of an event, which evaluates its deferred queries."""

    def evaluate(self, waiting: list[Any]) -> None:
        """Evaluate these events and ends of groups."""

    def fail(self, reason: str) -> None:
        """Fail the deferred queries."""


PendingEvent: TypeAlias = "tuple[Evaluable, int, float, float, int, dict[str, Any] | object | None]"
"""The plan of an event, its number, time, dt, the last event before its group, and its numbers: None ends the group,
`MISSED` stands for an event that Ctrl-C has cut short."""
MISSED: Final = object()


class NullWakeup:
    """A wakeup that is always pending, for values without a consumer."""

    wakeup_pending = True

    def wake(self) -> None:
        """Do nothing."""


class Turn:
    """The right to evaluate: one piece of an agent's events is evaluated at a time."""

    __slots__ = ("lock", "overdue", "thread")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while a piece is evaluated. Only its owner can release it: so Ctrl-C never leaves it taken."""
        self.overdue = False
        """True once another thread has given up waiting for the piece; it does not wait for the same one again."""
        self.thread = 0
        """The identifier of the thread that evaluates."""


class DeferredEvaluator:
    """The events of an agent that wait for evaluation, of all types, in order."""

    __slots__ = ("events", "max_pending", "piece", "queues", "turn")

    def __init__(self, queues: QueueSet | NullWakeup) -> None:
        self.queues = queues
        self.events: deque[PendingEvent] = deque()
        self.max_pending = MAX_PENDING_EVENTS
        self.turn = Turn()
        self.piece: list[PendingEvent] = []
        """The events being evaluated, or left over by Ctrl-C."""

    def for_unobserved_events(self) -> DeferredEvaluator:
        """Return a twin that never wakes the I/O thread; the two take turns."""
        twin = DeferredEvaluator(NullWakeup())
        twin.turn = self.turn
        return twin

    def waits(self) -> bool:
        """Return True if events wait for evaluation."""
        return bool(self.events or self.piece)

    def notify(self) -> None:
        """Wake the I/O thread for an event, or evaluate here if many wait. Loop thread."""
        waiting = len(self.events)
        if waiting < self.max_pending:
            self.queues.wake()
        elif waiting < OVERFLOW_EVENTS:
            self.drain(blocking=waiting >= MAX_PENDING_EVENTS_WITHOUT_WAIT)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Fail the queries behind an evaluation that does not end; drop their events."""
        plans = {waiting[0] for waiting in [*self.events]}  # copied in one step, whatever the I/O thread takes
        self.events.clear()
        for plan in plans:
            plan.fail(
                f"{OVERFLOW_EVENTS:,} events were waiting while an evaluation on the I/O thread did not return; "
                "looptap stacks names the query"
            )

    def drain(self, blocking: bool = True) -> None:
        """Evaluate all that waits; with ``blocking`` wait for another thread doing so."""
        while (self.events or self.piece) and self.evaluate(blocking):
            pass

    def catch_up(self) -> None:
        """Evaluate what waits; the training thread takes a part of a flood. I/O thread."""
        for _ in range(MAX_PENDING_EVENTS // EVENTS_PER_BATCH):
            if not self.evaluate() or len(self.events) < EVENTS_PER_BATCH:
                return

    def evaluate(self, blocking: bool = True) -> bool:
        """Evaluate up to 64 events; False if another thread does, or nothing waits."""
        events, piece, turn, lock = self.events, self.piece, self.turn, self.turn.lock
        me = threading.get_ident()
        if not (events or piece) or turn.thread == me:
            return False
        try:  # Ctrl-C may come as soon as the lock is taken, before anything is noted
            if not lock.acquire(False):
                if not blocking or turn.overdue:
                    return False
                if not lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
                    turn.overdue = True  # its owner clears this when the piece has ended
                    return False
            turn.thread = me
            turn.overdue = False
            if not piece:  # in one call, so that no event is in neither
                piece.extend(islice(starmap(events.popleft, repeat(())), min(len(events), EVENTS_PER_BATCH)))
            for plan, waiting in groupby(piece, itemgetter(0)):
                plan.evaluate(list(waiting))
            piece.clear()
            return True
        except KeyboardInterrupt:
            self.queues.wake()
            raise
        except BaseException:
            piece.clear()
            raise
        finally:
            if turn.thread == me:
                turn.thread = 0
                turn.overdue = False
            try:  # noqa: SIM105 - a call of `suppress` would let Ctrl-C in before the lock is released
                lock.release()
            except RuntimeError:  # another thread has it
                pass
