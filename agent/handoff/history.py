"""History of a declared stream: its newest values, numbered, for many readers.

Guarantees: `put` never waits for a reader and never raises; a reader knows from the numbers exactly what was
overwritten before. All buffers of an agent together stay within their bytes: one that holds more than its share
gives up its oldest values. Assumes one producer at a time for each buffer, and that all readers are on one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, Item, ValueBatch, leading
from looptap.agent.handoff.value_queue import Inbox, QueueSet, ValueQueue

ITEM_OVERHEAD_BYTES = 192
"""Overhead of a stored value: the tuple, its number, event and time, its slot."""


class History:
    """State shared by an agent's history buffers; bounds bytes of each and of all."""

    __slots__ = ("buffers", "each", "held_bytes", "limit", "lock", "peak_bytes", "queues")

    def __init__(self, queues: QueueSet, limit: int, each: int) -> None:
        self.queues, self.limit, self.each = queues, limit, each
        self.lock = threading.RLock()  # readers never take it
        self.buffers: tuple[HistoryBuffer, ...] = ()
        self.held_bytes = self.peak_bytes = 0

    def open(self, values: int, after: int = 0) -> HistoryBuffer:
        """Return a new buffer of at most ``values`` values, numbered above ``after``."""
        buffer = HistoryBuffer(self, max(1, min(values, self.each // (MIN_VALUE_BYTES + ITEM_OVERHEAD_BYTES))), after)
        with self.lock:
            self.buffers = (*self.buffers, buffer)
        return buffer

    def close(self, buffer: HistoryBuffer) -> None:
        """Forget a buffer without a producer, and its values."""
        with self.lock:
            self.buffers = tuple(other for other in self.buffers if other is not buffer)
            self.held_bytes -= buffer.held
            buffer.held = 0

    def shrink(self, buffer: HistoryBuffer) -> None:
        """Discard the oldest values until all buffers are within their bounds."""
        while buffer.held > self.each:
            buffer.forget()
        while self.held_bytes > self.limit:
            over_its_share = buffer.held * len(self.buffers) >= self.limit
            largest = buffer if over_its_share else max(self.buffers, key=lambda other: other.held)
            largest.forget()
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)


class HistoryBuffer:
    """The newest values of one stream; they wake the I/O thread only for a reader."""

    __slots__ = ("_history", "_made", "capacity", "first", "held", "inboxes", "number", "readers", "slots")

    def __init__(self, history: History, capacity: int, after: int) -> None:
        self._history, self.capacity = history, capacity
        self.slots: list[Item | None] = [None] * capacity
        self._made = after  # values so far; `number` follows once the value is in its place
        self.number = after
        """The number of the newest value."""
        self.first = after + 1
        """The number of the oldest held value."""
        self.held = 0
        """Bytes held."""
        self.readers = 0
        self.inboxes: tuple[Inbox, ...] = ()

    @property
    def unobserved(self) -> bool:
        """True if there is no reader, neither of these values nor of those made of them."""
        return not self.readers and all([inbox.sink.unobserved for inbox in self.inboxes])

    # ------------------------------------------------------------ the producer's end

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value in place of the oldest one. Loop thread."""
        history, capacity = self._history, self.capacity
        with history.lock:
            self._made = number = self._made + 1
            place, growth = number % capacity, size + ITEM_OVERHEAD_BYTES
            if number - self.first >= capacity:
                self.first += 1
                if (old := self.slots[place]) is not None:
                    growth -= old[4] + ITEM_OVERHEAD_BYTES
            self.slots[place] = (number, event, time, value, size)
            self.number = number  # up to here Python delivers no signal: the value is there as a whole, or not at all
            self.held += growth
            history.held_bytes += growth
            if self.held > history.each or history.held_bytes > history.peak_bytes:
                history.shrink(self)
        for inbox in self.inboxes:
            inbox.items.append((number, event, time, value, size))
        if self.readers:
            self._wake_readers(number)

    def put_all(self, events: Sequence[int], times: Sequence[float], values: Sequence[Any], size: int) -> None:
        """Append the next values in place of the oldest ones. Loop thread."""
        count, history, slots = len(values), self._history, self.slots
        if count > self.capacity:
            for one in zip(events, times, values, strict=True):
                self.put(*one, size)
            return
        with history.lock:
            first = self._made + 1
            items = list(zip(range(first, first + count), events, times, values, repeat(size, count), strict=True))
            start = first % self.capacity
            end = min(start + count, self.capacity)
            rest = count - (end - start)
            growth = count * (size + ITEM_OVERHEAD_BYTES)
            growth -= sum([old[4] + ITEM_OVERHEAD_BYTES for old in slots[start:end] + slots[:rest] if old is not None])
            oldest = max(self.first, first + count - self.capacity)
            self._made += count  # from here to the last of these steps Python delivers no signal
            slots[start:end] = items[: end - start]
            slots[:rest] = items[end - start :]
            self.first = oldest
            self.number = self._made
            self.held += growth
            history.held_bytes += growth
            if self.held > history.each or history.held_bytes > history.peak_bytes:
                history.shrink(self)
        for inbox in self.inboxes:
            inbox.items.extend(items)
        if self.readers:
            self._wake_readers(first)

    def lose(self, count: int = 1) -> None:
        """Skip numbers of values that will never exist; readers see a gap."""
        for _ in range(count):
            with self._history.lock:
                self._made = number = self._made + 1
                if number - self.first >= self.capacity:
                    self.forget()
                self.slots[number % self.capacity] = None
                self.number = number
        if self.readers:
            self._wake_readers(self.number)

    def notify(self) -> None:
        """Wake the I/O thread, even without readers: the query's state has changed."""
        queues = self._history.queues
        queues.changed = True
        queues.announce(self)

    def _wake_readers(self, number: int) -> None:
        queues = self._history.queues
        if self not in queues.ready:
            queues.announce(self)
        if number == 1:  # a reader may wait for the first value
            queues.wake_at_once()

    def forget(self) -> None:
        """Discard the oldest value, under the lock of the history."""
        place = self.first % self.capacity
        item, self.slots[place] = self.slots[place], None
        self.first += 1
        if item is not None:
            size = item[4] + ITEM_OVERHEAD_BYTES
            self.held -= size
            self._history.held_bytes -= size

    # ------------------------------------------------------------ the readers' end

    def read(self, after: int, count: int, upto: int) -> list[Item]:
        """Return up to ``count`` values numbered ``after`` + 1 to ``upto``, oldest first."""
        first = max(after + 1, self.first)
        last = min(first + min(count, self.capacity) - 1, self.number, upto)
        if last < first:
            return []
        start, end = first % self.capacity, last % self.capacity + 1
        found = self.slots[start:end] if start < end else self.slots[start:] + self.slots[:end]
        # Meanwhile the oldest of them may have been given up, and newer ones be in their place.
        return [item for item in found if item is not None and first <= item[0] <= last]

    def __len__(self) -> int:
        return self.number + 1 - self.first


class Cursor:
    """One reader of a history, with its own position; a `ValueSource`.

    An ``above`` over 0 is the last number that the reader has: later values that are no longer held are lost.
    """

    def __init__(self, buffer: HistoryBuffer, above: int = 0) -> None:
        self.buffer = buffer
        held_above = max(0, buffer.first - 1)
        self.position = max(min(above, buffer.number), held_above)
        self.dropped = max(0, held_above - above) if above else 0
        self._end: int | None = None
        buffer.readers += 1

    @property
    def number(self) -> int:
        """The number of the newest value for this reader."""
        return self.buffer.number if self._end is None else self._end

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next values without removing them: see `ValueSource.peek`."""
        upto = self.number
        if self.position >= upto:
            return None
        items = self.buffer.read(self.position, count, upto)
        while not items and self.position < upto:  # overtaken while he read, or none of them was ever there
            self._skip(min(upto, max(self.position + count, self.buffer.first - 1)))
            items = self.buffer.read(self.position, count, upto)
        if items:
            self._skip(items[0][0] - 1)
        return leading(items, count, size)

    def take(self, columns: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        self.position = columns.numbers[-1]

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        self._end = self.position if at_once else self.buffer.number

    def leave(self) -> None:
        """Stop being a reader."""
        self.buffer.readers -= 1

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost."""
        return self.position

    def _skip(self, number: int) -> None:
        self.dropped += number - self.position
        self.position = number

    def __len__(self) -> int:
        return max(0, self.number - self.position)


class HandedOverCursor:
    """The source of a client whose query became a declared stream.

    It yields the rest of the query's queue, with numbers above ``base``, then the history.
    """

    def __init__(self, queues: QueueSet, queue: ValueQueue, base: int, reader: Cursor) -> None:
        self.reader = reader
        self._queues, self._queue, self._base = queues, queue, base
        self._lost = queue.dropped
        self._rest = True  # whether the queue holds some

    @property
    def number(self) -> int:
        """The number of the newest value."""
        return self.reader.number

    @property
    def dropped(self) -> int:
        """The number of values that queue and history have lost."""
        return self._lost + self.reader.dropped

    @property
    def reached(self) -> int:
        """The number up to which all was taken or lost; 0 while the queue holds values."""
        return 0 if self._rest else self.reader.position

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next values without removing them: see `ValueSource.peek`."""
        columns = self._queue.peek(count, size) if self._rest else None
        if columns is None:
            if self._rest:
                self._rest = False
                self._queues.close(self._queue)
            return self.reader.peek(count, size)
        first = columns.numbers[0] + self._base
        return columns._replace(numbers=range(first, first + len(columns.numbers)))

    def take(self, columns: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        if self._rest:
            self._queue.take(columns)
        else:
            self.reader.take(columns)

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        self.reader.stop(at_once=at_once)

    def leave(self) -> None:
        """Stop being a reader."""
        self._queues.close(self._queue)
        self.reader.leave()

    def __len__(self) -> int:
        return len(self._queue) + len(self.reader)
