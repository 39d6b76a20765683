"""The queries of a run: compiled, attached to events, and detached.

Runs on the I/O thread, and where the host declares streams. An event source's tuple of queries is only ever replaced as
a whole: the training thread sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

from looptap.agent.handoff.value_batch import Item
from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.calls.call_events import CallEvents
from looptap.agent.loop.derived_query import MAX_CHAINED_COUNT, DerivedQuery
from looptap.agent.loop.event_sources import EventCommand, EventSource, EventSources
from looptap.agent.loop.overhead_budget import Account, OverheadBudget
from looptap.agent.queries.code_loading import loaded_code
from looptap.agent.queries.event_notes import listed_names, notes_of_groups, notes_of_missing
from looptap.agent.queries.hooked_query import hooked
from looptap.agent.queries.observable_names import check_names
from looptap.protocol import messages as m
from looptap.protocol.limits import Limits
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.errors import QueryError
from looptap.streams.events import BUILT_IN, MACHINE
from looptap.streams.expressions import nearest
from looptap.streams.harmless.plain import of_class
from looptap.streams.language import builtins
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.language.observables_read import observables_read
from looptap.streams.language.rank_windows import RankWindowStage, aligned, check_mergeable
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.pipeline import Pipeline
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.windows import Group, Window
from looptap.streams.panel_hint import PanelChart, panel_of
from looptap.streams.values.sizing import Bounds

LINE_INTERVAL_SECONDS = 0.5
"""Seconds between two lines on an object whose class declares a panel, which shows more."""


class QueryRegistry:
    """The compiler of queries and commands, which attaches them to event sources."""

    def __init__(self, sources: EventSources, groups: tuple[str, ...], limits: Limits, budget: OverheadBudget) -> None:
        self._sources, self._groups, self._limits, self._budget = sources, groups, limits, budget
        self._moving = threading.Lock()  # held while a tuple is replaced, never by the training thread in the loop
        self.chained: tuple[DerivedQuery, ...] = ()
        """The queries over the values of other queries, each after its source; replaced as a whole."""
        self.calls = CallEvents()
        self._ending = False

    def compiled(
        self,
        code: str | Callable[..., Any],
        window: Window | None = None,
        every: int = 1,
        throttle: float = 0.0,
        *,
        over: AttachedQuery | None = None,
        unsafe: bool = False,
    ) -> Pipeline:
        """Compile code, which may use exposed functions. Raises QueryError.

        It is a query over events, or ``over`` the values of another query.
        """
        exposed = self._sources.exposed
        functions = {n: v for n, v in exposed.items() if callable(v) and of_class(type(v), "parameters") is None}
        known: frozenset[str] | None = frozenset(set(exposed) - set(functions))
        if over is not None:
            known = None if over.pipeline.fields is None else frozenset(over.pipeline.fields)
        bounds = Bounds(self._limits.collected_items, self._limits.collected_bytes, self._limits.keys)
        source, window = "events" if over is None else "values", window or Group()
        return compile_query(QuerySpec(code, window, every, throttle, source, known, functions, bounds, unsafe))

    def declared(self, name: str, pipeline: Pipeline, on: str, sink: ValueRing, max_bytes: int) -> AttachedQuery:
        """Compile the host's query, without a budget, unattached. Raises QueryError."""
        for event in (on, *(place.event for place in pipeline.latest)) if on else ():
            self._open(event)
        account = Account(self._budget, math.inf, pipeline.mapped)
        query = AttachedQuery(
            pipeline, sink, on=on, name=name, max_bytes=max_bytes, account=account, places=pipeline.latest
        )
        return hooked(query, pipeline, self._sources)

    def attached(self, attach: m.Attach, sink: ValueRing) -> AttachedQuery:
        """Compile the query of ``attach``, not yet attached. Raises QueryError.

        It fills ``sink``.
        """
        drawn, _ = self._panel(attach.code.text.strip())
        throttle = attach.throttle or (LINE_INTERVAL_SECONDS if drawn else 0.0)
        asked = pipeline = self.compiled(
            loaded_code(attach.code), attach.window, attach.every, throttle, unsafe=attach.unsafe
        )
        recorder: FlightRecorder[Item] | None = None
        if attach.when is not None:
            if not pipeline.mapped:
                raise QueryError(
                    "when= records events: its query yields at each of them.", pipeline.text, None, "Try 'step, loss'."
                )
            condition = self.compiled(loaded_code(attach.when), unsafe=attach.unsafe)
            recorder = FlightRecorder(condition, attach.before, attach.after)
        if attach.align:
            pipeline = _aligned(pipeline, attach)
        self._check_names(attach)
        account = Account(self._budget, grant_share(attach.budget), pipeline.mapped)
        places = (*pipeline.latest, *(recorder.condition.latest if recorder else ()))
        for event in (attach.on, *(place.event for place in places)):
            self._open(event)
        query = AttachedQuery(
            pipeline,
            sink,
            on=self._open(attach.on).origin.name,
            name=attach.name,
            max_bytes=min(attach.max_bytes, self._limits.outbound_message // 2),
            recorder=recorder,
            account=account,
            places=places,
        )
        return hooked(query, asked, self._sources)

    def _check_names(self, attach: m.Attach) -> None:
        """Raise QueryError for an observable that the events of the query never have."""
        sources = self._sources
        carried = {} if sources.looks is None else sources.looks.names
        known = {*builtins.names(), *sources.exposed, *sources.machine, *BUILT_IN, *MACHINE}
        source = sources.by_name.get(attach.on)
        on = attach.on if source is None else source.origin.name  # never a second name
        count = sources.counts().get(on, 0)
        for text in filter(None, (attach.code.text, attach.when.text if attach.when else "")):
            check_names(observables_read(text, known), text, on, count, carried, tuple(sources.exposed))

    def derived(
        self,
        source: AttachedQuery,
        of: str,
        code: str | Callable[..., Any],
        sink: ValueRing,
        *,
        name: str,
        window: Window | None,
        every: int,
        throttle: float,
        max_bytes: int,
        budget: float | None,
        unsafe: bool,
    ) -> DerivedQuery:
        """Compile a query over the values of ``source``, called ``of``, not yet attached.

        Raises QueryError.
        """
        if source.recorder is not None or isinstance(source.pipeline, RankWindowStage):
            raise QueryError(
                f"{of!r:.120} is a flight recorder (when=), whose values the job does not have before its condition is "
                "true; ask over the values on this side: stream.query(…)."
            )
        if source.state != "live":
            raise QueryError(f"{of!r:.120} has {source.state}: {source.reason}")
        self.compiled(code, window, every, throttle, over=source)  # a wrong every= is an error of the whole query
        pipeline = self.compiled(code, window, 1, throttle, over=source, unsafe=unsafe)
        max_bytes = min(max_bytes, self._limits.outbound_message // 2)
        query = DerivedQuery(
            pipeline,
            sink,
            source,
            of=of,
            nth=every,
            name=name,
            max_bytes=max_bytes,
            account=Account(self._budget, grant_share(budget), pipeline.mapped),
            exposed=self._sources.exposed,
        )
        if query.depth > MAX_CHAINED_COUNT:
            raise QueryError(
                f"{query.depth} queries would read one another's values, and {MAX_CHAINED_COUNT} may; ask over the "
                "values on this side: stream.query(…)."
            )
        return query

    def describe(self, query: AttachedQuery) -> SubscriptionInfo:
        """Describe how a query is understood, and what its client should know."""
        pipeline = query.pipeline
        functions = pipeline.reads.intersection(n for n, v in list(self._sources.exposed.items()) if callable(v))
        panel, problem = self._panel(pipeline.text.strip())
        return SubscriptionInfo(
            mapped=pipeline.mapped,
            fields=pipeline.fields,
            explain=pipeline.explain(),
            notes=(*pipeline.notes, *self.notes(query), *problem),
            functions=tuple(sorted(functions)),
            panel=() if isinstance(query, DerivedQuery) else panel,
            on=query.on,
        )

    def _panel(self, text: str) -> tuple[tuple[PanelChart, ...], tuple[str, ...]]:
        """Return the panel of the exposed object named ``text``, or what is wrong."""
        try:
            return panel_of(text, self._sources.exposed.get(text)), ()
        except Exception as error:  # of the host's own class
            return (), (f"the class of {text!r} has a __looptap_panel__ that cannot be drawn: {error}",)

    def notes(self, query: AttachedQuery) -> list[str]:
        """Return warnings about the events of ``query``, for the client that attaches it."""
        if isinstance(query, DerivedQuery):
            return [note] if (note := query.describe_groups()) else []
        seen = list(self._sources.counts())
        likely = query.on in self._groups and any(name in self._groups for name in seen)  # an outer group has ended
        notes = [] if query.on in seen else notes_of_missing(query.on, seen, likely=likely)
        for event in dict.fromkeys(place.event for place in query.latest_slots if place.event not in seen):
            near = nearest(event, seen)
            notes.append(
                f"latest({event!r}) is None until there is such an event; so far "
                f"{f'only {listed_names(seen)}' if seen else 'there was no event of any type'}.{' ' * bool(near)}{near}"
            )
        return notes + (notes_of_groups(query.on, self._groups, seen) if query.grouped else [])

    def install(self, query: AttachedQuery) -> None:
        """Attach a query to its events, or to the query whose values it reads."""
        self._budget.join(query.account)
        if isinstance(query, DerivedQuery):
            self._begin(query)
            return
        with self._moving:
            for place in query.latest_slots:
                other = self._sources.open(place.event)
                if other.number:
                    place.problem = f"None until the next such event; number {other.number} came before the attach"
                other.latest_slots = (*other.latest_slots, place)
                self._refresh(other)
            source = self._sources.open(query.on)
            source.queries = (*source.queries, query)
            self._refresh(source)

    def _begin(self, query: DerivedQuery) -> None:
        source = query.source
        self._sources.drain()
        mid_group = source.sink.number > 0
        if query.follows_groups:
            events = self._sources.open(query.on)
            waiting = self._sources.evaluator.waits() or self._sources.unobserved.waits()
            mid_group = waiting or events.number > events.group_start
        with self._moving:
            query.begin(mid_group=mid_group)
            self.chained = (*self.chained, query)
        self.schedule_command(source)

    def end_chained(self) -> None:
        """End the queries whose source has ended, with its reason. I/O thread."""
        if self._ending:  # a value has woken this thread, which in a test is the one that ends them
            return
        self._ending = True
        try:
            self._end_chained()
        finally:
            self._ending = False

    def _end_chained(self) -> None:
        for query in self.chained:
            source = query.source
            if source.state == "live" and not source.detached:
                continue
            if query.state == "live":
                reason = f": {source.reason}" if source.reason else ""
                ended = f"has {source.state}{reason}" if source.state != "live" else "was closed"
                self._close_window(query)
                query.state, query.reason = "ended", f"{query.of!r:.120}, whose values it reads, {ended}"
                query.changes += 1
                query.sink.notify()
            self.drop(query)

    def _close_window(self, query: DerivedQuery) -> None:
        def close(number: int, now: float) -> None:
            query.catch_up(later=True)
            if query.events and not query.pipeline.mapped:
                query.end_window(number, now)

        self.between_events(query.on, close, lambda: None)

    def release(self, query: DerivedQuery) -> bool:
        """Let a query that was held catch up with its source; False during an event."""
        caught_up: list[bool] = []

        def catch_up(number: int, now: float) -> None:
            query.held = False
            query.catch_up(later=True)
            caught_up.append(True)

        self.between_events(query.on, catch_up, lambda: None)
        return bool(caught_up)

    def close_windows(self, now: float) -> None:
        """End the windows that no group ends, since the run ends. Loop thread."""
        self._sources.drain()  # the last events may still wait
        for _, source in self._sources.types():
            for query in source.queries:
                if query.events and not (query.grouped or query.pipeline.mapped):
                    query.flush_partial(source.number, now)
        for query in self.chained:
            query.catch_up(later=False)
            if query.follows_groups or query.pipeline.mapped or not query.events:
                continue
            number = self._sources.open(query.on).number if query.on else 0
            (query.flush if query.grouped else query.flush_partial)(number, now)

    def schedule_command(self, query: AttachedQuery) -> None:
        """Make the next event check again whether a client waits for ``query``."""
        if not query.on:
            return
        with self._moving:
            source = self._sources.open(query.on)
            source.queries = tuple([*source.queries])
            source.refresh()
        self._sources.unobserved.drain()

    def drop(self, *queries: AttachedQuery) -> None:
        """Detach queries from their events; no effect on detached ones."""
        with self._moving:
            for query in queries:
                query.detached = True
                self._budget.leave(query.account)
                if isinstance(query, DerivedQuery):
                    query.leave()
            self.chained = tuple(query for query in self.chained if not query.detached)
        for query in {query.source for query in queries if isinstance(query, DerivedQuery)}:
            self.schedule_command(query)
            query.sink.notify()  # it may have been the last that read its values
        for query in queries:
            if query.derived:
                query.sink.notify()  # they end, too: see `end_chained`
        gone = {query for query in queries if query.on}
        if not gone:
            return
        with self._moving:
            for event in {query.on for query in gone}:
                source = self._sources.open(event)
                source.queries = tuple(q for q in source.queries if q not in gone)
                hooks = [query.hooks for query in gone if query.on == event]
                source.commands.extend(one.remove for one in hooks if one is not None and one.close())
                self._refresh(source)
        self._sources.drain()
        places = [place for query in gone for place in query.latest_slots]
        with self._moving:
            for event in {place.event for place in places}:
                other = self._sources.open(event)
                other.latest_slots = tuple(p for p in other.latest_slots if not any(p is place for place in places))
                self._refresh(other)

    def at_next(self, on: str, command: EventCommand) -> None:
        """Run ``command`` at the next event of type ``on``."""
        source = self._open(on)
        source.commands.append(command)
        self._refresh(source)

    def not_at_next(self, on: str, command: EventCommand) -> None:
        """Remove a command that waits for an event of type ``on``, if it does."""
        source = self._open(on)
        with contextlib.suppress(ValueError):
            source.commands.remove(command)
        self._refresh(source)

    def _refresh(self, source: EventSource) -> None:
        source.refresh()
        self.calls.follow(source)

    def _open(self, event: str) -> EventSource:
        """Return the source of an event that a client names. Raises QueryError."""
        try:
            source = self._sources.open(event)
        except ValueError as error:
            raise QueryError(str(error)) from None
        self.calls.check(source)
        return source

    def between_events(self, on: str, now: Callable[[int, float], None], later: Callable[[], None]) -> None:
        """Call ``now`` if no event is being emitted, else ``later``. Does not block.

        I/O thread. No event is raised meanwhile, but the loop computes: ``now`` must neither run code that looptap does
        not know nor put back what the loop is using.
        """
        lock = self._sources.lock
        if not lock.acquire(blocking=False):
            later()
            return
        try:
            self._sources.drain()
            now(self._sources.open(on).number if on else 0, self._sources.clock())
        finally:
            lock.release()


def _aligned(pipeline: Pipeline, attach: m.Attach) -> Pipeline:
    """Return the pipeline's form for ranks that have to align. Raises QueryError."""
    if attach.throttle or attach.when is not None:
        which = "throttle=" if attach.throttle else "when="
        raise QueryError(f"combine= needs the same events on all ranks, and {which} picks others on each.")
    if not isinstance(pipeline, Reducing):
        if attach.align == m.STATES:
            check_mergeable(pipeline)
        return pipeline
    return aligned(pipeline, attach.origin, attach.align == m.STATES)


def grant_share(share: float | None) -> float | None:
    """Return the share of the loop's time that is asked for. Raises QueryError."""
    if share is not None and not share > 0:
        raise QueryError(f"budget={share!r} must be a fraction of the loop's time above 0; math.inf lifts the limit.")
    return share
