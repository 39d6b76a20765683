"""The agent's view of its clients and of the streams that it sends them."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from looptap.agent.handoff.history import Cursor, HandedOverCursor
from looptap.agent.handoff.value_batch import FlaggedValue, Item, ValueBatch
from looptap.agent.handoff.value_queue import ValueSink, ValueSource
from looptap.agent.loop.attached_query import AttachedQuery
from looptap.agent.loop.query_status import MAX_ERRORS_IN_A_ROW
from looptap.agent.loop.rank_aggregation import PartialAggregateQuery
from looptap.protocol import messages as m
from looptap.protocol.codec import encode
from looptap.protocol.keys import OPERATOR
from looptap.protocol.limits import Limits
from looptap.protocol.statistics import SubscriptionStats
from looptap.protocol.values.packing import pack, pack_values
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.errors import LooptapError
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, TRIGGER
from looptap.streams.text import last_line, public_line
from looptap.streams.values.device_transfer import Pending

RETRY_DELAY_SECONDS, VIEWER_RETRY_DELAY_SECONDS, VIEWER_STALL_TIMEOUT_SECONDS = 0.01, 0.25, 4.0
"""Seconds before the next try after libzmq had no room: for an operator, and for a viewer from first to longest."""
MAX_MISSED_HEARTBEAT_TIMEOUTS = 3
"""Times `Limits.heartbeat_timeout` that a client may be silent: its thread may have to wait for its interpreter."""


@dataclass(eq=False)
class ClientSession:
    """One attached client, with the bytes sent to it and those it has confirmed."""

    peer: bytes
    role: str
    name: str
    key: str = ""
    """Its public key; empty without sockets."""
    token: str = ""
    """The secret that identifies it over another link; empty: it will not reconnect."""
    version: tuple[int, int] = m.VERSION
    """The version of the wire that it speaks."""
    streams: dict[int, Subscription] = field(default_factory=dict)
    ready: OrderedDict[Subscription, None] = field(default_factory=OrderedDict)
    """Streams with values or states to send, the next one first."""
    sent_bytes: int = 0
    got_bytes: int = 0
    unsent_replies: deque[bytes] = field(default_factory=deque)
    """Replies for which libzmq had no room; they are sent first."""
    full_until: float = 0.0
    """The time of the next try, after libzmq had no room for it."""
    refusals: int = 0
    """The number of consecutive times without room."""
    last_heard: float = field(default_factory=time.monotonic)
    """The time of its last frame; a client sends one each second."""
    disconnected: bool = False
    """True while its link is lost; it may reconnect."""

    @property
    def viewer(self) -> bool:
        """True if it sees only exported streams."""
        return self.role != OPERATOR

    def back_off(self) -> None:
        """Set the time of the next try after libzmq had no room, ever later for a viewer."""
        pause = (
            min(VIEWER_RETRY_DELAY_SECONDS * 2 ** min(self.refusals, 8), VIEWER_STALL_TIMEOUT_SECONDS)
            if self.viewer
            else RETRY_DELAY_SECONDS
        )
        self.refusals += 1
        self.full_until = time.monotonic() + pause

    def is_stalled(self, now: float, window: int) -> bool:
        """Return True if nothing should be sent now."""
        return (
            bool(self.unsent_replies)
            or self.disconnected
            or now < self.full_until
            or self.sent_bytes - self.got_bytes >= window
        )


def expired_sessions(clients: dict[bytes, ClientSession], limits: Limits, now: float, looked: float) -> list[bytes]:
    """Return the expired clients; none if this process itself was suspended."""
    if now - looked > 2 * limits.heartbeat:
        return []
    return [
        peer
        for peer, client in clients.items()
        if now - client.last_heard > MAX_MISSED_HEARTBEAT_TIMEOUTS * limits.heartbeat_timeout
    ]


class Subscription:
    """One stream of one client: its query, and the values ready to be sent.

    ``source`` has the values, numbered above ``base``: the queue of this client's own query, or its cursor in the
    history of a declared stream.
    """

    def __init__(
        self,
        number: int,
        client: ClientSession,
        query: AttachedQuery,
        source: ValueSource,
        base: int = 0,
        *,
        low_latency: bool = False,
    ) -> None:
        self.number, self.client, self.query, self.source, self.base = number, client, query, source, base
        self.low_latency = low_latency
        self.sink: ValueSink = query.sink
        """The output of its query."""
        self.scalars = ""
        """The names whose history of scalars its client got first; empty for none."""
        self.reader = source if isinstance(source, Cursor | HandedOverCursor) else None
        self._ended = ""  # why, if only this client's reading has
        self.reported_changes = 0
        """The number of state changes that were sent to the client."""
        self.ready: deque[Item] = deque()  # of a flight recorder: what it let go
        self.sent = 0
        self._reached = base
        self._released = 0
        self._seen: tuple[object, ...] = ()
        self._recorder_errors_in_a_row = 0  # how often in a row the recorder's condition has failed

    def moved(self) -> bool:
        """Return True if a counter, or another reported fact, changed since last asked."""
        query, source = self.query, self.source
        before, self._seen = self._seen, (
            query.events, query.errors, query.pipeline.skipped, query.withheld, source.number, source.dropped,
            self.sent, query.overdue, *(place.problem for place in query.latest_slots),
        )  # fmt: skip
        return before != self._seen

    def waits(self) -> bool:
        """Return True if there is something to send."""
        return bool(len(self.source) or self.ready)

    @property
    def changed(self) -> bool:
        """True if the client has yet to receive a change of state or a first error."""
        return self.reported_changes != self.query.changes

    def touch(self) -> None:
        """Send the client the state of the stream once more."""
        self.reported_changes = 0

    @property
    def state(self) -> str:
        """The state of the query, unless only this client's reading has ended."""
        return "ended" if self._ended else self.query.state

    def hand_over(self, source: HandedOverCursor) -> None:
        """Continue with ``source``: the query belongs to the job from now on."""
        self.source = self.reader = source
        self.sink = self.query.sink
        self.base = 0

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """End the stream for this client, after the newest value or the last sent."""
        if self.reader is not None:
            self.reader.stop(at_once=at_once)
            self._ended = reason
        elif self.query.state == "live":
            self.query.state, self.query.reason = "ended", reason
        self.touch()

    def next(self, count: int, size: int) -> tuple[ValueBatch, Sequence[Any], bytearray] | None:
        """Return the next values with their flags; they stay until `take`."""
        if self.query.recorder is None:
            columns = self.source.peek(count, size)
        else:
            self._record(count, size)
            columns = ValueBatch.of_items(list(islice(self.ready, count)))
        if columns is None:
            return None
        values, flags = finished(columns)
        if flags and self.client.viewer:  # not where in the job's code it failed, nor what else there is
            values = [public_line(v) if f & ERROR else v for v, f in zip(values, flags, strict=True)]
        return columns, values, flags

    def take(self, columns: ValueBatch) -> None:
        """Remove values that were sent."""
        count = len(columns.numbers)
        self.sent += count
        self._reached = self.base + columns.numbers[-1]
        if self.query.recorder is None:
            self.source.take(columns)
        else:
            for _ in range(count):
                self.ready.popleft()

    def packed(self, columns: ValueBatch, values: Sequence[Any], flags: bytearray, rank: int) -> bytes:
        """Encode what `next` returned; values that cannot be encoded become errors."""
        knows_columns = self.client.version >= m.COLUMNS_SINCE
        try:
            form, raw = pack_values(values, columns=knows_columns)
        except LooptapError:
            values, flags = list(values), flags or bytearray(len(values))
            for i, value in enumerate(values):
                try:
                    pack(value)
                except LooptapError as error:
                    flags[i], values[i] = flags[i] | ERROR, str(error)
            form, raw = pack_values(values, columns=knows_columns)
        message = m.Values(
            self.number, self.base + columns.numbers[0], array("q", columns.events).tobytes(),
            array("d", columns.times).tobytes(), time.time() - time.monotonic(), form, msgspec.Raw(raw),
            bytes(flags) if any(flags) else b"", rank,
            array("q", [v.window for v in columns.values]).tobytes() if isinstance(self.query,
            PartialAggregateQuery) else b"",
        )  # fmt: skip
        return encode(message)

    @property
    def last(self) -> int:
        """The number of the newest value."""
        return self.base + (self._released if self.query.recorder is not None else self.source.number)

    @property
    def reached(self) -> int:
        """The number up to which every value was sent or dropped."""
        if self.reader is not None:
            return self.reader.reached
        settled = self.sent + self.source.dropped  # looked at before the number, which the training thread raises first
        number = self.source.number
        return self.base + number if self.query.recorder is None and settled == number else self._reached

    def status(self) -> m.Status:
        """Return the stream's state and counters."""
        query = self.query
        elapsed = time.monotonic() - query.started if query.started else 0.0
        traceback, remarks = query.traceback, tuple(query.warnings())
        if self.client.viewer:
            traceback, remarks = public_line(traceback), ()
        return m.Status(
            self.number, self.state, self._ended or query.reason, self.last, self.source.dropped,
            query.pipeline.skipped, query.errors, traceback, remarks,
            1e9 * query.seconds / query.events if query.events else 0.0,
            query.seconds / elapsed if elapsed > 0 else 0.0, self.reached, query.withheld, query.filtered,
        )  # fmt: skip

    def stats(self) -> SubscriptionStats:
        """Return the state and counters, with the names of the query and its client."""
        s, query = self.status(), self.query
        return SubscriptionStats(
            name=query.name, on=query.on, client=self.client.name, state=s.state, values=s.last - self.base,
            sent=self.sent, dropped=s.dropped, skipped=s.skipped, errors=s.errors, withheld=s.withheld,
            filtered=s.filtered, evaluated=query.events, nanoseconds_per_event=s.nanoseconds, share_of_time=s.share,
            limitation=query.limitation(),
        )  # fmt: skip

    def _record(self, count: int, size: int) -> None:
        """Feed the flight recorder with new values."""
        recorder = self.query.recorder
        assert recorder is not None
        columns = self.source.peek(count, size)
        if columns is None:
            return
        self.source.take(columns)
        for event, when, marked in zip(columns.events, columns.times, columns.values, strict=True):
            size = marked.nbytes
            kept = {n: v.resolve() if type(v) is Pending else v for n, v in marked.condition_inputs.items()}
            shown = FlaggedValue(*_finished(marked))
            try:
                released = recorder.push((0, event, when, shown, size), size, kept, event, when)
                self._recorder_errors_in_a_row = 0
            except Exception as error:
                expected = isinstance(error, LooptapError)
                self._recorder_errors_in_a_row += 1
                self.query.errors += 1
                if not self.query.traceback:
                    self.query.traceback = str(error) if expected else format_error(error, recorder.condition.text)
                    self.query.changes += 1
                if self._recorder_errors_in_a_row == MAX_ERRORS_IN_A_ROW:
                    self.query.fail(
                        f"when= failed {MAX_ERRORS_IN_A_ROW} times in a row: {last_line(self.query.traceback)}"
                    )
                continue
            for fired, (_, event, when, shown, size) in released:
                self._released += 1
                shown.flags |= TRIGGER if fired else 0
                self.ready.append((self._released, event, when, shown, size))


_UNFINISHED = frozenset({FlaggedValue, Pending})


def finished(columns: ValueBatch) -> tuple[Sequence[Any], bytearray]:
    """Return values and their flags, if any; waits for copies from a device."""
    if isinstance(columns.values, ValueColumns):
        return columns.values, bytearray()
    values, flags = list(columns.values), bytearray()
    if not _UNFINISHED.isdisjoint(map(type, values)):
        flags = bytearray(len(values))
        for i, value in enumerate(values):
            values[i], flags[i] = _finished(value)
    return values, flags


def _finished(value: Any) -> tuple[Any, int]:
    """Return a value and its flags; waits for its copy from a device."""
    flags = 0
    if type(value) is FlaggedValue:
        value, flags = value.value, value.flags
    if type(value) is Pending:
        try:
            value = value.resolve()
        except Exception as error:
            return format_error(error), flags | ERROR
    return value, flags
