"""Begins and ends subscriptions; turns a client's query into a declared stream.

Only declared streams are exported to others or kept in the file of the run. A client's own query becomes one in place:
with its state, its numbers and its budget, between two events.
"""

from __future__ import annotations

import msgspec

from looptap.agent.handoff.history import Cursor, HandedOverCursor
from looptap.agent.handoff.value_queue import QueueSet, ValueQueue
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.queries.code_loading import code_of
from looptap.agent.queries.history_replay import HistoryReplays
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.scalars.scalar_history import ScalarHistory
from looptap.agent.server.access_grants import AccessGrants
from looptap.agent.server.declared_streams import DeclaredStream, DeclaredStreams
from looptap.agent.server.exporter import ValueExporter
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.subscription import ClientSession, Subscription
from looptap.protocol import messages as m
from looptap.protocol.errors import LimitReached, MessageError
from looptap.protocol.limits import Limits
from looptap.protocol.replies import AttachPoint, DeclaredSource, KeptScalars, StreamInfo, SubscriptionInfo
from looptap.streams.errors import QueryError

PAUSE_TIMEOUT_SECONDS = 0.1
"""Seconds to wait for the end of an event: what answers clients waits for the loop no longer than that."""


class SubscriptionManager:
    """The subscriptions of all clients. I/O thread only."""

    def __init__(
        self,
        queries: QueryRegistry,
        declared: DeclaredStreams,
        exporter: ValueExporter,
        sources: EventSources,
        queues: QueueSet,
        limits: Limits,
        recorder: RunRecorder | None,
        run_history: RunHistory,
        grants: AccessGrants,
        scalars: ScalarHistory,
    ) -> None:
        self._queries, self._declared, self._exporter, self._sources = queries, declared, exporter, sources
        self._queues, self._limits, self._recorder, self._run_history = queues, limits, recorder, run_history
        self._grants, self._scalars, self.replays = grants, scalars, HistoryReplays(queries)

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
        if isinstance(ask, m.Attach) and (ask.of or ask.of_stream):
            return self._derive(client, ask)
        if isinstance(ask, m.Read):
            return self._read(client, ask, self._declared.find(ask.name, self._grants.visibility(client)))
        if ask.named and (declared := self._declared.named(ask.code.text)) is not None:
            return self._read(client, ask, declared)
        if ask.named and not ask.on:
            raise QueryError(f"the job declares no stream {ask.code.text!r:.120} so far.")
        wants = ask.history and ask.when is None and not ask.align
        kept = self._scalars.kept(ask.code.text, ask.on, fixed=not ask.named) if wants else None
        if kept is None:
            return self._attach(client, ask)
        info = self._attach(client, msgspec.structs.replace(ask, on=kept.on, code=m.Code(kept.query)))
        self.stream(client, ask.stream).scalars = ask.code.text
        return msgspec.structs.replace(info, history=kept, fields=kept.fields)

    def _attach(self, client: ClientSession, attach: m.Attach) -> SubscriptionInfo:
        if attach.on in self._declared.by_name and attach.on not in self._sources.by_name:
            what = f"there is no event {attach.on!r:.120}, but a declared stream of this name."
            raise QueryError(what, hint=f"of={attach.on!r:.120}")
        base = self._exporter.sessions.base(client, attach)
        queue = ValueQueue(self._queues, self._limits.outbox_values)
        query = self._queries.attached(attach, queue)
        self._queues.open(queue)
        self._exporter.add(Subscription(attach.stream, client, query, queue, base, low_latency=attach.latency == "low"))
        info, source = self._queries.describe(query), self._sources.open(attach.on)
        event = source.number
        self._queries.install(query)
        if source.number == event:  # else it is unknown whether the query saw the event; the first value will show
            info = msgspec.structs.replace(info, point=AttachPoint(event=event, base=base))
        return info

    def _derive(self, client: ClientSession, ask: m.Attach) -> SubscriptionInfo:
        """Attach a query over the values of a declared stream, or of another one."""
        refused = (("ranks: combine=", ask.align), ("when=", ask.when), ("on=", ask.on))
        if given := next((which for which, value in refused if value), ""):
            raise QueryError(f"{given} asks for events of the loop, and of= for the values of a stream.")
        declared = None if ask.of_stream else self._declared.source_of(ask.of)
        source = self.stream(client, ask.of_stream).query if declared is None else declared.query
        queue = ValueQueue(self._queues, self._limits.outbox_values)
        query = self._queries.derived(
            source, ask.of or source.name, code_of(ask.code), queue, name=ask.name, window=ask.window, every=ask.every,
            throttle=ask.throttle, max_bytes=ask.max_bytes, budget=ask.budget,
        )  # fmt: skip
        buffer = None if declared is None else declared.buffer
        notes = self.replays.hold(query, buffer, wanted=ask.history)
        self._queues.open(queue)
        base = self._exporter.sessions.base(client, ask)
        self._exporter.add(Subscription(ask.stream, client, query, queue, base, low_latency=ask.latency == "low"))
        self._queries.install(query)
        if buffer is not None and query.held:
            self.replays.start(query, buffer)
        info = self._queries.describe(query)
        return msgspec.structs.replace(info, notes=(*info.notes, *notes))

    def _read(self, client: ClientSession, ask: m.Attach | m.Read, declared: DeclaredStream) -> SubscriptionInfo:
        """Subscribe the client to a declared stream, after the number it has reached."""
        self._sources.unobserved.drain()
        reader, query, pipeline = Cursor(declared.buffer, ask.above), declared.query, declared.query.pipeline
        low_latency = ask.latency == "low" and not client.viewer
        self._exporter.add(Subscription(ask.stream, client, query, reader, low_latency=low_latency))
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
        buffer, on = declared.buffer, declared.query.on
        newest = self._sources.open(on).number
        oldest = buffer.read(buffer.first - 1, 1, buffer.number)
        before = oldest[0][1] if oldest else newest + 1
        return self._scalars.kept(declared.scalars, on, fixed=True, before=before)

    def detach(self, stream: Subscription, reason: str) -> None:
        """End a stream of a client, after the values it has yielded so far."""
        query = stream.query
        if stream.reader is None:
            self._queries.drop(query)
            if query.events and query.state == "live" and not query.pipeline.mapped:
                end = query.flush_partial if query.pipeline.trusted else query.lose_window
                self._queries.between_events(query.on, end, lambda: None)
        else:
            self._sources.unobserved.drain()
        stream.end(reason)
        self._exporter.mark(stream)

    def stream(self, client: ClientSession, number: int) -> Subscription:
        """Return a client's stream. Raises MessageError for an unknown number."""
        stream = client.streams.get(number)
        if stream is None:
            raise MessageError(f"there is no stream {number}; it may have ended.")
        return stream

    def own(self, client: ClientSession, number: int) -> AttachedQuery:
        """Return the unshared query of a client's stream. Raises QueryError."""
        stream = self.stream(client, number)
        if stream.reader is not None:
            raise QueryError(
                f"{stream.query.name!r} is declared by the job, or was handed over to it, for all; attach a query of "
                "your own."
            )
        return stream.query

    # ------------------------------------------------------------ what stands in the job

    def declare(self, client: ClientSession, ask: m.DeclareStream) -> StreamInfo:
        """Start or stop exporting or keeping a stream; return it. Raises LooptapError."""
        if ask.keep and self._recorder is None:
            raise QueryError("this agent keeps nothing: it has no store.")
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
            return self._declared.find(ask.name)
        stream = self.stream(client, ask.stream)
        for declared in list(self._declared.by_name.values()):
            if declared.query is stream.query:
                return declared
        if not (ask.export or ask.keep):
            raise QueryError(f"{stream.query.name!r:.120} is neither exported nor kept.")
        return self._hand_over(stream, ask.name)

    def _hand_over(self, stream: Subscription, name: str) -> DeclaredStream:
        """Turn a client's query into a declared stream; no value changes its number."""
        query, queue = stream.query, stream.source
        if query.recorder is not None:
            raise QueryError("a flight recorder (when=) cannot be exported or kept: it is its client's alone.")
        if query.state != "live":
            raise QueryError(f"{query.name!r:.120} has {query.state}: {query.reason}")
        assert isinstance(queue, ValueQueue)
        with self._sources.paused(PAUSE_TIMEOUT_SECONDS) as still:
            if not still:
                raise LimitReached("the loop is inside an event that takes long; nothing has changed, ask again.")
            after = stream.base + queue.number
            declared = self._declared.adopt(name or query.name, query, after, stream.client.name)
            declared.scalars = stream.scalars
        self._exporter.hand_over(
            stream, HandedOverCursor(self._queues, queue, stream.base, Cursor(declared.buffer, after))
        )
        self._queries.schedule_command(query)
        return declared
