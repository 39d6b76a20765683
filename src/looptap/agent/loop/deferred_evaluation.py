"""Deferred evaluation of queries that are arithmetic on a few numbers.

After a training step the caches hold the loop's code, not looptap's: a query evaluated there costs ten times what it
costs in a row. So the training thread only copies the numbers into one flat list, and the queries of some twenty events
run together, on the I/O thread after a wakeup; in a loop so fast that they pile up, on the training thread, which has
the caches warm then. Every other query is evaluated at its event.

Guarantees: each query sees its events and the ends of its groups in order, none twice; the number of pending events is
bounded by evaluating them, not by dropping any. Ctrl-C during an evaluation costs a query one value: the next
evaluation does the rest of the piece. Assumes that events are appended under the lock of their types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from looptap.agent.handoff.ready_set import ReadySet

MAX_PENDING_EVENTS = 1024
"""Events of one type that the training thread leaves to the I/O thread; beyond, it evaluates them itself."""
MAX_PENDING_EVENTS_WITHOUT_WAIT = 2048
"""Events beyond which it even waits for the I/O thread to finish its piece."""
OVERFLOW_EVENTS = 65_536
"""Events beyond which the deferred queries fail: they must not pile up without bound."""
EVENTS_PER_BATCH = 512
"""Events that are evaluated at once; what a piece costs whatever its size is then a tenth of a microsecond each."""
COPIED_EVENTS_PER_BATCH = 4096
"""The same where nothing but copies of typed columns are made, some 10 ns an event: they may wait as many, too."""
BATCHES_PER_TURN = 4
"""Batches of one type that the I/O thread evaluates before it sends their values."""


LOCK_TIMEOUT_SECONDS = 0.5
"""Seconds that one thread waits for another one's piece."""


class Evaluable(Protocol):
    """The plan of one type's events, with those that wait for evaluation."""

    rows: Any
    """The pending events, ``width`` elements each, one after the other.

    Only appended to, an event in one step, and emptied from the front.
    """
    limit: int
    """The length of ``rows`` beyond which its producer calls `DeferredEvaluator.notify`.

    0 until a wakeup is on its way, so that there is one comparison at an event.
    """
    width: int
    started: bool
    """False before the first event, which is evaluated without delay: a client has just asked."""
    replaced: bool
    done: int
    """The length of what ``rows`` begins with that the queries ``ahead`` have seen, and those ``behind`` have not."""

    @property
    def deferred(self) -> Sequence[Any]:
        """The deferred queries."""

    @property
    def ahead(self) -> Sequence[Any]:
        """Some of them, whose values are awaited."""

    @property
    def behind(self) -> Sequence[Any]:
        """The others."""

    def end_ahead(self) -> int:
        """Return how far into ``rows`` those ``ahead`` may be evaluated alone."""

    @property
    def all_due(self) -> bool:
        """True if those ``behind`` are to be evaluated, too."""

    @property
    def room(self) -> int:
        """The events whose values may be evaluated together: half of what a sink holds."""

    @property
    def batch(self) -> int:
        """The most events that are evaluated at once."""

    def evaluate(self, queries: Sequence[Any], rows: Any, give_way: Callable[[], None]) -> None:
        """Evaluate deferred queries at these events and ends of groups."""

    def fail(self, reason: str) -> None:
        """Fail the deferred queries."""


class NullWakeup:
    """A wakeup that is always pending, for values without a consumer."""

    wakeup_pending = True

    def wake(self) -> None:
        """Do nothing."""

    def hasten(self) -> None:
        """Do nothing."""


class Turn:
    """The right to evaluate: one piece of an agent's events is evaluated at a time."""

    __slots__ = ("lock", "overdue", "thread", "wanted")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while a piece is evaluated. Only its owner can release it: so Ctrl-C never leaves it taken."""
        self.overdue = False
        """True once another thread has given up waiting for the piece; it does not wait for the same one again."""
        self.thread = 0
        """The identifier of the thread that evaluates."""
        self.wanted = False
        """True while another thread waits for the piece: its owner does not give way then."""


class DeferredEvaluator:
    """The events of an agent that wait for evaluation, of all types, each in order."""

    __slots__ = ("max_pending", "piece", "plans", "queues", "turn")

    def __init__(self, queues: ReadySet | NullWakeup) -> None:
        self.queues = queues
        self.plans: tuple[Evaluable, ...] = ()
        """The plans with deferred queries; replaced as a whole under the lock of the types."""
        self.max_pending = max(MAX_PENDING_EVENTS, COPIED_EVENTS_PER_BATCH)
        """The most events that may wait, of any plan."""
        self.turn = Turn()
        self.piece: tuple[Evaluable, Sequence[Any], Any] | None = None
        """The queries and the events being evaluated, or left over by Ctrl-C."""

    def for_unobserved_events(self) -> DeferredEvaluator:
        """Return a twin that never wakes the I/O thread; the two take turns."""
        twin = DeferredEvaluator(NullWakeup())
        twin.turn = self.turn
        return twin

    def update(self, *new: Evaluable) -> None:
        """Add a plan, and forget those that were replaced and have no events left."""
        self.plans = (*[plan for plan in self.plans if plan.rows or not plan.replaced], *new)

    def waits(self) -> bool:
        """Return True if events wait for evaluation."""
        return self.piece is not None or any([plan.rows for plan in self.plans])

    def pending(self) -> int:
        """Return the number of events and ends of groups that wait."""
        return sum([len(plan.rows) // plan.width for plan in self.plans])

    def notify(self, plan: Evaluable) -> None:
        """Wake the I/O thread for an event, or evaluate here if many wait. Loop thread."""
        waiting = len(plan.rows) // plan.width
        most = min(self.max_pending, max(MAX_PENDING_EVENTS, plan.batch))
        if not plan.started:
            plan.started = True
            self.drain()
        elif waiting < most:
            urgent = min(3 * most // 4, plan.room)
            try:
                plan.limit = ((urgent if waiting < urgent else most) - 1) * plan.width
                self.queues.wake()
                if waiting >= urgent:
                    self.queues.hasten()
            except BaseException:  # an interrupt: the wakeup may not have been sent
                plan.limit = 0
                raise
        elif waiting < OVERFLOW_EVENTS:
            self.drain(blocking=waiting >= max(MAX_PENDING_EVENTS_WITHOUT_WAIT, 2 * most))
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Fail the queries behind an evaluation that does not end; drop their events."""
        for plan in self.plans:
            if plan.rows:
                plan.rows.clear()
                plan.done = 0
                plan.fail(
                    f"{OVERFLOW_EVENTS:,} events were waiting while an evaluation on the I/O thread did not return; "
                    "looptap stacks names the query"
                )

    def drain(self, blocking: bool = True) -> None:
        """Evaluate all that waits; with ``blocking`` wait for another thread doing so."""
        while self.waits() and self.evaluate(blocking):
            pass

    def catch_up(self, give_way: Callable[[], None]) -> None:
        """Evaluate what waits now. I/O thread.

        The training thread takes a part of a flood. Events that come meanwhile gather for the next time: a piece of
        one costs as much as one of thirty. So do those of queries whose values nothing looks at: see `end_ahead`.
        ``give_way`` is called between two queries and between events, unless a thread waits for the piece.
        """
        if self.piece is not None:
            self.evaluate(give_way=give_way)
        for plan in self.plans:
            left, turns = len(plan.rows) // plan.width, BATCHES_PER_TURN
            if ahead := plan.end_ahead():
                self.evaluate(give_way=give_way, only=plan, ahead=ahead)
                left = plan.done // plan.width if plan.all_due else 0
            while left > 0 and turns > 0 and (done := self.evaluate(give_way=give_way, only=plan)):
                left, turns = left - done, turns - 1

    def evaluate(
        self,
        blocking: bool = True,
        give_way: Callable[[], None] = lambda: None,
        only: Evaluable | None = None,
        ahead: int = 0,
    ) -> int:
        """Evaluate one batch; return its number of events.

        They are those of ``only``, or of the first plan that has some; 0 if another thread evaluates, or nothing waits.
        ``ahead``: of the queries that are ahead alone, up to this length of the plan's rows.
        """
        turn, lock = self.turn, self.turn.lock
        me = threading.get_ident()
        if turn.thread == me or not self.waits():
            return 0
        try:  # Ctrl-C may come as soon as the lock is taken, before anything is noted
            if not lock.acquire(False):
                if not blocking or turn.overdue:
                    return 0
                turn.wanted = True
                if not lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
                    turn.overdue = True  # its owner clears this when the piece has ended
                    return 0
            turn.thread = me
            turn.overdue = turn.wanted = False
            if self.piece is None:
                self._take_piece(self.plans if only is None else (only,), ahead)
            if self.piece is None:
                return 0
            plan, queries, rows = self.piece
            plan.evaluate(queries, rows, lambda: None if turn.wanted else give_way())
            self.piece = None
            return len(rows) // plan.width
        except KeyboardInterrupt:
            self.queues.wake()
            raise
        except BaseException:
            self.piece = None
            raise
        finally:
            if turn.thread == me:
                turn.thread = 0
                turn.overdue = False
            try:  # noqa: SIM105 - a call of `suppress` would let Ctrl-C in before the lock is released
                lock.release()
            except RuntimeError:  # another thread has it
                pass

    def _take_piece(self, plans: Sequence[Evaluable], ahead: int) -> None:
        """Move the first events of one of the plans to `piece`.

        Those that only the queries ``ahead`` see stay in the plan. What these have seen already comes first, for the
        others alone. The limit is lowered first: an event that comes too late for this look finds it at 0 and asks for
        another one. Between the two halves of the move is no call, so no interrupt and no other thread's event.
        """
        for plan in plans:
            rows, done = plan.rows, plan.done
            if ahead:
                plan.limit, ahead = 0, min(ahead, len(rows))
                if ahead > done:
                    self.piece = plan, plan.ahead, rows[done:ahead]
                    plan.done = ahead
                return
            if rows:
                plan.limit, end = 0, min(plan.batch, max(plan.room, 1)) * plan.width
                queries, end = (plan.behind, min(end, done)) if done else (plan.deferred, end)
                left = max(0, done - end)
                self.piece = plan, queries, rows[:end]
                del rows[:end]
                plan.done = left
                return
