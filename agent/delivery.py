"""Values on their way to the clients: in frames of a bounded size, as fast as each client takes them in.

Runs on the I/O thread alone.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

import msgspec

from looptap.agent.gate import Sent
from looptap.agent.guests import Guests
from looptap.agent.lineage import Lineage
from looptap.agent.outbox import Post
from looptap.agent.registry import Queries
from looptap.agent.served import Client, ServedStream
from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.protocol.limits import Limits

BATCH_VALUES, MOST_VALUES, BATCH_BYTES = 512, 16_384, 512
"""Values of one message, and bytes for each: packing 512 holds the GIL for about 150 µs. Where thousands wait, a loop
of Python alone keeps the GIL from this thread for 5 ms at a time: then a message holds a quarter of them."""

WINDOW = 1_048_576
"""Bytes that a client may have in flight, however many clients there are."""
LARGE = 262_144
"""Bytes that are worth a message of their own."""


class Delivery:
    """The streams of all clients; ``send`` hands a frame over for a peer and says what became of it."""

    def __init__(
        self,
        queries: Queries,
        post: Post,
        guests: Guests,
        limits: Limits,
        send: Callable[[bytes, bytes], Sent],
        rank: int,
        lineage: Lineage,
    ) -> None:
        self._queries, self._post, self.guests, self._limits = queries, post, guests, limits
        self._send, self._rank, self._lineage = send, rank, lineage
        self.streams: deque[ServedStream] = deque()
        self.sent_bytes = 0
        self.leaving = False
        """Whether the run ends: no answer of a client will come in time."""

    def window(self) -> Callable[[Client], int]:
        """How many bytes each client may have in flight: operators share the bound, viewers take nothing of it."""
        if self.leaving:
            return lambda client: sys.maxsize
        operators = sum(not client.viewer for client in self.guests.clients.values())
        most = max(WINDOW, self._limits.in_flight_bytes // max(operators, 1))
        return lambda client: WINDOW if client.viewer else most

    def flush(self) -> bool:
        """Send one frame, and the states of streams that changed; True if more can be sent, or waits for a client."""
        now, window = time.monotonic(), self.window()
        held = any([not self._pay(client, now) for client in list(self.guests.clients.values()) if client.owed])
        for stream in list(self.streams):
            if not self.streams or stream is not self.streams[0]:
                continue  # its client was found to be gone
            self.streams.rotate(-1)
            if stream.client.holds_up(now, window(stream.client)):
                held = held or (stream.waits() and not stream.client.away)
                continue
            if stream.query.state == "failed":
                self._queries.drop(stream.query)
            self._tell(stream)
            sent, full = self._pump(stream)
            if sent:  # what has come meanwhile to a client that got all is in time with the next flush
                others = (s for s in self.streams if (full or s.client is not stream.client) and s.waits())
                return any(not other.client.holds_up(now, window(other.client)) for other in others)
            held = held or now < stream.client.full_until
        return held

    def answer(self, client: Client, frame: bytes) -> Sent:
        """Send what a client has asked for, behind the answers that it is owed; without room it is owed, too."""
        sent = Sent.FULL if client.owed else self._send(client.peer, frame)
        if sent is Sent.FULL and sum(map(len, client.owed)) + len(frame) <= WINDOW:
            client.owed.append(frame)
            client.refused()
            self._post.wake()
        return sent

    def _pay(self, client: Client, now: float) -> bool:
        """Send a client the answers that it is owed; whether that was all."""
        while client.owed and not client.away and now >= client.full_until:
            if self._send(client.peer, client.owed[0]) is Sent.FULL:
                client.refused()
            else:
                client.owed.popleft()
        return not client.owed or client.away

    def news(self) -> bool:
        """Whether there is anything to be sent now."""
        now, window = time.monotonic(), self.window()
        return any((s.waits() or s.changed) and not s.client.holds_up(now, window(s.client)) for s in self.streams)

    def remove(self, stream: ServedStream) -> None:
        """Forget a stream, and take its query off its events, unless that is the host's."""
        if stream.reader is not None:
            stream.reader.leave()
            self._queries.heed(stream.query)
        else:
            self._queries.drop(stream.query)
            self._post.close(stream.source)
        stream.client.streams.pop(stream.number, None)
        if stream in self.streams:
            self.streams.remove(stream)

    def _pump(self, first: ServedStream) -> tuple[bool, bool]:
        """Send one frame of what the client of ``first`` waits for, its streams together.

        Whether anything went, and whether there may be more, for which the frame had no room.
        """
        client, frames, taken, values = first.client, [], [], 0
        for stream in [first, *(s for s in self.streams if s.client is client and s is not first)]:
            count = max(BATCH_VALUES - values, min(len(stream.source) // 4, MOST_VALUES))
            batch = stream.next(count, count * BATCH_BYTES)
            if batch is None:
                if stream.state != "live" and not stream.changed:
                    self.remove(stream)
                continue
            columns, got, flags = batch
            flags = self._lineage.marked(stream.query.on, columns, flags)
            frames.append(stream.packed(columns, got, flags, self._rank))
            taken.append((stream, batch[0]))
            values += len(batch[1])
            if values >= BATCH_VALUES or sum(map(len, frames)) >= LARGE:
                break
        if not frames:
            return False, False
        frame = frames[0] if len(frames) == 1 else encode(m.Bundle(tuple(map(msgspec.Raw, frames))))
        if self._send(client.peer, frame) is not Sent.OK:  # they stay in the outbox, which counts what it has to drop
            client.refused()
            return False, False
        client.sent_bytes += len(frame)
        client.refusals = 0
        self.sent_bytes += len(frame)
        for stream, columns in taken:
            stream.take(columns)
        return True, self.leaving or values >= BATCH_VALUES or len(frame) >= LARGE // 2

    def _tell(self, stream: ServedStream) -> None:
        """Send the state of a stream if it changed; its end only after its last value."""
        changes = stream.query.changes
        if not stream.changed or (stream.state != "live" and stream.waits()):
            return
        if self._send(stream.client.peer, encode(stream.status())) is Sent.FULL:
            stream.client.refused()
        else:
            stream.told = changes
