"""Plans which queries run at an event and which later, and measures their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.loop.at_event import evaluate_at_event
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.columns.event_batch import HEADER_COUNT, MISSED, EventBatch
from looptap.agent.loop.deferred_evaluation import COPIED_EVENTS_PER_BATCH, EVENTS_PER_BATCH
from looptap.agent.loop.hooks.query_hooks import QueryHooks
from looptap.agent.loop.in_columns import evaluate_in_columns
from looptap.agent.loop.overhead_budget import CHEAP_SECONDS, OverheadBudget
from looptap.agent.loop.tap.choice import PlanState, SourceState, know_tensors, new_rows
from looptap.streams.events import Event, EventOrigin, FoundObservables
from looptap.streams.language.copyable import copied_numbers, row_maker
from looptap.streams.stream.attention import UNSEEN_SECONDS

MAX_REVIEW_EVENTS = 256
"""Events after which a query that lacked a plain number is deferred again at the latest, if it has them."""


Queries: TypeAlias = tuple[AttachedQuery, ...]


class DeferredActions(Exception):
    """Actions that commands leave for after the event: to pause or to end the loop."""

    def __init__(self, actions: list[Callable[[], None]]) -> None:
        self.actions = actions

    def run(self) -> None:
        """Run the actions. Raises the host's ``on_stop``."""
        for action in self.actions:
            action()


def deferrable(queries: Queries, observables: dict[str, Any]) -> Queries:
    """Return the queries of plain numbers, all of which this event has."""
    waiting = [query for query in queries if query.may_wait() and not query.limit.suspended]
    given, there = observables.keys(), dict[Any, bool]()
    varying = observables.varying if type(observables) is FoundObservables else frozenset()
    for names in {q.numbers for q in waiting}:  # many queries read the same ones
        there[names] = copied_numbers(observables, names or ()) is not None
    return tuple(
        q for q in waiting if there[q.numbers] and q.language.isdisjoint(given) and varying.isdisjoint(q.observed)
    )


class ImmediateQueries(NamedTuple):
    """Queries that are evaluated at an event, and what they need there."""

    queries: Queries
    hooks: tuple[QueryHooks, ...]
    reads: frozenset[str]
    """The names that they probably read, for events whose observables have to be found."""
    everies: tuple[int, ...]
    """At which events they are due, each once: to ask forty queries takes 25 µs after a training step."""

    @classmethod
    def of(cls, queries: Queries) -> ImmediateQueries:
        """Return these queries with what they need."""
        hooks = tuple(q.hooks for q in queries if q.hooks is not None)
        reads = frozenset[str]().union(*(q.observed for q in queries))
        return cls(queries, hooks, reads, tuple({q.every for q in queries}))

    def due(self, number: int) -> bool:
        """Return True if one of them is due at the event."""
        return any([not number % every for every in self.everies])


class EvaluationPlan(PlanState):
    """The split of one type's queries into those evaluated at once and those later.

    ``rows`` are the events that wait for the later ones: see `Evaluable` and `EventBatch`.
    """

    __slots__ = (
        "_all_due",
        "_begun",
        "_holds",
        "_known",
        "_looked",
        "_most",
        "_passed",
        "_rests_until",
        "_wait",
        "ahead",
        "deferred",
        "done",
        "immediate",
        "mapped",
        "origin",
        "padding",
        "passed_at",
        "pays",
        "purse",
        "queries",
        "reducing",
        "replaced",
        "review",
        "row_of",
        "started",
        "width",
    )

    def __init__(
        self,
        origin: EventOrigin,
        queries: Queries = (),
        later: Queries = (),
        observables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.origin, self.queries, self.deferred = origin, queries, later
        put_off = frozenset(later)
        immediate = tuple(q for q in queries if q not in put_off)
        self.mapped = tuple(q for q in immediate if q.account.mapped)
        """The immediate queries that may skip events."""
        self.immediate = ImmediateQueries.of(immediate)
        self.reducing = ImmediateQueries.of(tuple(q for q in immediate if not q.account.mapped))
        self.purse = immediate[0].account.budget if immediate else None
        """What all immediate queries without a grant are paid from."""
        self.pays = False
        """True if it is not empty, as of the newest event."""
        self._passed = dict.fromkeys({q.every for q in self.mapped}, 0), 0  # see `passed`
        self.passed_to = self.rest_number = self._looked = 0
        self.rest_time, self._rests_until, self._known = 0.0, -math.inf, -1  # of all mapped queries, and if all know it
        self.passed_at = -math.inf
        """The time of about the newest event that was kept from all mapped queries."""
        names = tuple(frozenset().union(*(q.numbers or () for q in later)))
        self.padding = (None,) * len(names)
        self.width = HEADER_COUNT + len(names)
        know_tensors()
        self.keep(names, new_rows(self.width) if later else None)
        self.limit = 0
        self.every = math.gcd(*(q.every for q in immediate))
        self.row_of = row_maker(self.names, observables)
        """A function of an event's observables, number, time and group that returns its row, or raises an error."""
        self.stale = False  # whether a query of ``later`` has turned out to be expensive
        self._begun, self._wait, self._holds = 0, 1, False  # see `follow`
        self.review = math.inf
        """The number of the event at which to look again which queries may be deferred."""
        self.started = self.replaced = False
        self.ahead: Queries = ()
        self.done = self._most = 0  # `_most`: the length of ``rows`` at which all queries are due, and the time
        self._all_due = 0.0

    def follow(self, before: EvaluationPlan, number: int) -> None:
        """Take over at an event; look again soon if queries lack plain numbers there.

        A number that is missing now and then costs two plans each time. One that is missing at every second event
        would cost two for each value, so the plan lasts longer each time that the one before it did not last.
        """
        lasted = 1 if before._holds else max(1, number - before._begun)
        self._begun, self._wait = number, before._wait
        self._holds = any([query.may_wait() for query in self.immediate.queries])
        if self._holds:
            self._wait = min(max(2 * before._wait // lasted, 1), MAX_REVIEW_EVENTS)
            self.review = number + self._wait

    def only_keeps(self, number: int, now: float) -> bool:
        """Return True if an event is only to be kept, as the tap does."""
        due = self.every and not number % self.every
        return not due or (number < self.rest_number and now < self.rest_time)

    def _fill(self, number: int, now: float) -> bool:
        """Fill the purse at an event; return True if mapped queries may be evaluated."""
        events = number - self._looked if self.rest_number else 1
        self.rest_number, self._looked = 0, number
        return self.purse is None or self.purse.fill(now, events)

    def passes_over(self, number: int, now: float, pays: bool) -> bool:
        """Withhold an event from all mapped queries; False if one may run at it.

        ``pays``: the purse is not empty. Touches no query where all were withheld at the event before: to look at forty
        takes 40 µs after a training step. Where nothing else is to do, events that follow are not even looked at.
        """
        purse = self.purse
        if pays or purse is None:
            self._count_passed()
            return False
        if not (self._known == purse.revision and now < self._rests_until):
            due = [query for query in self.mapped if not number % query.every]
            self._count_passed()
            if any([now >= query.account.runs_at(query.events > 0) for query in due]):
                return False
            for query in due:
                query.withhold(number, now)
            if all([query.limit.limited for query in self.mapped]):  # and know it
                for query in self.mapped:
                    query.pipeline.begin(partial=True)  # not only those that are due
                self._known = purse.revision
                self._rests_until = min([q.account.runs_at(q.events > 0) for q in self.mapped], default=math.inf)
            return True
        counts, after = self._passed
        if after >= self.passed_to:
            self._passed = counts, number - 1
        self.passed_to, self.passed_at = number, now
        if not self.reducing.queries:
            events, seconds = purse.until_filled(now)
            self.rest_time = min(now + seconds, self._rests_until)
            self.rest_number = number + events
        return True

    def passed(self, every: int) -> int:
        """Return how many events at every ``every``-th were kept from all queries.

        Any thread. They are counted by range: no query is touched, and what the tap passes over runs no Python code.
        """
        last = self.passed_to  # first: of what is counted meanwhile nothing counts twice
        counts, after = self._passed
        return counts.get(every, 0) + max(0, last // every - after // every)

    def _count_passed(self) -> None:
        """Close the range of events that were passed over."""
        self._known = -1
        counts, after = self._passed
        if after < self.passed_to:
            self._passed = {every: self.passed(every) for every in counts}, self.passed_to

    def row(self, observables: Mapping[str, Any], number: int, now: float, began: int) -> tuple[Any, ...] | None:
        """Return an event's row; None if a number is not there, is none, or has no value."""
        try:
            return self.row_of(observables, number, now, began)
        except Exception:
            return None

    def missed(self, number: int, now: float) -> tuple[Any, ...]:
        """Return the row of an event whose numbers cannot be had."""
        return number, now, MISSED, *self.padding

    def choose(self, number: int, now: float) -> ImmediateQueries:
        """Return the immediate queries that may run, once the purse is filled."""
        chosen, purse = self.immediate, self.purse
        if purse is None or not chosen.due(number):
            return chosen
        began, self.pays = monotonic(), self._fill(number, now)
        if not self.passes_over(number, now, self.pays):
            return chosen
        purse.pay(min(monotonic() - began, 5 * CHEAP_SECONDS))  # to pass over an event costs time, too
        return self.reducing

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
        copies = typed and all([query.copies for query in self.deferred])
        return COPIED_EVENTS_PER_BATCH if copies else EVENTS_PER_BATCH

    @property
    def behind(self) -> Queries:
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

    def _awaited(self) -> Queries:
        return tuple([query for query in self.deferred if query.awaited])

    def evaluate(self, queries: Sequence[AttachedQuery], rows: Any, give_way: Callable[[], None]) -> None:
        """Evaluate deferred queries at those of the events that they have not seen.

        Calls ``give_way`` between two of them, and between events that one takes one by one.
        """
        batch = EventBatch.of_rows(self.origin, self.names, rows)
        for query in queries:
            give_way()
            query.evaluate_later(partial(evaluate_in_columns, query, batch), len(batch), give_way)
            if query.derived:
                for end in batch.ends:
                    query.end_derived_group(*end)
                query.evaluate_derived(True, give_way)
            if not query.may_wait():  # it is for the budget to judge, event by event
                self.stale = True
        give_way()

    def evaluate_now(
        self, due: ImmediateQueries, event: Event, number: int, now: float, began: int, queues: ReadySet, costs: Costs
    ) -> None:
        """Evaluate the queries that are due at the event.

        No wakeup is sent while the cost of a query is measured: it gives the interpreter lock away, and the I/O thread
        keeps that for as long as it likes.
        """
        queues.defers = True
        for hooks in due.hooks:
            hooks.begin(event)
        try:
            self._evaluate_each(due.queries, event, number, now, began, queues, costs)
        finally:
            for hooks in due.hooks:
                hooks.release()
            queues.defers = False
            if queues.deferred:
                queues.settle()

    def _evaluate_each(
        self, queries: Queries, event: Event, number: int, now: float, began: int, queues: ReadySet, costs: Costs
    ) -> None:
        began_at = started = monotonic()
        for query in queries:
            if number % query.every:
                continue
            account, events = query.account, query.events
            if not (query.limit.may_run(now, self.pays) if events else account.may_begin(now, started - began_at)):
                query.withhold(number, now)
                continue
            evaluate_at_event(query, event, number, now, began)
            ended = monotonic()
            if not events:
                account.begin(ended - started, now)
            costs.parts.append((query, ended - started))
            started = ended
            if query.derived or queues.deferred:
                query.evaluate_derived()
                if queues.deferred:
                    queues.settle()
                started = monotonic()
                costs.apart += started - ended

    def fail(self, reason: str) -> None:
        """Fail the ``later`` queries, which ends their evaluation. Loop thread."""
        for query in self.deferred:
            query.fail(reason)
        self.stale = True


class Costs:
    """What the queries that were evaluated at an event have cost, in seconds."""

    __slots__ = ("apart", "before", "parts")

    def __init__(self) -> None:
        self.parts: list[tuple[AttachedQuery, float]] = []
        self.apart = 0.0
        """What is no cost of theirs: commands, wakeups, and queries over their values, which pay for themselves."""
        self.before = 0.0
        """What the event itself has cost before they were evaluated, where it is looptap that raises it."""

    def pay(self, purse: OverheadBudget, wall: float, own: float, step: float, number: int, now: float) -> None:
        """Charge an event of ``wall`` seconds, ``own`` of which were the queries' doing.

        What none of them has taken alone, as the lookup of names, is split equally.
        """
        wall, own = wall + self.before, own + self.before
        rest = max(0.0, wall - self.apart - sum([cost for _, cost in self.parts])) / max(1, len(self.parts))
        doing = own / max(wall, 1e-9)
        total = mapped = 0.0
        for query, cost in self.parts:
            cost = (cost + rest) * doing
            if query.account.grant is None:
                total += cost
                mapped += cost * query.account.mapped
            query.charge(cost, step, number, now)
        purse.pay(total, mapped)


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


def end_group(queries: Queries, number: int, now: float, group: int, queues: ReadySet) -> None:
    """End the windows that follow the group, which is the ``group``-th."""
    if queues.defers:  # a query has ended the group
        for query in queries:
            if query.grouped:
                query.miss(number, now)
        return
    queues.defers = True
    try:
        for query in queries:
            query.close_group(number, now, group)
            query.end_derived_group(number, now, group)
            query.evaluate_derived()
    finally:
        queues.defers = False
        if queues.deferred:
            queues.settle()
