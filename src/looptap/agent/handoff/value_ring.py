"""Bounded lock-free queues from the training thread to the I/O thread.

Guarantees: `put` never blocks and never raises; every value that does not fit is counted. Assumes one producer at a
time for each queue (the agent's event lock) and one consumer (the I/O thread).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, Item, ValueBatch, ValueBlock, leading

RESERVATION_BYTES = 65_536
"""Bytes that a queue reserves at a time."""
URGENT_BYTES = 262_144
"""Bytes that wait in a queue from which on values do not gather for long."""
MAX_FREE_SHARE_PER_QUEUE = 2
"""A queue may hold this many times the free bytes: a client that does not read leaves room for those that do."""
MAX_VALUES_PER_TRANSFER = 16_384
"""Values, or blocks of them, that the I/O thread moves at once out of the list to which the training thread appends."""


class Inbox:
    """The values of one query on their way to a query over them, in the same thread.

    The sink of the one appends each value here as well, whether or not it has room; the other reads them right after.
    """

    __slots__ = ("items", "sink")

    def __init__(self, sink: ValueSink) -> None:
        self.sink = sink
        """The output of the query that reads them."""
        self.items: deque[Item] = deque()


class ValueSink(Protocol):
    """The output of a query: a `ValueQueue`, or a declared stream's `HistoryBuffer`."""

    inboxes: tuple[Inbox, ...]
    """Those of the queries over the values; replaced as a whole."""

    @property
    def unobserved(self) -> bool:
        """True if the values have no consumer."""

    @property
    def number(self) -> int:
        """The number of the newest value."""

    @property
    def capacity(self) -> int:
        """The most values that it holds."""

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value."""

    def put_all(self, events: Sequence[int], times: Sequence[float], values: Sequence[Any], size: int) -> None:
        """Append the next values, of ``size`` bytes each; they do not change later."""

    def lose(self, count: int = 1) -> None:
        """Skip numbers of values that will never exist, and count them as dropped."""

    def notify(self) -> None:
        """Wake the I/O thread."""


class ValueSource(Protocol):
    """The input of one client's stream: a `QueueReader`, or a `Cursor`. I/O thread."""

    @property
    def base(self) -> int:
        """What the client's numbers are above those of the next batch."""

    @property
    def number(self) -> int:
        """The number of the newest value, as the client counts."""

    @property
    def dropped(self) -> int:
        """The number of values that this client has lost."""

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost, as the client counts."""

    @property
    def shared(self) -> bool:
        """True if the query is not this client's alone."""

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next consecutive values without removing them.

        At most ``count`` values of ``size`` bytes together, but at least one; None if there are none.
        """

    def take(self, columns: ValueBatch) -> None:
        """Remove the values that `peek` returned."""

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""

    def leave(self) -> bool:
        """Stop being a reader; return True if none is left."""

    def __len__(self) -> int: ...


class QueueSet:
    """State shared by all sinks of an agent: ready set, wakeup, bound on bytes.

    ``wake`` lets values gather before they are sent, ``wake_now`` does not. While they gather for long (`patient`), a
    producer calls `hasten` as soon as so much waits that some might not have room later.

    The ready set holds the sinks with new values, so that a flush visits only these. None is lost, in this order:
    the producer appends its value, *then* looks whether its sink is in the set, and adds it if it is not; the I/O
    thread takes the sink out of the set, *then* looks at the values. So a value that is appended too late for that look
    finds its sink missing. In the same way ``wakeup_pending`` says that a wakeup is pending: the producer sets it after
    it has added its sink, and the I/O thread clears it before it looks at the set. An interrupt of the training thread
    between two of these steps takes back what was done, so that the next value announces itself; and each heartbeat
    visits all streams.
    """

    __slots__ = (
        "_queues",
        "changed",
        "deferred",
        "defers",
        "granted",
        "hastened",
        "limit",
        "patient",
        "peak_bytes",
        "ready",
        "retained",
        "taken",
        "wake_gathering",
        "wake_now",
        "wakeup_pending",
    )  # fmt: skip

    def __init__(self, limit: int, wake: Callable[[], None], wake_now: Callable[[], None]) -> None:
        self.limit, self.wake_gathering, self.wake_now = limit, wake, wake_now
        self.defers = False
        """True while the training thread evaluates queries: wakeups are sent afterwards."""
        self.deferred: tuple[Callable[[], None], ...] = ()
        """The deferred wakeups."""
        self.ready: set[ValueSink] = set()
        """The sinks with new values; added by producers, removed by the I/O thread."""
        self.changed = False
        """True if a query's state has changed; set by producers, cleared by the I/O thread before it looks."""
        self.wakeup_pending = False
        self.patient = False
        """True while values gather for longer than usual; set by the I/O thread."""
        self.hastened = 0
        """How often a producer has asked it not to; it raises this before the wakeup."""
        self.peak_bytes = 0
        self.granted = 0
        """Bytes that queues were granted since the start; `ValueQueue._ask_for_room` raises it."""
        self.taken = 0
        """Bytes of these that are free again; the I/O thread raises it."""
        self.retained = 0  # bytes that have left their queue, and that some reader of it still has to send
        self._queues: dict[ValueQueue, None] = {}

    def open(self, queue: ValueQueue) -> None:
        """Count the bytes of a queue."""
        self._queues[queue] = None

    def announce(self, sink: ValueSink) -> None:
        """Add ``sink`` to the ready set, and wake the I/O thread."""
        try:
            self.ready.add(sink)
            self.wake()
        except BaseException:  # an interrupt: the wakeup may not have been sent
            self.ready.discard(sink)
            raise

    def wake(self) -> None:
        """Wake the I/O thread, unless a wakeup is pending."""
        if not self.wakeup_pending:
            try:
                self.wakeup_pending = True
                self._send(self.wake_gathering)
            except BaseException:  # an interrupt
                self.wakeup_pending = False
                raise

    def hasten(self) -> None:
        """Wake the I/O thread if it lets values gather for long: much has gathered."""
        if self.patient:
            try:
                self.hastened += 1
                self.patient = False
                self._send(self.wake_gathering)
            except BaseException:  # an interrupt: the wakeup may not have been sent
                self.patient = True
                raise

    def wake_at_once(self) -> None:
        """Send the first value of a stream at once: its chart is still empty."""
        self._send(self.wake_now)

    def _send(self, wakeup: Callable[[], None]) -> None:
        if self.defers:  # there is no call up to the end, so no other thread and no interrupt comes between
            self.deferred = (*self.deferred, wakeup)
        else:
            wakeup()

    def settle(self) -> None:
        """Send the wakeups that were deferred."""
        deferred, self.deferred = self.deferred, ()
        try:
            for wakeup in deferred:
                wakeup()
        except BaseException:  # an interrupt
            self.wakeup_pending = False
            raise

    def collect(self) -> list[ValueSink]:
        """Take the sinks with new values out of the set, to read them. I/O thread."""
        taken: list[ValueSink] = []
        with contextlib.suppress(KeyError):  # an interrupted producer has taken one back
            for _ in range(len(self.ready)):
                taken.append(self.ready.pop())
        return taken

    def close(self, queue: ValueQueue) -> None:
        """Forget a queue and its values, and reserve no further bytes for it."""
        if queue in self._queues:
            del self._queues[queue]
            queue.closed = True
            self.taken += queue.reserved_bytes()

    def pending_bytes(self) -> int:
        """Return the pending bytes of all queues and their readers."""
        return self.retained + sum(queue.pending_bytes() for queue in list(self._queues))

    def gathered(self) -> int:
        """Return the pending bytes of the queues with new values."""
        return sum(sink.pending_bytes() for sink in list(self.ready) if isinstance(sink, ValueQueue))

    def free_bytes(self) -> int:
        """Return the bytes that no queue holds or has reserved."""
        granted = self.granted - self.taken + self.retained
        self.peak_bytes = max(self.peak_bytes, granted)
        return self.limit - granted


class ValueQueue:
    """The queue of one stream's values for the I/O thread."""

    unobserved = False  # a client reads them
    # Byte counters with one writer each are exact without a lock: their difference is pending.
    __slots__ = (
        "_granted", "_held", "_items", "_queues", "_ready", "_room", "_taken", "_taken_bytes", "capacity", "closed",
        "dropped", "inboxes", "number",
    )  # fmt: skip

    def __init__(self, queues: QueueSet, values: int) -> None:
        self._queues, self._ready, self.capacity = queues, queues.ready, values
        self.inboxes: tuple[Inbox, ...] = ()
        self.closed = False  # by the I/O thread, for good
        # The training thread's. A single value waits as a bare tuple in a list, which costs least to make and to leave
        # behind; one append is all or nothing, whatever interrupts it.
        self._items: list[Item | ValueBlock] = []
        self.number = self.dropped = 0
        self._granted = self._room = 0  # bytes granted since the start, and what is left of the last grant
        # The I/O thread's.
        self._held: list[Item | ValueBlock] = []
        self._taken = self._taken_bytes = 0

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value, or count it as dropped if there is no room."""
        room = self._room - size
        if room < 0:
            room = self._reserve(size)
            if room < 0:
                self.number = number = self.number + 1
                self.dropped += 1
                for inbox in self.inboxes:
                    inbox.items.append((number, event, time, value, size))
                return
        # From here to the end of the append Python delivers no signal: the value has a number and is there, or neither.
        self.number = number = self.number + 1
        self._room = room
        self._items.append((number, event, time, value, size))
        for inbox in self.inboxes:
            inbox.items.append((number, event, time, value, size))
        if self not in self._ready:
            self._queues.announce(self)
        if number == 1:
            self._queues.wake_at_once()

    def put_all(self, events: Sequence[int], times: Sequence[float], values: Sequence[Any], size: int) -> None:
        """Append the next values as a block, counting those without room as dropped."""
        count = len(events)
        room = self._room - count * size
        if room < 0:
            room = self._reserve(count * size, count)
            if room < 0:
                if count == 1:
                    self.put(events[0], times[0], values[0], size)
                    return
                for half in (slice(count // 2), slice(count // 2, count)):
                    self.put_all(events[half], times[half], values[half], size)
                return
        block = ValueBlock(self.number + 1, events, times, values, size)
        items = block.items() if self.inboxes else ()
        # From here to the end of the append Python delivers no signal, as in `put`.
        self.number, self._room = self.number + count, room
        self._items.append(block)
        for inbox in self.inboxes:
            inbox.items.extend(items)
        if self not in self._ready:
            self._queues.announce(self)
        if block.first == 1:
            self._queues.wake_at_once()

    def lose(self, count: int = 1) -> None:
        """Skip numbers of values that will never exist, and count them as dropped."""
        self.number += count
        self.dropped += count
        self.notify()

    def notify(self) -> None:
        """Wake the I/O thread: the state of the query has changed."""
        self._queues.changed = True
        self._queues.announce(self)

    def _reserve(self, size: int, count: int = 1) -> int:
        """Reserve bytes; return those left after ``count`` values, below 0 without room."""
        left, room, queues = self.capacity - len(self), self._room, self._queues
        free = queues.free_bytes() + room
        held = self.pending_bytes()
        if held >= min(URGENT_BYTES, free // 4) or 4 * left < 3 * self.capacity:
            queues.hasten()
        if left < count or free < size or (held and held + size > MAX_FREE_SHARE_PER_QUEUE * free):
            return -1
        grant = max(size, min(RESERVATION_BYTES, free // 2, left * MIN_VALUE_BYTES // 2))  # half: see `hasten` above
        more, rest = grant - room, grant - size
        # From here on there is no call and no jump back, so no other thread and no interrupt comes between: what is
        # granted is in both sums, and nothing is granted once `QueueSet.close` has settled the account.
        if self.closed:
            return -1
        self._granted += more
        queues.granted += more
        return rest

    # ------------------------------------------------------------ the I/O thread's end

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next values without removing them: see `ValueSource.peek`."""
        if not self._held:
            self._held = self._items[:MAX_VALUES_PER_TRANSFER]
            del self._items[: len(self._held)]
        return leading(self._held, count, size)

    def take(self, columns: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        held: list[Any] = self._held
        left = len(columns.numbers)
        self._taken += left
        if type(held[0]) is not ValueBlock:
            del held[:left]
        else:
            whole = 0
            while left and left >= len(block := held[whole]):
                whole, left = whole + 1, left - len(block)
            if left:
                held[whole] = held[whole].part(left, len(held[whole]))
            del held[:whole]
        self._taken_bytes += columns.nbytes
        if not self.closed:
            self._queues.taken += columns.nbytes

    # ------------------------------------------------------------ from either thread

    def reserved_bytes(self) -> int:
        """Return the bytes that are pending or reserved."""
        return self._granted - self._taken_bytes

    def pending_bytes(self) -> int:
        """Return the pending bytes."""
        return self._granted - self._room - self._taken_bytes

    def __len__(self) -> int:
        dropped = self.dropped  # looked at first: the training thread raises it last
        return self.number - dropped - self._taken
