"""Begins and ends subscriptions; turns a client's query into a declared stream.

Only declared streams are exported to others or kept in the file of the run. A client's own query becomes one in place:
with its state, its numbers and its budget, between two events.
"""

from __future__ import annotations

import contextlib

import msgspec

from looptap.agent.control.unsafe_queries import UnsafeQueries
from looptap.agent.handoff.value_ring import Cursor, RingSet
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.queries.code_loading import loaded_code
from looptap.agent.queries.history_replay import HistoryReplays
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.agent.queries.shared_queries import SharedQueries, SharedQuery
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.scalars.scalar_history import ScalarHistory
from looptap.agent.server.access_grants import AccessGrants
from looptap.agent.server.declared_streams import DEFAULT_HISTORY_VALUES, DeclaredStream, DeclaredStreams
from looptap.agent.server.exporter import ValueExporter
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.subscription import ClientSession, Reached, Subscription
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, MessageError
from looptap.protocol.limits import Limits
from looptap.protocol.replies import AttachPoint, DeclaredSource, KeptScalars, StreamInfo, SubscriptionInfo
from looptap.streams.errors import QueryError
from looptap.streams.expressions import nearest

BUSY = "the loop is inside an event that takes long; nothing was changed, try again."
PAUSE_TIMEOUT_SECONDS = 0.1
"""Seconds to wait for the end of an event: what answers clients waits for the loop no longer than that."""

_PREFERRED_EVENT = "batch"  # of those that carry a number of a name


class SubscriptionManager:
    """The subscriptions of all clients. I/O thread only."""

    def __init__(
        self,
        queries: QueryRegistry,
        declared: DeclaredStreams,
        exporter: ValueExporter,
        sources: EventSources,
        outbox: RingSet,
        limits: Limits,
        recorder: RunRecorder | None,
        run_history: RunHistory,
        grants: AccessGrants,
        scalars: ScalarHistory,
        unsafe: UnsafeQueries,
    ) -> None:
        self._queries, self._declared, self._exporter, self._sources = queries, declared, exporter, sources
        self._outbox, self._limits, self._recorder, self._run_history = outbox, limits, recorder, run_history
        self._grants, self._scalars, self._unsafe, self.replays = grants, scalars, unsafe, HistoryReplays(queries)
        self._shared = SharedQueries(sources.exposed)

    def attach(self, client: ClientSession, ask: m.Attach | m.Read) -> SubscriptionInfo:
        """Start a stream; return its description. Raises LimitReached, QueryError."""
        limits, clients = self._limits, self._exporter.sessions.clients.values()
        alike = sum(len(other.streams) for other in clients if other.viewer == client.viewer)
        for held, bound, which in (
            (len(client.streams), limits.streams_per_client, "streams_per_client"),
            (alike, limits.streams, "streams"),
        ):
            if held >= bound:
                raise LimitReached(f"{held} streams are open, the bound (Limits.{which}); close one.")
        if ask.stream in client.streams:
            raise LimitReached(f"stream {ask.stream} is in use.")
        if isinstance(ask, m.Attach) and ask.unsafe:
            self._unsafe.admit()
        if isinstance(ask, m.Attach) and (ask.of or ask.of_stream):
            return self._derive(client, ask)
        if isinstance(ask, m.Read):
            return self._read(client, ask, self._declared.find(ask.name, self._grants.visibility(client)))
        if ask.named and (declared := self._declared.named(ask.code.text)) is not None:
            return self._read(client, ask, declared)
        if ask.named and not ask.on:
            raise QueryError(f"the job has not declared a stream {ask.code.text!r:.120} yet.")
        wants = ask.history and ask.when is None and not ask.align
        kept = self._scalars.kept(ask.code.text, ask.on, fixed=not ask.named) if wants else None
        if kept is None:
            return self._attach(client, ask)
        info = self._attach(client, msgspec.structs.replace(ask, on=kept.on, code=m.Code(kept.query)))
        self.stream(client, ask.stream).scalars = ask.code.text
        return msgspec.structs.replace(info, history=kept, fields=kept.fields)

    def _attach(self, client: ClientSession, attach: m.Attach) -> SubscriptionInfo:
        if attach.on in self._declared.by_name and attach.on not in self._sources.by_name:
            what = f"there is no event type {attach.on!r:.120}, but there is a declared stream of this name."
            raise QueryError(what, hint=f"of={attach.on!r:.120}")
        before = self._exporter.sessions.before(client, attach)
        known = self._shared.find(attach)
        if known is not None and (point := self._join(client, attach, known, before)) is not None:
            return msgspec.structs.replace(self._queries.describe(known.query), point=point)
        query = self._queries.attached(attach, self._outbox.open())
        source = self._sources.open(attach.on)
        # The numbers of a stream that is attached again go on from an event, so that none may come meanwhile.
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) if before.number else contextlib.nullcontext(False) as still:
            point = _point(before if still else Reached(before.number), source.number)
            self._subscribe(client, attach, query, point.base, self._shared.add(attach, query))
            info = self._queries.describe(query)
            self._install(client, attach, query, point.event)
        if source.number != point.event and not still:  # it is unknown whether the query saw the event
            return info
        return msgspec.structs.replace(info, point=point)

    def _derive(self, client: ClientSession, ask: m.Attach) -> SubscriptionInfo:
        """Attach a query over the values of a declared stream, or of another one."""
        refused = (("ranks: combine=", ask.align), ("when=", ask.when), ("on=", ask.on))
        if given := next((which for which, value in refused if value), ""):
            raise QueryError(f"{given} asks for events of the loop, and of= for the values of a stream.")
        declared = None if ask.of_stream else self._declared_source(ask.of)
        source = self._source_of(self.stream(client, ask.of_stream)) if declared is None else declared.query
        query = self._queries.derived(
            source,
            ask.of or source.name,
            loaded_code(ask.code),
            self._outbox.open(),
            name=ask.name,
            window=ask.window,
            every=ask.every,
            throttle=ask.throttle,
            max_bytes=ask.max_bytes,
            budget=ask.budget,
            unsafe=ask.unsafe,
        )
        query.late = bool(ask.of_stream) and self.stream(client, ask.of_stream).source.number >= ask.every
        ring = None if declared is None else declared.ring
        notes = self.replays.hold(query, ring, wanted=ask.history)
        self._subscribe(client, ask, query, self._exporter.sessions.before(client, ask).number, None)
        self._install(client, ask, query, self._sources.open(query.on).number if query.on else 0)
        if ring is not None and query.held:
            self.replays.start(query, ring)
        info = self._queries.describe(query)
        return msgspec.structs.replace(info, notes=(*info.notes, *notes))

    def _install(self, client: ClientSession, ask: m.Attach, query: AttachedQuery, event: int) -> None:
        """Attach a client's query after ``event``; an unsafe one is put on record."""
        if ask.unsafe:
            self._unsafe.begin(query, client.name, event)
        self._queries.install(query)

    def _declared_source(self, name: str) -> DeclaredStream:
        """Return the declared stream of this name. Raises QueryError."""
        try:
            return self._declared.source_of(name)
        except QueryError as error:
            carried = self._scalars.kept(name, _PREFERRED_EVENT, fixed=False) is not None
            hint = "Events carry it, so ask over these: mean(e.loss for e in events)." if carried else error.hint
            raise QueryError(error.reason, hint=hint) from None

    def _source_of(self, stream: Subscription) -> AttachedQuery:
        """Return the query of a stream, to which another one is about to be attached."""
        return stream.query if stream.declared else self._parted(stream)

    def _join(self, client: ClientSession, attach: m.Attach, known: SharedQuery, before: Reached) -> AttachPoint | None:
        """Share a query with its clients; return where that begins, None if impossible.

        Nothing is evaluated meanwhile, and what came before has been: the client gets the values of later events.
        """
        self._sources.drain()
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) as still:
            if not still:
                return None
            self._sources.drain()
            source = self._sources.open(attach.on)
            if not known.joinable(group_begins=source.number == source.group_start):
                return None
            point = _point(before, source.number)
            self._subscribe(client, attach, known.query, point.base, known)
            return point

    def merge(self) -> None:
        """Let clients share a query whose own one has come to agree with it.

        Each after it has had the values of its own one.
        """
        apart = []
        for stream in self._exporter.streams:
            if (own := stream.shared) is not None and (leader := self._shared.leader(own)) is not own:
                apart.append((stream, own, leader))
        likely = [(stream, own, leader) for stream, own, leader in apart if leader.query.events and own.query.events]
        if not likely:
            return
        gone = []
        self._sources.drain()
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) as still:
            if still:
                self._sources.drain()
                for stream, own, leader in likely:
                    if not (stream.source.shared or len(stream.source)) and leader.agrees(own):
                        stream.source.join(leader.query.sink)
                        self._exporter.continue_with(stream, leader.query, shared=leader)
                        gone.append(own.query)
        self._queries.drop(*gone)

    def _subscribe(
        self, client: ClientSession, attach: m.Attach, query: AttachedQuery, base: int, shared: SharedQuery | None
    ) -> None:
        low_latency, newest = attach.latency == "low", query.sink.number
        source = Cursor(query.sink, newest, base - newest)
        stream = Subscription(
            attach.stream, client, query, source, low_latency=low_latency, ask=attach, most=attach.count
        )
        stream.shared, query.account.client = shared, client.peer
        if shared is not None:
            self._shared.leader(shared)
        self._exporter.add(stream)

    def _read(self, client: ClientSession, ask: m.Attach | m.Read, declared: DeclaredStream) -> SubscriptionInfo:
        """Subscribe the client to a declared stream, after the number it has reached."""
        self._sources.unobserved.drain()
        query, pipeline = declared.query, declared.query.pipeline
        reader = Cursor(declared.ring, min(ask.above, declared.ring.number) if ask.above else None)
        low_latency = ask.latency == "low" and not client.viewer
        stream = Subscription(ask.stream, client, query, reader, declared=True, low_latency=low_latency, most=ask.count)
        self._exporter.add(stream)
        self._queries.schedule_command(query)
        quiet = declared.logged or client.viewer
        text = "" if declared.logged else pipeline.text
        kept = self._kept_before(declared) if not ask.above else None
        return SubscriptionInfo(
            mapped=pipeline.mapped,
            fields=pipeline.fields if kept is None else kept.fields,
            history=kept,
            explain="the job hands its values over" if declared.logged else pipeline.explain(),
            notes=() if quiet else (*pipeline.notes, *self._queries.notes(query)),
            declared=DeclaredSource(
                name=declared.name,
                query=text,
                on=query.on,
                unit=declared.unit,
                after=reader.position,
                upto=reader.number,
            ),
        )

    def _kept_before(self, declared: DeclaredStream) -> KeptScalars | None:
        """Return the history of scalars before the oldest value of a declared stream.

        It has one if its query was handed over by a client that had got that history: who shares the stream shares it.
        """
        if not declared.scalars:
            return None
        on = declared.query.on
        newest = self._sources.open(on).number
        oldest = declared.ring.read(0, 1)
        before = oldest[0][1] if oldest else newest + 1
        return self._scalars.kept(declared.scalars, on, fixed=True, before=before)

    def detach(self, stream: Subscription, reason: str) -> None:
        """End a stream of a client, after the values it has yielded so far."""
        if not stream.declared and not stream.query.pipeline.mapped:
            with contextlib.suppress(LimitReached):  # inside a long event it has to go without the open window
                self._parted(stream)
        query = stream.query
        if stream.declared or stream.source.shared:
            self._sources.drain()
        else:
            self._queries.drop(query)
            if query.events and query.state == "live" and not query.pipeline.mapped:
                self._queries.between_events(query.on, query.end_window, lambda: None)
        stream.end(reason)
        self._exporter.mark(stream)

    def stream(self, client: ClientSession, number: int) -> Subscription:
        """Return a client's stream. Raises MessageError for an unknown number."""
        stream = client.streams.get(number)
        if stream is None:
            raise MessageError(f"there is no stream {number}; it may have ended.")
        return stream

    def own(self, client: ClientSession, number: int) -> AttachedQuery:
        """Return the query of a client's stream, for this client alone from now on.

        Raises QueryError, LimitReached.
        """
        stream = self.stream(client, number)
        if stream.declared:
            raise QueryError(
                f"{stream.query.name!r} is declared by the job, or was handed over to it, for all; attach a query of "
                "your own."
            )
        return self._parted(stream)

    def _parted(self, stream: Subscription) -> AttachedQuery:
        """Give a client that shares its query one of its own, which continues from here.

        Raises LimitReached.
        """
        stream.shared = None
        if not stream.source.shared:
            return stream.query
        assert stream.ask is not None
        ring = self._outbox.open(after=stream.source.reached)
        query = self._queries.attached(stream.ask, ring)
        self._sources.drain()
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) as still:
            if not still:
                self._outbox.close(ring)
                raise LimitReached(BUSY)
            self._sources.drain()
            query.continue_from(stream.query)
            query.account.client = stream.client.peer
            stream.source.move_to(ring)
            self._exporter.continue_with(stream, query)
            self._queries.install(query)
        return query

    # ------------------------------------------------------------ what stands in the job

    def declare(self, client: ClientSession, ask: m.DeclareStream) -> StreamInfo:
        """Start or stop exporting or keeping a stream; return it. Raises LooptapError."""
        if ask.keep and self._recorder is None:
            raise QueryError("this agent cannot keep streams: it has no store.")
        if ask.share:
            self._grants.limited(ask.share)
        declared = self._declared_of(client, ask)
        if ask.keep:
            self.keep(declared)
        elif ask.keep is not None and self._recorder is not None:
            self._sources.drain()
            self._recorder.stop_recording(declared, self._run_history)
        if ask.export is not None:
            self._grants.show(declared, ask.share, ask.export)
            for stream in list(self._exporter.streams):
                sees = self._grants.visibility(stream.client) if stream.query is declared.query else None
                if sees is not None and not sees(declared):
                    stream.end("it is no longer exported", at_once=True)
                    self._exporter.mark(stream)
        return declared.describe()

    def keep(self, declared: DeclaredStream) -> None:
        """Keep a declared stream in the file of the run, its history first."""
        if self._recorder is not None:
            self._sources.unobserved.drain()
            self._recorder.start_recording(declared)
            self._recorder.hand_over(self._run_history)  # before new values take the place of old ones
            self._queries.schedule_command(declared.query)

    def _declared_of(self, client: ClientSession, ask: m.DeclareStream) -> DeclaredStream:
        if not ask.stream:
            there = ask.name in self._declared.by_name or not (ask.export or ask.keep)
            return self._declared.find(ask.name) if there else self._of_scalar(client, ask.name)
        stream = self.stream(client, ask.stream)
        for declared in list(self._declared.by_name.values()):
            if declared.query is stream.query:
                return declared
        if not (ask.export or ask.keep):
            raise QueryError(f"{stream.query.name!r:.120} is neither exported nor kept.")
        return self._hand_over(stream, ask.name)

    def _of_scalar(self, client: ClientSession, name: str) -> DeclaredStream:
        """Declare a number that events carry, or several with commas, for a client."""
        kept = self._scalars.kept(name, _PREFERRED_EVENT, fixed=False)
        if kept is None:
            there = dict.fromkeys([*self._declared.by_name, *(one.name for one in self._scalars.report().scalars)])
            listed = ", ".join(map(repr, list(there)[:20])) or "none"
            raise QueryError(
                f"there is no declared stream {name!r:.120}, and no number of that name is kept; there are: {listed}. "
                f"{nearest(name, there)}".rstrip()
            )
        query = self._queries.attached(m.Attach(0, 0, m.Code(kept.query), kept.on, name=name), self._outbox.open())
        ring = query.sink
        try:
            declared = self._declared.adopt(name, query, client.name)
        finally:
            self._outbox.close(ring)
        query.redirect(self._declared.history.open(DEFAULT_HISTORY_VALUES), 0)
        declared.scalars = name
        self._queries.install(query)
        return declared

    def _hand_over(self, stream: Subscription, name: str) -> DeclaredStream:
        """Turn a client's query into a declared stream; no value changes its number."""
        query = self._parted(stream)
        if query.recorder is not None:
            raise QueryError("a flight recorder (when=) cannot be exported or kept: it belongs to its client.")
        if query.state != "live":
            raise QueryError(f"{query.name!r:.120} has {query.state}: {query.reason}")
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) as still:
            if not still:
                raise LimitReached(BUSY)
            source = stream.source
            declared = self._declared.adopt(name or query.name, query, stream.client.name)
            declared.scalars = stream.scalars
            ring = self._declared.history.open(DEFAULT_HISTORY_VALUES, source.reached)
            source.move_to(ring)
            query.redirect(ring, ring.number - query.sink.number)
        self._exporter.continue_with(stream, query, declared=True)
        self._queries.schedule_command(query)
        return declared


def _point(before: Reached, event: int) -> AttachPoint:
    """Return where a stream begins that got as far as ``before``."""
    return AttachPoint(event=event, base=before.base(event), exact=bool(before.every))
