"""The agent's view of its clients and of the streams that it sends them."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from looptap.agent.handoff.value_batch import FlaggedValue, Item, batch_of, last_of
from looptap.agent.handoff.value_ring import Cursor, ValueRing
from looptap.agent.loop.attached_query import MAX_ERRORS_IN_A_ROW, AttachedQuery
from looptap.agent.queries.shared_queries import SharedQuery
from looptap.protocol import messages as m
from looptap.protocol.keys import OPERATOR
from looptap.protocol.limits import Limits
from looptap.protocol.statistics import SubscriptionStats
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.errors import LooptapError
from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, TRIGGER
from looptap.streams.stream.attention import PROMPT_SECONDS
from looptap.streams.stream.buffer import Batch
from looptap.streams.text import last_line, public_line
from looptap.streams.values.device_transfer import Pending

RETRY_DELAY_SECONDS, VIEWER_RETRY_DELAY_SECONDS, VIEWER_STALL_TIMEOUT_SECONDS = 0.01, 0.25, 4.0
"""Seconds before the next try after libzmq had no room: for an operator, and for a viewer from first to longest."""
MAX_MISSED_HEARTBEAT_TIMEOUTS = 3
"""Times `Limits.heartbeat_timeout` that a client may be silent: its thread may have to wait for its interpreter."""


class ClientSession(msgspec.Struct, eq=False, weakref=True):
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
    streams: dict[int, Subscription] = msgspec.field(default_factory=dict)
    ready: OrderedDict[Subscription, None] = msgspec.field(default_factory=OrderedDict)
    """Streams with values or states to send, the next one first."""
    patience: float = PROMPT_SECONDS
    """The seconds for which its values may gather."""
    sent_bytes: int = 0
    got_bytes: int = 0
    unsent_replies: deque[bytes] = msgspec.field(default_factory=deque)
    """Replies for which libzmq had no room; they are sent first."""
    full_until: float = 0.0
    """The time of the next try, after libzmq had no room for it."""
    refusals: int = 0
    """The number of consecutive times without room."""
    last_heard: float = msgspec.field(default_factory=time.monotonic)
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


class _Counts(NamedTuple):
    """The counters of a query when a client joined it."""

    events: int = 0
    errors: int = 0
    skipped: int = 0
    withheld: int = 0
    filtered: int = 0

    @classmethod
    def of(cls, query: AttachedQuery) -> _Counts:
        return cls(query.events, query.errors, query.pipeline.skipped, query.limit.withheld, query.filtered)

    def minus(self, other: _Counts) -> _Counts:
        return _Counts(*[mine - its for mine, its in zip(self, other, strict=True)])


class Reached(NamedTuple):
    """How far a stream got: its last number, and the event of that.

    ``every``-th events after it yield a value each; 0 if that is not certain.
    """

    number: int = 0
    event: int = 0
    every: int = 0

    def base(self, event: int) -> int:
        """Return the last number before the values of events after ``event``."""
        return self.number + (event // self.every - self.event // self.every if self.every else 0)


class Subscription:
    """One stream of one client: its query, and the values ready to be sent.

    ``source`` reads the values, of a query that others may share, or of a ``declared`` stream. ``ask`` is the request
    that attached the query. It ends after ``most`` values, if that is not 0.
    """

    def __init__(
        self,
        number: int,
        client: ClientSession,
        query: AttachedQuery,
        source: Cursor,
        *,
        declared: bool = False,
        low_latency: bool = False,
        ask: m.Attach | None = None,
        most: int = 0,
    ) -> None:
        self.number, self.client, self.query, self.source, self.declared = number, client, query, source, declared
        self.low_latency, self.ask, self._most = low_latency, ask, most if most > 0 else sys.maxsize
        self.name = ask.name if ask is not None else ""
        self.ring: ValueRing = query.sink
        """The output of its query."""
        self.unseen = False
        """True if its client has said that nothing looks at it."""
        self.shared: SharedQuery | None = None
        """Its query, if other clients may join it: known as long as it is referred to."""
        self.scalars = ""
        """The names whose history of scalars its client got first; empty for none."""
        self._ended = ""  # why, if only this client's reading has
        self.reported_changes = 0
        """The number of state changes that were sent to the client."""
        self.ready: deque[Item] = deque()  # of a flight recorder: what it let go
        self.sent = 0
        self._before = source.number if not declared else 0  # what its own values are numbered above
        self._reached = self._before
        self._released = 0
        self._joined = _Counts() if declared else _Counts.of(query)
        self._final: tuple[_Counts, str] | None = None  # counts and first error at its end, while others read on
        self._seen: tuple[object, ...] = ()
        self._recorder_errors_in_a_row = 0  # how often in a row the recorder's condition has failed

    def moved(self) -> bool:
        """Return True if a counter, or another reported fact, changed since last asked."""
        query, source = self.query, self.source
        before, self._seen = (
            self._seen,
            (
                query.events,
                query.errors,
                query.pipeline.skipped,
                query.limit.withheld,
                source.number,
                source.dropped,
                self.sent,
                query.overdue,
                *(place.problem for place in query.latest_slots),
            ),
        )
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

    def continue_with(self, query: AttachedQuery, *, declared: bool, shared: SharedQuery | None) -> None:
        """Continue with the values of ``query``; ``declared``: it belongs to the job."""
        self._joined = _Counts.of(query).minus(self._counts())
        self.query, self.ring, self.declared = query, query.sink, declared
        self.shared = shared
        self.touch()
        if declared:
            self._before, self._joined = 0, _Counts()

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """End the stream for this client, after the newest value or the last sent."""
        if at_once:
            self.ready.clear()
            self._released = self._reached - self._before
        if self.declared or self.query.state == "live":
            self.source.stop(at_once=at_once)
            if self.source.shared and not self.declared:  # what others make of the query is not this client's
                self._final = self._counts(), self.query.traceback
            self._ended, self.shared = reason, None
        self.touch()

    def next(self, count: int, size: int) -> Batch | None:
        """Return the next values; they stay until `take`."""
        count = min(count, self._most - self.sent)
        if not count:
            return None
        if self.query.recorder is None:
            return self.source.peek(count, size)
        left = count
        while left > 0 and (taken := self._record(left, size)):
            left = 0 if self.ready else left - taken
        return batch_of(list(islice(self.ready, count))) if self.ready else None

    def first(self, columns: Batch) -> int:
        """Return the number of the first of the values that `next` returned."""
        return columns.first + (self.source.base if self.query.recorder is None else self._before)

    def take(self, columns: Batch) -> None:
        """Remove values that were sent."""
        count = len(columns.events)
        self.sent += count
        if self.query.recorder is None:
            self.source.take(columns)
        else:
            self._reached = self._before + last_of(columns)
            for _ in range(count):
                self.ready.popleft()
        if self.sent >= self._most:
            self.end(f"all {self.sent:,} values that it was to have", at_once=True)

    @property
    def last(self) -> int:
        """The number of the newest value."""
        return self._before + self._released if self.query.recorder is not None else self.source.number

    @property
    def reached(self) -> int:
        """The number up to which every value was sent or dropped."""
        return self.source.reached if self.query.recorder is None else self._reached

    def reach(self, *, exact: bool) -> Reached:
        """Return how far it got, for its client to attach it again.

        ``exact``: nothing is evaluated meanwhile.
        """
        query, counts = self.query, self._counts()._replace(errors=0)  # an error is a value, too
        plain = query.pipeline.mapped and query.recorder is None and not query.pipeline.throttle
        each = exact and plain and counts == _Counts(self.last - self._before)
        return Reached(self.last, query.seen, query.every if each else 0)

    def _counts(self) -> _Counts:
        return _Counts.of(self.query).minus(self._joined)

    def status(self) -> m.Status:
        """Return the stream's state and counters."""
        query = self.query
        elapsed = time.monotonic() - query.started if query.started else 0.0
        counts, traceback = self._final or (self._counts(), query.traceback)
        remarks = tuple(query.warnings())
        reason = self._ended or query.reason
        if self.client.viewer:
            reason, traceback, remarks = public_line(reason), public_line(traceback), ()
        return m.Status(
            self.number,
            self.state,
            reason,
            self.last,
            self.source.dropped,
            counts.skipped,
            counts.errors,
            traceback,
            remarks,
            1e9 * query.seconds / query.events if query.events else 0.0,
            query.seconds / elapsed if elapsed > 0 else 0.0,
            self.reached,
            counts.withheld,
            counts.filtered,
        )

    def stats(self) -> SubscriptionStats:
        """Return the state and counters, with the names of the query and its client."""
        s, query = self.status(), self.query
        return SubscriptionStats(
            name=self.name or query.name,
            on=query.on,
            client=self.client.name,
            state=s.state,
            values=s.last - self._before,
            sent=self.sent,
            dropped=s.dropped,
            skipped=s.skipped,
            errors=s.errors,
            withheld=s.withheld,
            filtered=s.filtered,
            evaluated=self._counts().events,
            nanoseconds_per_event=s.nanoseconds,
            share_of_time=s.share,
            limitation=query.limit.describe(),
        )

    def _record(self, count: int, size: int) -> int:
        """Feed the flight recorder with new values; return how many there were."""
        recorder = self.query.recorder
        assert recorder is not None
        columns = self.source.peek(count, size)
        if columns is None:
            return 0
        self.source.take(columns)
        values: Sequence[Any] = columns.values
        if isinstance(values, ValueColumns):
            recorded = _Recorded(values, self.query, columns.nbytes // len(values))
            if recorder.pass_by(recorded, partial(_last_items, recorded, columns), recorded.size):
                self._recorder_errors_in_a_row = 0
                return len(values)
            values = recorded.values(len(values))
        for event, when, marked in zip(columns.events, columns.times, values, strict=True):
            size = marked.nbytes
            kept = {n: v.resolve() if type(v) is Pending else v for n, v in marked.condition_inputs.items()}
            shown = FlaggedValue(*finished_value(marked))
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
        return len(values)


class _Recorded:
    """A flight recorder's values, and what its condition reads, in columns."""

    def __init__(self, block: ValueColumns, query: AttachedQuery, size: int) -> None:
        self._names, self.size = query.inputs, size
        count = len(block.columns) - len(self._names)
        self._values = ValueColumns(block.columns[:count], query.yields_rows)
        self._inputs = dict(zip(self._names, block.columns[count:], strict=True))

    def __len__(self) -> int:
        return len(self._values)

    def column(self, name: str) -> Any:
        """Return the numbers of one observable."""
        return self._inputs[name]

    def values(self, count: int) -> list[FlaggedValue]:
        """Return the last values one by one, with their inputs."""
        start = len(self) - count
        rows = zip(*[column[start:].tolist() for column in self._inputs.values()], strict=True)
        inputs = [dict(zip(self._names, row, strict=True)) for row in rows] or [{}] * count
        values = self._values[start:].tolist()
        return [FlaggedValue(*both, nbytes=self.size) for both in zip(values, [0] * count, inputs, strict=True)]


def _last_items(recorded: _Recorded, block: Batch, count: int) -> list[Item]:
    """Return the last records of a block, as they are held."""
    start = len(recorded) - count
    values = [FlaggedValue(one.value, 0) for one in recorded.values(count)]
    parts = block.events[start:], block.times[start:], values
    return [(0, event, when, value, recorded.size) for event, when, value in zip(*parts, strict=True)]


def finished_value(value: Any) -> tuple[Any, int]:
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
