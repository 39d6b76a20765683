"""The queries of a run: compiled, attached to events, and detached.

Runs on the I/O thread, and where the host declares streams. An event source's tuple of queries is only ever replaced as
a whole: the training thread sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

from looptap.agent.handoff.value_queue import Item, ValueQueue, ValueSink
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.event_sources import EventCommand, EventSource, EventSources
from looptap.agent.loop.overhead_budget import CostMeter, OverheadBudget
from looptap.agent.loop.rank_aggregation import PartialAggregateQuery
from looptap.agent.queries.code_loading import code_of
from looptap.protocol import messages as m
from looptap.protocol.limits import Limits
from looptap.protocol.replies import SubscriptionInfo
from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.language.rank_windows import aligned, check
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.pipeline import Pipeline, Reducing
from looptap.streams.operators.windows import Group, Window
from looptap.streams.panel_hint import PanelChart, panel_of
from looptap.streams.values.sizing import Bounds

LINE_INTERVAL_SECONDS = 0.5
"""Seconds between two lines on an object whose class declares a panel, which shows more."""
MAX_LISTED_NAMES = 20
"""Event types that a note lists."""


class QueryRegistry:
    """The compiler of queries and commands, which attaches them to event sources."""

    def __init__(self, sources: EventSources, groups: tuple[str, ...], limits: Limits, budget: OverheadBudget) -> None:
        self._sources, self._groups, self._limits, self._budget = sources, groups, limits, budget
        self._moving = threading.Lock()  # held while a tuple is replaced, never by the training thread in the loop

    def compiled(
        self,
        code: str | Callable[..., Any],
        window: Window | None = None,
        every: int = 1,
        throttle: float = 0.0,
    ) -> Pipeline:
        """Compile code, which may use exposed functions. Raises QueryError."""
        exposed = self._sources.exposed
        functions = {n: v for n, v in exposed.items() if callable(v) and not hasattr(v, "parameters")}
        known = frozenset(set(exposed) - set(functions))
        limits = self._limits
        bounds = Bounds(limits.collected_items, limits.collected_bytes, limits.keys)
        return compile_query(QuerySpec(code, window or Group(), every, throttle, "events", known, functions, bounds))

    def declared(self, name: str, pipeline: Pipeline, on: str, sink: ValueSink, max_bytes: int) -> AttachedQuery:
        """Compile a query of the host, not yet attached. Raises QueryError.

        No budget limits it.
        """
        for event in (on, *(place.event for place in pipeline.latest)) if on else ():
            self._open(event)
        meter = CostMeter(self._budget, math.inf, pipeline.every)
        return AttachedQuery(pipeline, sink, on=on, name=name, max_bytes=max_bytes, meter=meter, places=pipeline.latest)

    def attached(self, attach: m.Attach, sink: ValueQueue) -> AttachedQuery:
        """Compile the query of ``attach``, not yet attached. Raises QueryError.

        It fills ``sink``.
        """
        drawn, _ = self._panel(attach.code.text.strip())
        throttle = attach.throttle or (LINE_INTERVAL_SECONDS if drawn else 0.0)
        pipeline = self.compiled(code_of(attach.code), attach.window, attach.every, throttle)
        recorder: FlightRecorder[Item] | None = None
        if attach.when is not None:
            if not pipeline.mapped:
                raise QueryError(
                    "when= records events: its query yields at each of them.", pipeline.text, None, "Try 'step, loss'."
                )
            recorder = FlightRecorder(self.compiled(code_of(attach.when)), attach.before, attach.after)
        kind = AttachedQuery
        if attach.align:
            pipeline, kind = _aligned(pipeline, attach), PartialAggregateQuery if not pipeline.mapped else AttachedQuery
        meter = CostMeter(self._budget, grant_share(attach.budget), attach.every)
        places = (*pipeline.latest, *(recorder.condition.latest if recorder else ()))
        for event in (attach.on, *(place.event for place in places)):
            self._open(event)
        return kind(
            pipeline,
            sink,
            on=attach.on,
            name=attach.name,
            max_bytes=min(attach.max_bytes, self._limits.outbound_message // 2),
            recorder=recorder,
            meter=meter,
            places=places,
        )

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
            panel=panel,
        )

    def _panel(self, text: str) -> tuple[tuple[PanelChart, ...], tuple[str, ...]]:
        """Return the panel of the exposed object named ``text``, or what is wrong."""
        try:
            return panel_of(text, self._sources.exposed.get(text)), ()
        except Exception as error:  # of the host's own class
            return (), (f"the class of {text!r} has a __looptap_panel__ that cannot be drawn: {error}",)

    def notes(self, query: AttachedQuery) -> list[str]:
        """Return warnings about the events of ``query``, for the client that attaches it."""
        notes = []
        seen = list(self._sources.counts())
        if query.on not in seen:
            near = nearest(query.on, seen)
            there = f"no {query.on!r} event so far, only {_listed(seen)}." if seen else "no event of any type so far."
            notes.append(f"{there}{' ' * bool(near)}{near}")
            if _emits_are_compiled(likely=bool(seen) and not near):
                notes.append("an emit inside a function under torch.compile does nothing: call it around the function")
        for event in dict.fromkeys(place.event for place in query.latest_slots if place.event not in seen):
            near = nearest(event, seen)
            notes.append(
                f"latest({event!r}) is None until there is such an event; so far "
                f"{f'only {_listed(seen)}' if seen else 'there was no event of any type'}.{' ' * bool(near)}{near}"
            )
        if query.grouped and query.on not in self._groups[:-1]:
            notes.append(
                f"no event ends a group of {query.on!r}: its window closes at the end of the run; window=10 is sooner"
            )
        return notes

    def install(self, query: AttachedQuery) -> None:
        """Attach a query to its events."""
        with self._moving:
            for place in query.latest_slots:
                other = self._sources.open(place.event)
                other.latest_slots = (*other.latest_slots, place)
                other.refresh()
            source = self._sources.open(query.on)
            source.queries = (*source.queries, query)
            source.refresh()

    def schedule_command(self, query: AttachedQuery) -> None:
        """Make the next event check again whether a client waits for ``query``."""
        if not query.on:
            return
        with self._moving:
            source = self._sources.open(query.on)
            source.queries = tuple([*source.queries])
        self._sources.unobserved.drain()

    def drop(self, *queries: AttachedQuery) -> None:
        """Detach queries from their events; no effect on detached ones."""
        gone = {query for query in queries if query.on}
        if not gone:
            return
        for query in gone:
            query.meter.forget()
        with self._moving:
            for event in {query.on for query in gone}:
                source = self._sources.open(event)
                source.queries = tuple(q for q in source.queries if q not in gone)
                source.refresh()
        self._sources.drain()
        places = [place for query in gone for place in query.latest_slots]
        with self._moving:
            for event in {place.event for place in places}:
                other = self._sources.open(event)
                other.latest_slots = tuple(p for p in other.latest_slots if not any(p is place for place in places))
                other.refresh()

    def at_next(self, on: str, command: EventCommand) -> None:
        """Run ``command`` at the next event of type ``on``."""
        source = self._open(on)
        source.commands.append(command)
        source.refresh()

    def not_at_next(self, on: str, command: EventCommand) -> None:
        """Remove a command that waits for an event of type ``on``, if it does."""
        source = self._open(on)
        with contextlib.suppress(ValueError):
            source.commands.remove(command)
        source.refresh()

    def _open(self, event: str) -> EventSource:
        """Return the source of an event that a client names. Raises QueryError."""
        try:
            return self._sources.open(event)
        except ValueError as error:
            raise QueryError(str(error)) from None

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
            now(self._sources.open(on).number, self._sources.clock())
        finally:
            lock.release()


def _emits_are_compiled(likely: bool) -> bool:
    """Return True if torch.compile has compiled a function that calls ``emit``.

    Of a function that is compiled with the one that calls it there is no trace: then ``likely`` decides, if anything
    was compiled.
    """
    try:
        compiled = [reference() for reference in list(sys.modules["torch._dynamo.convert_frame"].input_codes.seen)]
        graphs = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    except (KeyError, AttributeError):  # Dynamo is not loaded, or another one
        return False
    return bool(likely and graphs) or any("emit" in code.co_names for code in compiled if code is not None)


def _listed(names: list[str]) -> str:
    """Format names as a sentence of bounded length."""
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _aligned(pipeline: Pipeline, attach: m.Attach) -> Pipeline:
    """Return the pipeline's form for several ranks, whose values have to align.

    Raises QueryError.
    """
    if attach.throttle or attach.when is not None:
        which = "throttle=" if attach.throttle else "when="
        raise QueryError(f"combine= needs the same events on all ranks, and {which} picks others on each.")
    if not isinstance(pipeline, Reducing):
        if attach.align == m.STATES:
            check(pipeline)
        return pipeline
    return aligned(pipeline, attach.origin, attach.align == m.STATES)


def grant_share(share: float | None) -> float | None:
    """Return the share of the loop's time asked for: a positive number.

    Raises QueryError.
    """
    if share is not None and not share > 0:
        raise QueryError(f"budget={share!r} must be a fraction of the loop's time above 0; math.inf lifts the limit.")
    return share
