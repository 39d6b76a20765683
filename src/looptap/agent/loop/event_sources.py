"""The event types of a run: numbers, groups, waiting queries and commands.

Guarantees: events of one type are numbered without a gap and reach the queries in that order, from whichever thread
they come; an idle type costs a count. Assumes that attached queries are replaced as a whole (copy on write), never
changed in place.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_native_id
from time import monotonic
from typing import Any

from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.scalar_looks import ScalarLooks
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.columns.event_batch import GroupEnd
from looptap.agent.loop.deferred_evaluation import DeferredEvaluator
from looptap.agent.loop.derived_query import restart
from looptap.agent.loop.evaluation_plan import (
    Costs,
    DeferredActions,
    EvaluationPlan,
    ImmediateQueries,
    deferrable,
    end_group,
    miss_nested,
)
from looptap.agent.loop.overhead_budget import OverheadBudget
from looptap.agent.loop.plain_numbers import take_look
from looptap.agent.loop.tap.choice import SourceState, new_lock
from looptap.agent.loop.thread_time import OwnTime
from looptap.streams.events import Event, EventOrigin, FoundObservables, LazyEvent, event_of
from looptap.streams.operators.pipeline import Latest
from looptap.streams.preserving.graph_capture import captures
from looptap.streams.preserving.job_modes import has_modes, outside_modes

EventCommand = Callable[[Event], "Callable[[], None] | None"]
"""A function that runs at an event; it may return an action for after the event."""
MAX_EVENT_TYPES = 1000
"""Types of events that an agent follows; a loop that makes up a new name at each step must not grow without bound."""


class EventSource(SourceState):
    """One type of events."""

    __slots__ = (
        "_delivered", "_evaluators", "_group_ends", "_inner", "_last_deferred_group", "_last_evaluated", "_own",
        "_plan", "_query_seconds", "_queues", "commands", "evaluator", "latest_slots", "look_next", "looks", "origin",
        "thread",
    )  # fmt: skip

    def __init__(
        self, origin: EventOrigin, lock: Any, evaluators: tuple[DeferredEvaluator, DeferredEvaluator],
        queues: ReadySet, clock: Callable[[], float], closes: tuple[EventSource, ...] = (),
        looks: ScalarLooks | None = None,
    ) -> None:  # fmt: skip
        self.clock, self.looks, self.thread = clock, looks, 0  # the thread of the events looked at; -1 for several
        self.look_next = True  # whether the history of scalars has the next event; the first ones always
        self.origin, self.lock, self.inner_groups = origin, lock, closes
        self._inner = closes[0] if len(closes) == 1 else None
        # The evaluators of queries whose values a client waits for, and of those without a reader.
        self._evaluators, self._queues, self.evaluator = evaluators, queues, evaluators[0]
        self.number = self.group_start = self.groups_ended = self._last_evaluated = 0
        self.queries, self.commands = (), deque[EventCommand]()
        self.latest_slots: tuple[Latest, ...] = ()
        self._plan, self.shortcut = EvaluationPlan(origin), None
        self.last_time = self._query_seconds = 0.0  # what the immediate queries took at event `_last_evaluated`
        # Marks by which an event that Ctrl-C has cut short is finished: its number once it counts, the last event and
        # end of a group that were deferred, the event that last ended groups, and what their counts are to be then.
        self._own = OwnTime()
        self._delivered = self.last_deferred = self._last_deferred_group = 0
        self._group_ends: tuple[int, tuple[int, ...]] = 0, ()
        self.refresh()

    def refresh(self) -> None:
        """Update whether an event of this type has to do more than count."""
        self.capturing = captures()
        if self.look_next or self.queries or self.latest_slots or self.commands:  # without a call, as in `_look`
            self.only_groups, self.has_work = False, True
        else:
            self.only_groups = self.has_work = self.inner_groups != ()
        self.shortcut = None  # last: the loop thread may have set it meanwhile

    @property
    def evaluates(self) -> bool:
        """True if queries or commands wait for events of this type, or for its groups."""
        return any([self.queries, self.latest_slots, self.commands, *[one.queries for one in self.inner_groups]])

    def kept_names(self) -> tuple[str, ...] | None:
        """Return the numbers to keep of the next event; None if it has more to do."""
        plan = self.shortcut
        kept = plan is not None and not plan.stale and plan.only_keeps(self.number + 1, self.clock())
        return plan.names if kept else None

    @property
    def purse(self) -> OverheadBudget | None:
        """What queries evaluated at these events are paid from, if there are any."""
        return self._plan.purse

    def mark(self) -> None:
        """Let the next event copy its numbers for the history. Any thread."""
        self.look_next, self.only_groups, self.has_work, self.shortcut = True, False, True, None

    def _look(self, number: int, now: float, observables: dict[str, Any]) -> None:
        """Copy the numbers of this event, and let the next ones be idle again.

        Between the test and the assignment there is no call, so no other thread attaches a query there.
        """
        looks, self.thread = self.looks, me if self.thread in (0, me := get_native_id()) else -1
        self.look_next = again = looks is not None and looks.wants_next(number)
        if not (again or self.queries or self.latest_slots or self.commands):
            if self.inner_groups:
                self.only_groups = True
            else:
                self.has_work = False
        if looks is not None:
            take_look(looks, self.origin, number, now, observables)

    def deliver(self, observables: dict[str, Any]) -> None:
        """Deliver one event. Raises only KeyboardInterrupt and `DeferredActions`."""
        inner = self._inner
        if self.only_groups and inner is not None and not inner.queries:
            # Up to the end there is no call and no jump back: neither Ctrl-C nor another thread comes between.
            self.number += 1
            inner.group_start = inner.number
            inner.groups_ended += 1
            inner.last_time = 0.0
            return
        if (torch := sys.modules.get("torch")) is not None and has_modes(torch):
            outside_modes(torch, self.deliver, observables)
            return
        lock, number = self.lock, 0
        try:  # `with` takes twice as long. An interrupt comes before the lock is taken, or after, never in between
            lock.acquire()
            number, self._delivered = self.number + 1, 0
            try:
                reads = self.looks or self.queries or self.latest_slots or self.commands
                if reads and self.capturing is not None and self.capturing():  # in a CUDA graph it only counts
                    self.number = self._delivered = self.number + 1
                    return
                self._deliver(observables, number, self.clock())
            except KeyboardInterrupt:
                self._finish()
                observables.clear()
                raise
            except Exception:
                self.number += not self._delivered
                raise
        except RecursionError:
            self.number += not number  # not even the lock could be called
            raise
        finally:
            try:  # noqa: SIM105 - a call of `suppress` would let Ctrl-C in before the lock is released
                lock.release()
            except RuntimeError:  # an interrupt came while another thread had it
                pass

    def announce(self, plan: EvaluationPlan) -> None:
        """Announce what the tap has kept, as `deliver` does. Raises KeyboardInterrupt."""
        with self.lock:
            self.evaluator.notify(plan)

    def miss(self) -> None:
        """Count an event that Ctrl-C cut short while the tap read its numbers."""
        with self.lock:
            self._delivered = 0
            self._finish()

    def _deliver(self, observables: dict[str, Any], number: int, now: float) -> None:
        """Do all that an event entails; note whether the next only has to be kept."""
        if (plan := self.shortcut) is not None and not plan.stale and plan.only_keeps(number, now):
            row = plan.row(observables, number, now, self.group_start)
            if row is not None and number > self.number:  # and no signal handler has emitted meanwhile
                self.last_time = now
                self._keep(plan, row)
                if plan.every and not number % plan.every:
                    plan.passed_to = number
                return
        if self._queues.defers:  # a query has emitted it
            self._delivered = miss_nested(self, now)
            return
        if self.inner_groups:
            self._end_inner(number, now)
        if self.look_next or self.commands:  # before they change what is exposed
            self._look(number, now, observables)
        if not (self.queries or self.commands or self.latest_slots):
            self.number = self._delivered = self.number + 1
            return
        dt = now - self.last_time if self.last_time else 0.0
        self.last_time = now
        plan = self._plan
        if plan.queries is not self.queries or plan.stale or number >= plan.review:
            plan = self._make_plan(observables, number)
        row = plan.row(observables, number, now, self.group_start)
        if row is None:
            plan = self._make_plan(observables, number)
            row = plan.row(observables, number, now, self.group_start) or plan.missed(number, now)
        number = self._keep(plan, row)
        chosen = plan.choose(number, now)
        if not (chosen.due(number) or self.commands or self.latest_slots):
            # Since the test for commands there is no call, so no other thread has changed anything.
            if not (self.inner_groups or self.look_next) and plan.queries is self.queries:
                self.shortcut = plan
            observables.clear()
            return
        self._evaluate(plan, chosen, observables, number, now, dt)

    def _keep(self, plan: EvaluationPlan, row: tuple[Any, ...]) -> int:
        """Count the event, and keep its row for the deferred queries; return its number."""
        # A signal handler may have emitted since. From here to the row there is no call, so both have the same order;
        # `last_deferred` comes first: Ctrl-C in between loses the row, which `_finish` sees, and none comes twice.
        self.number = self._delivered = number = self.number + 1
        if plan.deferred:
            rows = plan.rows
            self.last_deferred = number
            rows += (number, *row[1:])
            if len(rows) > plan.limit:
                self.evaluator.notify(plan)
        return number

    def _evaluate(
        self, plan: EvaluationPlan, chosen: ImmediateQueries, found: dict[str, Any], number: int, now: float, dt: float
    ) -> None:
        """Run the pending commands and these queries. Raises `DeferredActions`."""
        before, costs, purse = self._own.start(), Costs(), plan.purse
        if type(found) is FoundObservables:
            costs.before = max(0.0, before.cpu - found.began)
            found.load(chosen.reads)
        event = event_of(found, self.origin, number, now, dt)
        try:
            actions = self._prepare(event, costs) if self.commands or self.latest_slots else None
            plan.evaluate_now(chosen, event, number, now, self.group_start, self._queues, costs)
            if purse is not None:
                step = dt - self._query_seconds * (self._last_evaluated == number - 1)
                self._query_seconds, own = self._own.stop(before)
                self._last_evaluated = number
                costs.pay(purse, self._query_seconds, own, step, number, now)
            if actions:
                raise DeferredActions(actions)
        finally:
            found.clear()  # nothing of the loop outlives the event, whatever a query has kept of it
            if type(event) is LazyEvent:
                event._lazies.clear()

    def _finish(self) -> None:
        """Finish an event that Ctrl-C cut short: end groups, count lost evaluations."""
        if not self._delivered:
            self.number = self._delivered = self.number + 1
        number, now, plan = self._delivered, self.clock(), self._plan
        self._end_inner(number, now)
        if plan.deferred and self.last_deferred != number:
            self.last_deferred = number
            rows = plan.rows
            rows += plan.missed(number, now)
            plan.limit = 0
            self.evaluator.queues.wake()
        passed = plan.mapped if plan.passed_to == number else ()
        for query in self._not_deferred():
            if query.seen != number and not number % query.every and query not in passed:
                query.miss(number, now)

    def _not_deferred(self) -> tuple[AttachedQuery, ...]:
        """Return the queries that are not deferred, with those that the plan lacks."""
        plan = self._plan
        fresh = () if plan.queries is self.queries else tuple(q for q in self.queries if q not in plan.queries)
        return (*plan.immediate.queries, *fresh)

    def _end_inner(self, number: int, now: float) -> None:
        """End the open groups of the enclosed types; a second call ends the rest."""
        if self._group_ends[0] != number:
            self._group_ends = number, tuple([inner.groups_ended + 1 for inner in self.inner_groups])
        for inner, groups in zip(self.inner_groups, self._group_ends[1], strict=True):
            inner.end(groups, now)

    def _make_plan(self, observables: dict[str, Any], number: int) -> EvaluationPlan:
        """Plan which queries are evaluated now, by the numbers that this event has."""
        self.evaluator.drain()
        queries = self.queries
        later = deferrable(queries, observables)
        put_off = frozenset(later)
        for query in queries:
            query.defer(query in put_off)
        evaluator = self._evaluators[bool(later) and all([q.sink.unobserved for q in later])]
        plan = EvaluationPlan(self.origin, queries, later, observables)
        plan.follow(self._plan, number)
        for query in plan.mapped:
            query.limit.count_passed(plan)
        if later:
            evaluator.update(plan)
        before, self._plan.replaced = self.evaluator, True
        self.shortcut, self.evaluator, self._plan = None, evaluator, plan  # an interrupt finds both plans evaluated
        before.update()
        return plan

    def _prepare(self, event: Event, costs: Costs) -> list[Callable[[], None]]:
        """Run the commands, and copy what queries on other events read of this one."""
        actions, began = [], monotonic()
        for _ in range(len(self.commands)):  # one that comes meanwhile has its turn at the next event
            try:
                command = self.commands[0]
            except IndexError:  # called off meanwhile
                break
            if (then := command(event)) is not None:
                actions.append(then)
            try:  # noqa: SIM105 - one that Ctrl-C leaves here runs no second time
                self.commands.remove(command)
            except ValueError:  # called off meanwhile
                pass
            self.mark()  # the history has the numbers before the command and those after it
        for place in self.latest_slots:
            place.take(event)
        costs.apart += monotonic() - began
        return actions

    def end_group(self, now: float) -> None:
        """End the open group and the windows that follow it."""
        if (torch := sys.modules.get("torch")) is not None and has_modes(torch):
            outside_modes(torch, self.end_group, now)
            return
        with self.lock:
            groups = self.groups_ended + 1
            try:
                self.end(groups, now)
            except KeyboardInterrupt:
                self.end(groups, now)
                raise

    def end(self, groups: int, now: float) -> None:
        """End the ``groups``-th group; a second call finishes the first."""
        if self.groups_ended != groups:
            self.group_start, self.groups_ended = self.number, groups
        plan = self._plan
        if plan.deferred:
            if self._last_deferred_group != groups:
                end = GroupEnd(groups)
                self._last_deferred_group = groups
                rows = plan.rows
                rows += (self.number, now, end, *plan.padding)
            self.evaluator.notify(plan)
        end_group(self._not_deferred(), self.number, now, groups, self._queues)
        if not self.queries:
            self.last_time = 0.0


class EventSources:
    """All event types of a run; the first event or query of a type opens it."""

    def __init__(
        self, groups: tuple[str, ...], exposed: dict[str, Any], rank: int, evaluator: DeferredEvaluator,
        clock: Callable[[], float] = monotonic, looks: ScalarLooks | None = None,
    ) -> None:  # fmt: skip
        self.clock, self.looks, self.searched = clock, looks, False  # in monotonic seconds; True of a script as it is
        self.exposed, self.rank, self.evaluator = exposed, rank, evaluator
        self.machine: dict[str, Any] = {}
        """Readings of the machine, by the names that queries have for them. Only the I/O thread changes it."""
        assert isinstance(evaluator.queues, ReadySet)
        self._queues = evaluator.queues
        self.unobserved = evaluator.for_unobserved_events()
        """The events of queries whose values no client waits for: no wakeup is sent for them."""
        self.lock = new_lock()
        self.by_name: dict[str, EventSource] = {}
        self.uncounted: dict[str, int] = {}
        """Events whose type could not be opened: the stack of the loop had no room for a call."""
        for name in groups:
            self.by_name[name] = self._new(name, tuple(self.by_name.values()))

    def open(self, event: str) -> EventSource:
        """Return the source of ``event``, made if missing.

        Raises ValueError beyond 1,000 types, TypeError for a name that is not a string.
        """
        if (source := self.by_name.get(event)) is None:
            if not isinstance(event, str):
                raise TypeError(f"an event is named by text, not {event!r:.60}.")
            if len(self.by_name) >= MAX_EVENT_TYPES:
                raise ValueError(f"{MAX_EVENT_TYPES} types of events, the bound; put what varies into an observable.")
            source = self.by_name.setdefault(event, self._new(event))
            source.number += self.uncounted.pop(event, 0)
        return source

    def types(self) -> list[tuple[str, EventSource]]:
        """Return each event type once, with its name."""
        for name in list(self.uncounted):
            with contextlib.suppress(ValueError):  # beyond the bound of types
                self.open(name).number += self.uncounted.pop(name, 0)
        return [(name, source) for name, source in list(self.by_name.items()) if source.origin.name == name]

    def own_name(self, event: str) -> str:
        """Return the name that a type has in `types`, by any of its names."""
        source = self.by_name.get(event)
        return event if source is None else source.origin.name

    def _new(self, event: str, closes: tuple[EventSource, ...] = ()) -> EventSource:
        origin = EventOrigin(event, self.exposed, self.rank, self.machine, self.looks.names if self.looks else None)
        both = self.evaluator, self.unobserved
        return EventSource(origin, self.lock, both, self._queues, self.clock, closes, self.looks)

    @contextlib.contextmanager
    def paused(self, seconds: float) -> Iterator[bool]:
        """Hold events and evaluations; yield False if that fails within ``seconds``."""
        with contextlib.ExitStack() as held:
            for lock in (self.lock, self.evaluator.turn.lock):
                if not lock.acquire(timeout=seconds):
                    yield False
                    return
                held.callback(lock.release)
            yield True

    def drain(self) -> None:
        """Evaluate all that waits."""
        self.evaluator.drain()
        self.unobserved.drain()

    def exclude_pause(self, seconds: float) -> None:
        """Leave a pause of ``seconds`` out of the step time."""
        with self.lock:
            for _, source in self.types():
                source.last_time += seconds * bool(source.last_time)

    def resume_from(self, events: dict[str, int], groups: dict[str, int]) -> None:
        """Continue these event numbers and groups; flag the windows that this cuts."""
        with self.lock:
            self.drain()
            for name in {*dict(self.types()), *events}:
                source = self.open(name)
                number, source.number = source.number, events.get(name, 0)
                source.group_start = min(groups.get(name, source.number), source.number)
                for query in source.queries:
                    query.seen = source.number
                    restart(query, number, self.clock(), partial=source.number > source.group_start)
                source.last_time, source.last_deferred, source._group_ends = 0.0, 0, (0, ())

    def counts(self) -> dict[str, int]:
        """Return the number of events so far, by type, without types that had none."""
        return {name: source.number for name, source in self.types() if source.number}
