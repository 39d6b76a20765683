"""The event types of a run: numbers, groups, and the queries and commands that wait for their events.

Guarantees: events of one type are numbered without a gap and reach the queries in that order, from whichever thread
they come; an idle type costs a count. Assumes that attached queries are replaced as a whole (copy on write), never
changed in place.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from looptap.agent.handoff.value_queue import Post
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.deferred_evaluation import MISSED, Backlog
from looptap.agent.loop.evaluation_plan import Plan, end_group, evaluate, event_of
from looptap.agent.loop.guard.state_guard import copy_of
from looptap.agent.loop.guard.torch_state import captures
from looptap.streams.events import Event, LazyEvent, Source
from looptap.streams.language.copyable import IMMUTABLE, copied_numbers
from looptap.streams.operators.pipeline import Latest

Command = Callable[[Event], "Callable[[], None] | None"]
"""What runs at an event; it returns what is to be done when the event is over."""

EVENT_TYPES = 1000
"""Types of events that an agent follows; a loop that makes up a new name at each step must not grow without bound."""


class After(Exception):
    """Raised out of an event when commands have left something to do after it, outside the lock: to wait, or to end."""

    def __init__(self, thens: list[Callable[[], None]]) -> None:
        self.thens = thens

    def do(self) -> None:
        """Do it; raises what the host wants to be stopped by."""
        for then in self.thens:
            then()


class Tap:
    """One type of events."""

    __slots__ = (
        "_backlogs", "_ends", "_last", "_lock", "_own", "_plan", "_post", "_posted", "_told", "backlog", "began",
        "busy", "capturing", "closes", "commands", "groups", "latest", "number", "queries", "source",
    )  # fmt: skip

    def __init__(
        self,
        source: Source,
        lock: threading.RLock,
        backlogs: tuple[Backlog, Backlog],
        post: Post,
        closes: tuple[Tap, ...] = (),
    ) -> None:
        self.source, self._lock, self.closes = source, lock, closes
        self._backlogs = backlogs  # where somebody waits for the values, and where nobody does
        self._post = post
        self.backlog = backlogs[0]
        # Of the newest event. `number += 1` on a slot is exact from any thread: between its three instructions the
        # interpreter neither calls nor jumps back, and only there does it hand the GIL to another thread.
        self.number = 0
        self.began = 0  # the number of the last event before the open group
        self.groups = 0  # how many have ended
        self.queries: tuple[AttachedQuery, ...] = ()
        self.latest: tuple[Latest, ...] = ()
        self.commands: deque[Command] = deque()
        self._plan = Plan(source)
        self._last = 0.0
        self._own = 0.0  # what the queries took at the last event
        # Marks by which an event that Ctrl-C has cut short is finished: the last event and the last end of a group that
        # were put into the backlog, and the event that last ended groups, with what their counts are to be then.
        self._posted = self._told = 0
        self._ends: tuple[int, tuple[int, ...]] = 0, ()
        self.update()

    def update(self) -> None:
        """Decide anew whether an event has anything to do beyond being counted."""
        self.capturing = captures()
        self.busy = bool(self.closes or self.queries or self.latest or self.commands)

    def deliver(self, observables: dict[str, Any]) -> None:
        """Raise one event: close groups, run commands, evaluate queries. KeyboardInterrupt comes out, and `After`."""
        if self.capturing is not None and self.capturing():
            self.number += 1  # counted as if nobody listened
            return
        with self._lock:
            self.number = number = self.number + 1
            try:
                now = monotonic()
                if self.closes:
                    self._end_inner(number, now)
                if not (self.queries or self.commands or self.latest):
                    return
                dt = now - self._last if self._last else 0.0
                self._last = now
                plan = self._plan
                if plan.queries is not self.queries or plan.stale:
                    plan = self._decide(observables)
                if plan.later:  # copied_numbers and Backlog.put spelled out: each call costs a microsecond here
                    numbers = {}
                    try:
                        for name in plan.names:
                            value = observables[name]
                            if type(value) not in IMMUTABLE:
                                if type(value) is not plan.tensor or value.ndim or not value.is_cpu:
                                    raise TypeError
                                value = value.item()
                            numbers[name] = value
                    except Exception:  # not there, no number, or a tensor that has no value now
                        plan = self._decide(observables)
                        numbers = copied_numbers(observables, plan.names) or {}
                    if plan.later:
                        backlog = self.backlog
                        self._posted = number
                        backlog.events.append((plan, number, now, dt, self.began, numbers))
                        if not backlog.post.rung or len(backlog.events) >= backlog.enough:
                            backlog.look()
                        if not plan.begun:
                            plan.begun = True
                            backlog.drain()
                for query in plan.at_once:
                    if not number % query.every:
                        break
                else:
                    if not (self.commands or self.latest):
                        self._own = 0.0
                        return
                event = event_of(observables, self.source, number, now, dt)
                try:
                    if self.commands or self.latest:
                        thens = self._prepare(event)
                        self._own = evaluate(plan.at_once, event, number, now, self.began, dt - self._own, self._post)
                        if thens:
                            raise After(thens)
                    else:
                        self._own = evaluate(plan.at_once, event, number, now, self.began, dt - self._own, self._post)
                finally:
                    observables.clear()  # nothing of the loop outlives the event, whatever a query has kept of it
                    if type(event) is LazyEvent:
                        event._lazies.clear()
            except KeyboardInterrupt:
                self._finish(number)
                observables.clear()
                raise

    def _finish(self, number: int) -> None:
        """Finish an event that Ctrl-C has cut short: groups end, and what no query has evaluated is counted as lost."""
        now, plan = monotonic(), self._plan
        if self.closes:
            self._end_inner(number, now)
        if plan.later and self._posted != number:
            self._posted = number
            self.backlog.events.append((plan, number, now, 0.0, self.began, MISSED))
            self.backlog.post.wake()
        fresh = () if plan.queries is self.queries else tuple(q for q in self.queries if q not in plan.queries)
        for query in (*plan.at_once, *fresh):
            if query.seen != number and not number % query.every:
                query.miss(number, now)

    def _end_inner(self, number: int, now: float) -> None:
        """End the open groups of the types that this one encloses; for the same event again, those that are left."""
        if self._ends[0] != number:
            self._ends = number, tuple([inner.groups + 1 for inner in self.closes])
        for inner, groups in zip(self.closes, self._ends[1], strict=True):
            inner.end(groups, now)

    def _decide(self, observables: dict[str, Any]) -> Plan:
        """A plan for the queries of now, as this event has the numbers that they read, or has not."""
        self.backlog.drain()
        queries, given = self.queries, observables.keys()
        there: dict[frozenset[str], bool] = {}  # many queries read the same names
        for names in {q.numbers for q in queries if q.numbers is not None}:
            there[names] = copied_numbers(observables, names) is not None
        later = tuple(
            q for q in queries
            if q.numbers is not None and q.later is not False and there[q.numbers] and q.language.isdisjoint(given)
        )  # fmt: skip
        put_off = frozenset(later)
        for query in queries:
            query.later = query in put_off
        backlog = self._backlogs[bool(later) and all(q.outbox.quiet for q in later)]
        plan = Plan(self.source, queries, later)
        self.backlog, self._plan = backlog, plan
        return plan

    def _prepare(self, event: Event) -> list[Callable[[], None]]:
        """Run the commands, and note what queries on other events want of this one."""
        thens = []
        for _ in range(len(self.commands)):  # one that comes meanwhile has its turn at the next event
            try:
                command = self.commands[0]
            except IndexError:  # called off meanwhile
                break
            if (then := command(event)) is not None:
                thens.append(then)
            try:  # noqa: SIM105 - one that Ctrl-C leaves here runs no second time
                self.commands.remove(command)
            except ValueError:  # called off meanwhile
                pass
        for place in self.latest:
            try:
                place.value = copy_of(event, place.name)
            except Exception as error:  # the query that asked shows None, its stream why
                place.value, place.problem = None, str(error)
        return thens

    def end_group(self, now: float) -> None:
        """End the open group: the windows that follow it close."""
        with self._lock:
            groups = self.groups + 1
            try:
                self.end(groups, now)
            except KeyboardInterrupt:
                self.end(groups, now)
                raise

    def end(self, groups: int, now: float) -> None:
        """End the group that is the ``groups``-th; called again for the same one, it does what was left to do."""
        if self.groups != groups:
            self.began, self.groups = self.number, groups
        plan = self._plan
        if plan.later:
            if self._told != groups:
                self._told = groups
                self.backlog.events.append((plan, self.number, now, 0.0, groups, None))
            self.backlog.look()
        end_group(plan.at_once, self.number, now, groups)
        if not self.queries:
            self._last = 0.0


class Taps:
    """All event types of a run. A type is opened by its first event or by who attaches to it."""

    def __init__(self, groups: tuple[str, ...], standing: dict[str, Any], rank: int, backlog: Backlog) -> None:
        self.standing, self.rank, self.backlog = standing, rank, backlog
        assert isinstance(backlog.post, Post)
        self._post = backlog.post
        self.quiet = backlog.quiet_twin()
        """The events of the queries whose values nobody waits for: no bell is rung for them."""
        self.lock = threading.RLock()
        self.by_name: dict[str, Tap] = {}
        for name in groups:
            self.by_name[name] = self._new(name, tuple(self.by_name.values()))

    def open(self, event: str) -> Tap:
        """The tap of ``event``, made if need be. Raises ValueError beyond 1,000 types, TypeError for no text."""
        tap = self.by_name.get(event)
        if tap is None:
            if not isinstance(event, str):
                raise TypeError(f"an event is named by text, not {event!r:.60}.")
            if len(self.by_name) >= EVENT_TYPES:
                raise ValueError(f"{EVENT_TYPES} types of events, the bound; put what varies into an observable.")
            tap = self.by_name.setdefault(event, self._new(event))
        return tap

    def _new(self, event: str, closes: tuple[Tap, ...] = ()) -> Tap:
        source, backlogs = Source(event, self.standing, self.rank), (self.backlog, self.quiet)
        return Tap(source, self.lock, backlogs, self._post, closes)

    @contextlib.contextmanager
    def still(self, seconds: float) -> Iterator[bool]:
        """Have no event raised and no query evaluated meanwhile; False if that cannot be had within ``seconds``."""
        with contextlib.ExitStack() as held:
            for lock in (self.lock, self.backlog.turn.lock):
                if not lock.acquire(timeout=seconds):
                    yield False
                    return
                held.callback(lock.release)
            yield True

    def drain(self) -> None:
        """Evaluate all that waits."""
        self.backlog.drain()
        self.quiet.drain()

    def slept(self, seconds: float) -> None:
        """The loop has paused for so long: that is no step's time."""
        with self.lock:
            for tap in list(self.by_name.values()):
                if tap._last:
                    tap._last += seconds

    def go_on(self, events: dict[str, int], groups: dict[str, int]) -> None:
        """Number the events on from these, in groups that began there; a window that this cuts is flagged."""
        with self.lock:
            self.drain()
            now = monotonic()
            for name in {*self.by_name, *events}:
                tap = self.open(name)
                number, tap.number = tap.number, events.get(name, 0)
                tap.began = min(groups.get(name, tap.number), tap.number)
                for query in tap.queries:
                    query.seen = tap.number
                    if query.events and not query.pipeline.mapped:
                        query.cut(number, now)
                        query.pipeline.begin(partial=tap.number > tap.began)
                tap._last = 0.0
                tap._posted, tap._ends = 0, (0, ())

    def counts(self) -> dict[str, int]:
        """Events so far, by type; a name that was only asked for does not appear."""
        return {name: tap.number for name, tap in list(self.by_name.items()) if tap.number}


class Deaf(Taps):
    """The event types of an inert agent: all names lead to one tap that nobody listens to."""

    def __init__(self) -> None:
        super().__init__((), {}, 0, Backlog(Post(0, _nobody, _nobody)))
        self._tap = super()._new("inert")

    def _new(self, event: str, closes: tuple[Tap, ...] = ()) -> Tap:
        return self._tap

    def counts(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}


def _nobody() -> None:
    """Whom the bell of an inert agent wakes."""
