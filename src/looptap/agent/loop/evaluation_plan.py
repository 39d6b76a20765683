"""Plans which queries run at an event and which later, and measures their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any

from looptap.agent.handoff.value_queue import QueueSet
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.columns.event_batch import HEADER_COUNT, MISSED, EventBatch
from looptap.agent.loop.deferred_evaluation import COPIED_EVENTS_PER_BATCH, EVENTS_PER_BATCH
from looptap.agent.loop.derived_query import end_derived_group, evaluate_derived
from looptap.agent.loop.overhead_budget import MEASURE_NEXT
from looptap.agent.loop.tap.choice import PlanState, SourceState, know_tensors, new_rows
from looptap.streams.events import Event, EventOrigin
from looptap.streams.language.copyable import row_maker
from looptap.streams.stream.attention import UNSEEN_SECONDS


class DeferredActions(Exception):
    """Actions that commands leave for after the event: to pause or to end the loop."""

    def __init__(self, actions: list[Callable[[], None]]) -> None:
        self.actions = actions

    def run(self) -> None:
        """Run the actions. Raises the host's ``on_stop``."""
        for action in self.actions:
            action()


class EvaluationPlan(PlanState):
    """The split of one type's queries into those evaluated at once and those later.

    ``rows`` are the events that wait for the later ones: see `Evaluable` and `EventBatch`.
    """

    __slots__ = (
        "_all_due", "_most", "ahead", "deferred", "done", "hooks", "immediate", "origin", "padding", "purse", "queries",
        "reads", "replaced", "row_of", "started", "width",
    )  # fmt: skip

    def __init__(
        self,
        origin: EventOrigin,
        queries: tuple[AttachedQuery, ...] = (),
        later: tuple[AttachedQuery, ...] = (),
        observables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.origin, self.queries, self.deferred = origin, queries, later
        put_off = frozenset(later)
        self.immediate = tuple(q for q in queries if q not in put_off)
        self.purse = self.immediate[0].meter.budget if self.immediate else None
        """What all immediate queries are paid from."""
        self.hooks = tuple(q.hooks for q in self.immediate if q.hooks is not None)
        self.reads = frozenset[str]().union(*(q.observed for q in self.immediate))
        """The names that the immediate queries probably read, for events whose observables have to be found."""
        names = tuple(frozenset().union(*(q.numbers or () for q in later)))
        self.padding = (None,) * len(names)
        self.width = HEADER_COUNT + len(names)
        know_tensors()
        self.keep(names, new_rows(self.width))
        self.limit = 0
        self.every = math.gcd(*(q.every for q in self.immediate))
        self.row_of = row_maker(self.names, observables)
        """A function of an event's observables, number, time and group that returns its row, or raises an error."""
        self.stale = False  # whether a query of ``later`` has turned out to be expensive
        self.started = self.replaced = False
        self.ahead: tuple[AttachedQuery, ...] = ()
        self.done = self._most = 0  # `_most`: the length of ``rows`` at which all queries are due, and the time
        self._all_due = 0.0

    def withhold(self, number: int) -> bool:
        """Withhold an event from all immediate queries; False if one may not skip it."""
        if not all([query.may_skip for query in self.immediate]):
            return False
        for query in self.immediate:
            if not number % query.every:
                query.withhold(number)
        return True

    def row_or_missed(self, observables: Mapping[str, Any], number: int, now: float, began: int) -> tuple[Any, ...]:
        """Return an event's row; as missed if its numbers cannot be had."""
        try:
            return self.row_of(observables, number, now, began)
        except Exception:
            return number, now, MISSED, *self.padding

    @property
    def room(self) -> int:
        """The events whose values may be evaluated together: half of what a sink holds."""
        rooms = [query.sink.capacity for query in self.deferred]
        rooms += [derived.sink.capacity for query in self.deferred for derived in query.derived]
        return min(rooms, default=2) // 2

    @property
    def batch(self) -> int:
        """The most events that are evaluated at once."""
        typed = not isinstance(self.rows, list)
        return COPIED_EVENTS_PER_BATCH if typed and all([q.copies for q in self.deferred]) else EVENTS_PER_BATCH

    @property
    def behind(self) -> tuple[AttachedQuery, ...]:
        """The ``later`` queries that have yet to see the events up to ``done``."""
        return tuple([query for query in self.deferred if query not in self.ahead])

    def end_ahead(self) -> int:
        """Return how far into ``rows`` the queries ``ahead`` may be evaluated alone.

        Their values are awaited. The others wait for more events: what a piece costs hardly depends on its size. 0 if
        all values are awaited, or none.
        """
        if not self.done:
            self.ahead = self._awaited()
            if not self.ahead or len(self.ahead) == len(self.deferred):
                return 0
            self._all_due = monotonic() + UNSEEN_SECONDS
            self._most = 3 * min(self.batch, self.room) // 4 * self.width
            if len(self.rows) >= self._most:
                return 0
        return min(len(self.rows), self.done + self._most)

    @property
    def all_due(self) -> bool:
        """True if the queries ``behind`` have waited long enough, or are awaited."""
        return monotonic() >= self._all_due or len(self.rows) >= self._most or self._awaited() != self.ahead

    def _awaited(self) -> tuple[AttachedQuery, ...]:
        return tuple([query for query in self.deferred if query.awaited])

    def evaluate(self, queries: Sequence[AttachedQuery], rows: Any, give_way: Callable[[], None]) -> None:
        """Evaluate deferred queries at those of the events that they have not seen.

        Calls ``give_way`` between two of them, and between events that one takes one by one.
        """
        batch = EventBatch.of_rows(self.origin, self.names, rows)
        for query in queries:
            give_way()
            if not query.cheap_later(partial(query.evaluate_batch, batch), len(batch), give_way):
                query.deferred = False  # it is for the budget to judge, event by event
                self.stale = True
            if query.derived:
                for end in batch.ends:
                    end_derived_group(query, *end)
                if not evaluate_derived(query, later=True, give_way=give_way):
                    self.stale = True
        give_way()

    def fail(self, reason: str) -> None:
        """Fail the ``later`` queries, which ends their evaluation. Loop thread."""
        for query in self.deferred:
            query.deferred = False
            query.fail(reason)
        self.stale = True


def evaluate(
    plan: EvaluationPlan, event: Event, number: int, now: float, began: int, step: float, queues: QueueSet, broke: bool
) -> tuple[float, float]:
    """Evaluate the immediate queries at the event; return the seconds that all took.

    And those of queries that the purse does not pay. ``step`` is the time of a step of the loop; ``broke`` says that
    the purse is empty.

    No wakeup is sent while the cost of a query is measured: it gives the interpreter lock away, and the I/O thread
    keeps that for as long as it likes.
    """
    queues.defers = True
    for hooks in plan.hooks:
        hooks.begin(event)
    try:
        return _evaluate(plan.immediate, event, number, now, began, step, queues, broke)
    finally:
        for hooks in plan.hooks:
            hooks.release()
        queues.defers = False
        if queues.deferred:
            queues.settle()


def _evaluate(
    queries: tuple[AttachedQuery, ...], event: Event, number: int, now: float, began: int, step: float,
    queues: QueueSet, broke: bool,
) -> tuple[float, float]:  # fmt: skip
    started = begin = monotonic()  # what an event costs with any query is no query's fault
    unpaid = 0.0
    for query in queries:
        if number % query.every:
            continue
        skips = query.may_skip
        if broke and skips:
            query.withhold(number)
            continue
        meter = query.meter
        if meter.skip:
            if meter.skip > 0:
                query.seen = number  # an interrupt finds all of this done, or nothing: there is no call
                meter.skip = meter.skip - 1 or MEASURE_NEXT
                query.withheld += 1
                continue
            query.evaluate_measured(event, number, now, began, step)
            ended = monotonic()
        else:
            query.evaluate(event, number, now, began)
            ended = monotonic()
            cost = ended - started
            query.seconds += cost
            if cost > meter.cheap:
                query.charge(cost, step, number, now)
                ended = monotonic()
            elif meter.every != 1:
                meter.forget()  # it has become cheap
        if query.derived:
            evaluate_derived(query)
            ended = monotonic()
        if not skips:  # nothing withholds it
            unpaid += ended - started
        if queues.deferred:  # the wakeup is not the query's cost, nor is what the I/O thread does then
            queues.settle()
            ended = monotonic()
        started = ended
    return started - begin, unpaid


def miss_nested(source: SourceState, now: float) -> int:
    """Count an event that a query has emitted, as missed; return its number.

    A query that saw it could emit again, and its cost would be counted twice: the event counts, and the windows that it
    belongs to are flagged.
    """
    source.number += 1
    for inner in source.inner_groups:
        inner.group_start, inner.groups_ended = inner.number, inner.groups_ended + 1
        for query in inner.queries:
            if query.grouped:
                query.miss(inner.number, now)
    for query in source.queries:
        if not source.number % query.every:
            query.miss(source.number, now)
    return source.number


def end_group(queries: tuple[AttachedQuery, ...], number: int, now: float, group: int, queues: QueueSet) -> None:
    """End the windows that follow the group, which is the ``group``-th."""
    if queues.defers:  # a query has ended the group
        for query in queries:
            if query.grouped:
                query.miss(number, now)
        return
    queues.defers = True
    try:
        for query in queries:
            if query.grouped and query.events and query.closed != group:
                query.flush(number, now, group)
            if query.derived:
                end_derived_group(query, number, now, group)
                evaluate_derived(query)
    finally:
        queues.defers = False
        if queues.deferred:
            queues.settle()
