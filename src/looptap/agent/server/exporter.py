"""Sends values to clients in bounded frames, as fast as each client reads them.

Runs on the I/O thread alone. A flush costs what the streams with news cost, however many there are: each client has a
list of its streams with news (`ClientSession.ready`), and `ValueExporter` the clients that have such streams, in turns.
A stream gets on the list by `mark`: when its ring is collected from `ReadySet.ready`, when this side changes its state,
and at each heartbeat. It leaves the list when it has been looked at and nothing is left to send; that is safe because
its ring was taken out of `ReadySet.ready` before, so that a later value puts it there again.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

import msgspec

from looptap.agent.handoff.ready_set import ReadySet, Ring
from looptap.agent.io.server_socket import SendResult
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.queries.query_registry import QueryRegistry
from looptap.agent.queries.shared_queries import SharedQuery
from looptap.agent.run.resume_lineage import RunHistory
from looptap.agent.server.encoded_batches import EncodedBatches
from looptap.agent.server.recording import RunRecorder
from looptap.agent.server.sessions import SessionTable
from looptap.agent.server.subscription import ClientSession, Subscription
from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.protocol.limits import Limits
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.stream.attention import PROMPT_SECONDS, UNSEEN_SECONDS

TYPICAL_BATCH_VALUES, MAX_BATCH_VALUES, BATCH_BYTES_PER_VALUE = 512, 16_384, 512
"""Values of one stream in a message, and bytes for each: packing 512 holds the GIL for about 150 µs. Where thousands
wait, a loop of Python alone keeps the GIL from this thread for 5 ms at a time: then a message holds a quarter of
them."""

STATUS_VALUES, MESSAGE_VALUES, COLUMN_VALUES = 32, 16, 16
"""Values that take as long to pack as the status of one stream, and as what is around the values of one stream; and
values in columns that take as long as one that is not."""
MAX_IN_FLIGHT_BYTES = 1_048_576
"""Bytes that a client may have in flight, however many clients there are."""
LOW_LATENCY_SECONDS = 0.001
"""Seconds for which values gather with ``latency="low"``."""
HURRY_SECONDS = 1.0
"""Seconds for which fewer values gather after a flush that had to come early."""
LARGE_VALUE_BYTES = 262_144
"""Bytes that are worth a message of their own."""


class Pacing:
    """The pace of flushes: values gather for as long as their readers can wait.

    Each flush finds the I/O thread's code in no cache, so that a few large ones cost the job less than many small ones.
    Where more gathers in that time than is safe (`ReadySet.hasten`), a flush comes at once, and for a second the next
    ones come after half the time that this took.
    """

    def __init__(self, ready_set: ReadySet, exporter: ValueExporter, recorder: RunRecorder | None) -> None:
        self._ready_set, self._exporter, self._recorder = ready_set, exporter, recorder
        self._began = self._hurried_until = 0.0
        self._most, self._hastened = PROMPT_SECONDS, 0

    def linger(self, *, steady: bool = False) -> float:
        """Return the seconds for which values gather; ``steady``: after a flush of some.

        Large values are not waited for: they gain nothing from sharing a frame.
        """
        ready_set, seconds = self._ready_set, PROMPT_SECONDS
        if ready_set.hastened != self._hastened:
            return 0.0
        if self._exporter.low_latency_streams or ready_set.gathered() > LARGE_VALUE_BYTES:
            seconds = LOW_LATENCY_SECONDS
        elif steady and not (self._recorder is not None and self._recorder.recording):
            sessions = self._exporter.sessions.clients.values()
            seconds = min([one.patience for one in sessions if one.streams], default=PROMPT_SECONDS)
            if time.monotonic() < self._hurried_until:
                seconds = min(seconds, self._most)
        ready_set.patient = seconds > PROMPT_SECONDS
        return seconds

    def begin_flush(self) -> None:
        """Note a flush, and whether more had gathered than is safe."""
        before, self._began = self._began, time.monotonic()
        self._ready_set.patient = False
        if self._ready_set.hastened != self._hastened:
            self._hastened = self._ready_set.hastened
            self._most = max(PROMPT_SECONDS, (self._began - before) / 2)
            self._hurried_until = self._began + HURRY_SECONDS


class ValueExporter:
    """The streams of all clients; ``send`` sends a frame to a peer."""

    def __init__(
        self,
        queries: QueryRegistry,
        ready_set: ReadySet,
        sessions: SessionTable,
        limits: Limits,
        send: Callable[[bytes, bytes], SendResult],
        rank: int,
        run_history: RunHistory,
    ) -> None:
        self._queries, self._ready_set, self.sessions, self._limits = queries, ready_set, sessions, limits
        self._send, self._encoded = send, EncodedBatches(run_history, rank)
        self.streams: dict[Subscription, None] = {}
        """All streams, in the order of opening."""
        self.low_latency_streams = 0
        """The number of streams with low latency."""
        self._served: dict[Ring, dict[Subscription, None]] = {}  # by where their values come from
        self._ready_clients: OrderedDict[ClientSession, None] = (
            OrderedDict()
        )  # clients with streams on their list, next one first
        self._turns: OrderedDict[ClientSession, None] = OrderedDict()  # those of them that have yet to get a frame
        self._awaiting_replies: dict[ClientSession, None] = {}  # clients with unsent replies
        self.sent_bytes = 0
        self.leaving = False
        """True while the run ends: clients will not confirm in time."""

    # ------------------------------------------------------------ which streams there are, and which have news

    def add(self, stream: Subscription) -> None:
        """Serve a new stream."""
        self.streams[stream] = None
        stream.client.streams[stream.number] = stream
        self.low_latency_streams += stream.low_latency
        self._link(stream)

    def continue_with(
        self,
        stream: Subscription,
        query: AttachedQuery,
        *,
        declared: bool = False,
        shared: SharedQuery | None = None,
    ) -> None:
        """Serve a stream that has moved to ``query``; ``declared``: the job's."""
        self._unlink(stream)
        stream.continue_with(query, declared=declared, shared=shared)
        self._link(stream)

    def note_attention(self, client: ClientSession, patience: float, unseen: Collection[int] = ()) -> None:
        """Note how long a client's values may gather, and which streams are unseen."""
        client.patience, unseen = min(max(PROMPT_SECONDS, patience), UNSEEN_SECONDS), frozenset(unseen)
        for stream in client.streams.values():
            if stream.unseen != (now := stream.number in unseen and not stream.low_latency):
                stream.unseen = now
                self._note_readers(stream)

    def welcome_back(self, client: ClientSession) -> None:
        """Serve the streams of a client over its new link."""
        self.note_attention(client, PROMPT_SECONDS)
        for stream in client.streams.values():
            self.mark(stream)

    def remove(self, *streams: Subscription) -> None:
        """Remove streams, and detach their queries unless these are the host's."""
        queries = []
        for stream in streams:
            if stream not in self.streams:
                continue
            del self.streams[stream]
            self._unlink(stream)
            self.low_latency_streams -= stream.low_latency
            client = stream.client
            client.streams.pop(stream.number, None)
            client.ready.pop(stream, None)
            if not client.ready:
                self._ready_clients.pop(client, None)
            last = stream.source.leave()
            if stream.declared:
                self._queries.schedule_command(stream.query)
                self._ready_set.changed = True  # it may have been the last reader
            elif last:
                queries.append(stream.query)
        self._queries.drop(*queries)

    def forget(self, client: ClientSession, streams: Sequence[Subscription]) -> None:
        """Forget a client, with its streams."""
        self.remove(*streams)
        self._awaiting_replies.pop(client, None)

    def mark_rings(self, rings: Sequence[Ring]) -> None:
        """Mark the streams whose values come from these rings."""
        for ring in rings:
            for stream in self._served.get(ring, ()):
                self.mark(stream)

    def mark(self, stream: Subscription) -> None:
        """Look at a stream at the next flush, if it is still served."""
        if stream in self.streams:
            stream.client.ready[stream] = None
            self._ready_clients[stream.client] = None

    def mark_all(self, give_way: Callable[[], None] = lambda: None) -> None:
        """Mark the streams that have values or states to send."""
        for stream in list(self.streams):
            give_way()
            if stream.moved():
                stream.touch()
            if stream.changed or stream.waits():
                self.mark(stream)

    def _link(self, stream: Subscription) -> None:
        self._served.setdefault(stream.ring, {})[stream] = None
        self._note_readers(stream)
        self.mark(stream)

    def _unlink(self, stream: Subscription) -> None:
        served = self._served[stream.ring]
        del served[stream]
        self._note_readers(stream)
        if not served:
            del self._served[stream.ring]

    def _note_readers(self, stream: Subscription) -> None:
        stream.query.unseen = all([other.unseen for other in self._served[stream.ring]])

    # ------------------------------------------------------------ sending

    def window(self) -> Callable[[ClientSession], int]:
        """Return a function that bounds a client's bytes in flight.

        Operators divide the bound of the run among them; viewers take nothing of it.
        """
        if self.leaving:
            return lambda client: sys.maxsize
        most = max(MAX_IN_FLIGHT_BYTES, self._limits.in_flight_bytes // max(self.sessions.operators, 1))
        return lambda client: MAX_IN_FLIGHT_BYTES if client.viewer else most

    def flush(self, seconds: float = 0.0, fresh: bool = True, give_way: Callable[[], None] = lambda: None) -> bool:
        """Send a frame to the next client, and for ``seconds`` to those after it.

        All clients with news have a turn, then again those with more than a frame; unless ``fresh``, only what is left
        of that. Calls ``give_way`` between streams. Returns True if more can be sent, or waits.
        """
        now, window = time.monotonic(), self.window()
        end, turns = now + seconds, self._turns
        if fresh or not turns:
            turns = self._turns = OrderedDict.fromkeys(self._ready_clients)
        held = any([not self._send_replies(client, now) for client in list(self._awaiting_replies)])
        while turns:
            client, _ = turns.popitem(last=False)
            if client not in self._ready_clients:  # it has left
                continue
            self._ready_clients.move_to_end(client)
            if client.is_stalled(now, window(client)):
                held = held or (not client.disconnected and any(stream.waits() for stream in client.ready))
                continue
            sent, full = self._serve(client, give_way)
            if not client.ready:
                self._ready_clients.pop(client, None)
            if not sent:
                held = held or now < client.full_until
                continue
            if full and client in self._ready_clients:  # what has come meanwhile is in time with the next flush
                turns[client] = None
            if time.monotonic() >= end:
                return any(not other.is_stalled(now, window(other)) for other in turns)
        return held

    def rest(self) -> None:
        """Drop what was kept for clients that read the same: nothing is to be sent now."""
        self._encoded.forget()

    def answer(self, client: ClientSession, frame: bytes) -> SendResult:
        """Send a reply, after earlier ones; keep it while the client has no room."""
        sent = SendResult.FULL if client.unsent_replies else self._send(client.peer, frame)
        if sent is SendResult.FULL and sum(map(len, client.unsent_replies)) + len(frame) <= MAX_IN_FLIGHT_BYTES:
            client.unsent_replies.append(frame)
            self._awaiting_replies[client] = None
            client.back_off()
            self._ready_set.wake()
        return sent

    def _send_replies(self, client: ClientSession, now: float) -> bool:
        """Send a client the replies kept for it; return True if all were sent."""
        while client.unsent_replies and not client.disconnected and now >= client.full_until:
            if self._send(client.peer, client.unsent_replies[0]) is SendResult.FULL:
                client.back_off()
            else:
                client.unsent_replies.popleft()
        if not client.unsent_replies:
            self._awaiting_replies.pop(client, None)
        return not client.unsent_replies or client.disconnected

    def can_send(self) -> bool:
        """Return True if something can be sent now."""
        now, window = time.monotonic(), self.window()
        return any(not client.is_stalled(now, window(client)) for client in self._ready_clients)

    def _serve(self, client: ClientSession, give_way: Callable[[], None]) -> tuple[bool, bool]:
        """Send a client changed states and one frame of values, streams in turn.

        Returns whether anything was sent, and whether more may be left for lack of room.
        """
        frames, looked, taken, left = [], [], [], False
        room, size, before = TYPICAL_BATCH_VALUES, 0, self.sent_bytes
        while client.ready and room > 0 and size < LARGE_VALUE_BYTES:
            stream, _ = client.ready.popitem(last=False)
            looked.append(stream)
            give_way()
            if stream.query.state == "failed":
                self._queries.drop(stream.query)
            if stream.changed:
                if not self._send_status(stream):
                    break
                room -= STATUS_VALUES
            waiting = len(stream.source)
            count = max(TYPICAL_BATCH_VALUES, min(waiting // 4, MAX_BATCH_VALUES))
            batch = stream.next(count, count * BATCH_BYTES_PER_VALUE)
            if batch is not None:
                frames.append(self._encoded.frame(stream, batch, alike=len(self._served[stream.ring]) > 1))
                taken.append((stream, batch))
                taken_values = len(batch.events)
                left = left or waiting > taken_values
                columns = isinstance(batch.values, ValueColumns)
                room -= taken_values // (COLUMN_VALUES if columns else 1) + MESSAGE_VALUES
                size += len(frames[-1])
        give_way()
        if frames and self._send_values(client, frames):
            for stream, batch in taken:
                stream.take(batch)
        for stream in looked:
            if stream.changed or stream.waits():
                self.mark(stream)
            elif stream.state != "live":
                self.remove(stream)
        return self.sent_bytes > before, self.leaving or left or room <= 0 or size >= LARGE_VALUE_BYTES // 2

    def _send_values(self, client: ClientSession, frames: list[bytes]) -> bool:
        """Send the values of some streams as one frame; return whether it was sent."""
        frame = frames[0] if len(frames) == 1 else encode(m.Bundle(tuple(map(msgspec.Raw, frames))))
        if (
            self._send(client.peer, frame) is not SendResult.OK
        ):  # they stay in the queue, which counts what it has to drop
            client.back_off()
            return False
        client.refusals = 0
        client.sent_bytes += len(frame)
        self.sent_bytes += len(frame)
        return True

    def _send_status(self, stream: Subscription) -> bool:
        """Send the state of a stream; its end follows its last value.

        Returns False if its client has no room.
        """
        changes, status = stream.query.changes, stream.status()  # in this order: a later change is reported again
        if status.state != "live" and stream.waits():
            return True
        frame = encode(status)
        sent = self._send(stream.client.peer, frame)
        if sent is SendResult.FULL:
            stream.client.back_off()
        else:
            stream.reported_changes = changes
        self.sent_bytes += len(frame) * (sent is SendResult.OK)
        return sent is SendResult.OK
