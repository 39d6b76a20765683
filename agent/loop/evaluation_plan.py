"""Plans which queries run at an event and which later, and measures their cost."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

from looptap.agent.handoff.value_queue import QueueSet
from looptap.agent.loop.attached_query import AttachedQuery, EventOccurrence
from looptap.agent.loop.deferred_evaluation import PendingEvent
from looptap.agent.loop.derived_query import end_derived_group, evaluate_derived
from looptap.agent.loop.overhead_budget import MEASURE_NEXT
from looptap.streams.events import Event, EventOrigin, Lazy, LazyEvent, lazies
from looptap.streams.language.copyable import tensor_type


class EvaluationPlan:
    """The split of one type's queries into those evaluated at once and those later."""

    __slots__ = ("deferred", "immediate", "names", "origin", "queries", "stale", "started", "tensor")

    def __init__(
        self, origin: EventOrigin, queries: tuple[AttachedQuery, ...] = (), later: tuple[AttachedQuery, ...] = ()
    ) -> None:
        self.origin, self.queries, self.deferred = origin, queries, later
        put_off = frozenset(later)
        self.immediate = tuple(q for q in queries if q not in put_off)
        self.names = tuple(frozenset().union(*(q.numbers or () for q in later)))
        self.tensor = tensor_type()
        self.stale = False  # whether a query of ``later`` has turned out to be expensive
        self.started = False  # the first event is evaluated without delay: a client has just asked

    def evaluate(self, waiting: list[PendingEvent]) -> None:
        """Evaluate the ``later`` queries at those of the events that they have not seen."""
        batch: list[EventOccurrence] = []
        for _, number, now, dt, began, observables in waiting:
            event: Any = observables
            if type(observables) is dict:
                event = event_of(observables, self.origin, number, now, dt)
            batch.append((event, number, now, began))
        ends = [(number, now, group) for event, number, now, group in batch if event is None]
        for query in self.deferred:
            if not query.cheap_later(partial(query.evaluate_batch, batch), len(batch)):
                query.deferred = False  # it is for the budget to judge, event by event
                self.stale = True
            if query.derived:
                for end in ends:
                    end_derived_group(query, *end)
                if not evaluate_derived(query, later=True):
                    self.stale = True

    def fail(self, reason: str) -> None:
        """Fail the ``later`` queries, which ends their evaluation. Loop thread."""
        for query in self.deferred:
            query.deferred = False
            query.fail(reason)
        self.stale = True


def event_of(observables: dict[str, Any], origin: EventOrigin, number: int, now: float, dt: float) -> Event:
    """Return the event of these observables."""
    if lazies and Lazy in map(type, observables.values()):
        return LazyEvent(observables, origin, number, now, dt)
    event = _new(Event)  # Event(…) spelled out, at half the time of a call: see the package's page
    event.__dict__ = observables
    event._source, event._number, event._time, event._dt = origin, number, now, dt
    return event


def evaluate(
    queries: tuple[AttachedQuery, ...], event: Event, number: int, now: float, began: int, step: float, queues: QueueSet
) -> float:
    """Evaluate each query at the event; return the seconds that all took.

    ``step`` is the time of a step of the loop.

    No wakeup is sent while the cost of a query is measured: it gives the interpreter lock away, and the I/O thread
    keeps that for as long as it likes.
    """
    queues.defers = True
    try:
        return _evaluate(queries, event, number, now, began, step, queues)
    finally:
        queues.defers = False
        if queues.deferred:
            queues.settle()


def _evaluate(
    queries: tuple[AttachedQuery, ...], event: Event, number: int, now: float, began: int, step: float, queues: QueueSet
) -> float:
    started = begin = monotonic()  # what an event costs with any query is no query's fault
    for query in queries:
        if number % query.every:
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
        if queues.deferred:  # the wakeup is not the query's cost, nor is what the I/O thread does then
            queues.settle()
            ended = monotonic()
        started = ended
    return started - begin


def end_group(queries: tuple[AttachedQuery, ...], number: int, now: float, group: int) -> None:
    """End the windows that follow the group, which is the ``group``-th."""
    for query in queries:
        if query.grouped and query.events and query.closed != group:
            query.flush(number, now, group)
        if query.derived:
            end_derived_group(query, number, now, group)
            evaluate_derived(query)


_new = object.__new__
