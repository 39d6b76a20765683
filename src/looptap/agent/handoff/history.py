"""History of a declared stream: its newest values, numbered, for many readers.

Single values are tuples, many numbers at once a block of columns, which takes a fifth of their memory.

Guarantees: `put` never waits for a reader and never raises; a reader knows from the numbers exactly what was
overwritten before. All buffers of an agent together stay within their bytes: one that holds more than its share
gives up its oldest values. Assumes one producer at a time for each buffer, and that all readers are on one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

from looptap.agent.handoff.value_batch import MIN_VALUE_BYTES, Item, ValueBatch, ValueBlock, leading
from looptap.agent.handoff.value_ring import Inbox, QueueSet
from looptap.streams.columns.value_columns import as_columns

ITEM_OVERHEAD_BYTES = 192
"""Overhead of a stored value: the tuple, its number, event and time, its slot."""
MIN_BLOCK_VALUES = 16
"""Fewer values are held one by one, which takes less memory than so small a block."""
BLOCK_OVERHEAD_BYTES, COLUMN_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES = 768, 512, 24
"""Overhead of a block of columns, of each of its columns, and of each value: its event, its time, its slot."""
_MIN_BLOCKS = 8  # a block takes at most this part of the bytes of a history
MAX_SHARED_BATCHES, MAX_SHARED_BATCH_BYTES = 2, 1_048_576
"""Batches that one reader was given and that are kept for the others, and the bytes of the largest."""
MAX_OLDEST_VALUES, MAX_OLDEST_BYTES = 4096, 1_048_576
"""Values, and their bytes, that stay with a new reader of a full history until it has taken them."""


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

    __slots__ = (
        "_announced", "_given", "_made", "capacity", "first", "held", "history", "inboxes", "number", "readers",
        "slots",
    )  # fmt: skip

    def __init__(self, history: History, capacity: int, after: int) -> None:
        self.history, self.capacity = history, capacity
        self.slots: list[Item | ValueBlock | None] = [None] * capacity  # a block is in the slot of each of its values
        self._made = after  # values so far; `number` follows once the value is in its place
        self.number = after
        """The number of the newest value."""
        self.first = after + 1
        """The number of the oldest held value."""
        self.held = 0
        """Bytes held."""
        self.readers = 0
        self._announced = after + 1  # the first value that the readers may not have
        self._given: deque[ValueBatch] = deque(maxlen=MAX_SHARED_BATCHES)  # the newest that a reader was given
        self.inboxes: tuple[Inbox, ...] = ()

    @property
    def unobserved(self) -> bool:
        """True if there is no reader, neither of these values nor of those made of them."""
        return not self.readers and all([inbox.sink.unobserved for inbox in self.inboxes])

    # ------------------------------------------------------------ the producer's end

    def put(self, event: int, time: float, value: Any, size: int) -> None:
        """Append the next value in place of the oldest one. Loop thread."""
        history, capacity = self.history, self.capacity
        with history.lock:
            number, growth = self._made + 1, size + ITEM_OVERHEAD_BYTES
            place, full = number % capacity, number - self.first >= capacity
            if full and (old := self.slots[place]) is not None:
                growth -= _item_bytes(old) if isinstance(old, tuple) else self._freed(self.first, self.first)
            self._made = number  # from here to the last of these steps Python delivers no signal
            self.first += full
            self.slots[place] = (number, event, time, value, size)
            self.number = number  # the value is there as a whole, or not at all
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
        count = len(values)
        if count > self.capacity:
            for one in zip(events, times, values, strict=True):
                self.put(*one, size)
            return
        columns = as_columns(values) if count >= MIN_BLOCK_VALUES else None
        if columns is not None and block_bytes(columns) > self.history.each // _MIN_BLOCKS:
            for half in (slice(count // 2), slice(count // 2, count)):
                self.put_all(events[half], times[half], columns[half], size)
            return
        with self.history.lock:
            first = self._made + 1
            if columns is None:
                numbers = range(first, first + count)
                items: list[Any] = list(zip(numbers, events, times, values, repeat(size, count), strict=True))
                self._replace(items, count * (size + ITEM_OVERHEAD_BYTES))
            else:
                block = ValueBlock(first, events, times, columns, size)
                self._replace([block] * count, block_bytes(columns))
                items = block.items() if self.inboxes else []
        for inbox in self.inboxes:
            inbox.items.extend(items)
        if self.readers:
            self._wake_readers(first)

    def _replace(self, entries: list[Any], growth: int) -> None:
        """Put the next values in the place of the oldest ones, under the lock."""
        history, slots, count = self.history, self.slots, len(entries)
        first = self._made + 1
        start = first % self.capacity
        end = min(start + count, self.capacity)
        rest = count - (end - start)
        oldest = max(self.first, first + count - self.capacity)
        growth -= self._freed(self.first, oldest - 1)
        self._made += count  # from here to the last of these steps Python delivers no signal
        slots[start:end] = entries[: end - start]
        slots[:rest] = entries[end - start :]
        self.first = oldest
        self.number = self._made
        self.held += growth
        history.held_bytes += growth
        if self.held > history.each or history.held_bytes > history.peak_bytes:
            history.shrink(self)

    def _freed(self, first: int, last: int) -> int:
        """Return the bytes that are free once these numbers are gone.

        A block is freed with the last of its values.
        """
        freed, number = 0, first
        while number <= last:
            entry = self.slots[number % self.capacity]
            if isinstance(entry, ValueBlock):
                number = entry.first + len(entry)
                freed += block_bytes(entry.values) if number - 1 <= last else 0
            else:
                number += 1
                freed += _item_bytes(entry) if isinstance(entry, tuple) else 0
        return freed

    def lose(self, count: int = 1) -> None:
        """Skip numbers of values that will never exist; readers see a gap."""
        for _ in range(count):
            with self.history.lock:
                number = self._made + 1
                full = number - self.first >= self.capacity
                freed = self._freed(self.first, self.first) if full else 0
                self._made = number
                self.first += full
                self.slots[number % self.capacity] = None
                self.number = number
                self.held -= freed
                self.history.held_bytes -= freed
        if self.readers:
            self._wake_readers(self.number)

    def notify(self) -> None:
        """Wake the I/O thread, even without readers: the query's state has changed."""
        queues = self.history.queues
        queues.changed = True
        queues.announce(self)

    def _wake_readers(self, number: int) -> None:
        queues = self.history.queues
        if self not in queues.ready:
            self._announced = number
            queues.announce(self)
        elif queues.patient and self.number - self._announced >= self._announced - self.first:  # half of what is held
            queues.hasten()
        if number == 1:  # a reader may wait for the first value
            queues.wake_at_once()

    def forget(self) -> None:
        """Discard the oldest value, or block of them, under the lock of the history."""
        entry = self.slots[self.first % self.capacity]
        last = entry.first + len(entry) - 1 if type(entry) is ValueBlock else self.first
        freed = self._freed(self.first, last)
        for number in range(self.first, last + 1):
            self.slots[number % self.capacity] = None
        self.first = last + 1
        self.held -= freed
        self.history.held_bytes -= freed

    # ------------------------------------------------------------ the readers' end

    def read(self, after: int, count: int, upto: int) -> list[Item]:
        """Return up to ``count`` values numbered ``after`` + 1 to ``upto``, oldest first."""
        found = self.entries(after, count, upto)
        return [*chain.from_iterable([one] if isinstance(one, tuple) else one.items() for one in found)]

    def entries(self, after: int, count: int, upto: int) -> list[Item | ValueBlock]:
        """Return the same values as `read`, those of a block together."""
        first = max(after + 1, self.first)
        last = min(first + min(count, self.capacity) - 1, self.number, upto)
        if last < first:
            return []
        start, end = first % self.capacity, last % self.capacity + 1
        found = self.slots[start:end] if start < end else self.slots[start:] + self.slots[:end]
        # Meanwhile the oldest of them may have been given up, and newer ones be in their place.
        if ValueBlock in set(map(type, found)):
            return list(_collapsed(found, first, last))
        return [item for item in found if isinstance(item, tuple) and first <= item[0] <= last]

    def given(self, after: int) -> ValueBatch | None:
        """Return the values after number ``after`` that another reader was given.

        So readers at the same place get the same batch, which is packed once. None if there is no such batch.
        """
        for batch in self._given:
            if (start := after + 1 - batch.numbers[0]) in range(len(batch.numbers)):
                return batch.part(start, len(batch.numbers)) if start else batch
        return None

    def give(self, batch: ValueBatch | None) -> ValueBatch | None:
        """Return a batch for one reader, and keep it for the others if it is small."""
        if self.readers < 2:
            self._given.clear()
        elif batch is not None and batch.nbytes <= MAX_SHARED_BATCH_BYTES:
            self._given.append(batch)
        return batch

    def __len__(self) -> int:
        return self.number + 1 - self.first


class Cursor:
    """One reader of a history, with its own position; a `ValueSource`.

    An ``above`` over 0 is the last number that the reader has: later values that are no longer held are lost.
    """

    base = 0  # its numbers are the stream's
    shared = True  # the query is the job's

    def __init__(self, buffer: HistoryBuffer, above: int = 0) -> None:
        self.buffer = buffer
        held_above = max(0, buffer.first - 1)
        self.position = max(min(above, buffer.number), held_above)
        self.dropped = max(0, held_above - above) if above else 0
        self._end: int | None = None
        self._oldest: list[Item | ValueBlock] = []  # values to come that the history may give up meanwhile
        self._oldest_bytes = 0
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
        given = self.buffer.given(self.position)
        if given is not None and given.numbers[-1] <= upto:
            return given
        items = self._oldest or self.buffer.entries(self.position, count, upto)
        while not items and self.position < upto:  # overtaken while he read, or none of them was ever there
            self._skip(min(upto, max(self.position + count, self.buffer.first - 1)))
            items = self.buffer.entries(self.position, count, upto)
        if items:
            head = items[0]
            self._skip((head[0] if isinstance(head, tuple) else head.first) - 1)
        return self.buffer.give(leading(items, count, size))

    def take(self, columns: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        self.position = columns.numbers[-1]
        if self._oldest:
            self._keep([part for one in self._oldest if (part := _above(one, self.position)) is not None])

    def hold_oldest(self) -> None:
        """Keep the oldest values if new ones are about to take their place.

        A reader of a fast loop would else have lost the first ones before it could take them.
        """
        buffer = self.buffer
        if buffer.first > 1:
            found = buffer.entries(self.position, MAX_OLDEST_VALUES, buffer.number)
            sizes = accumulate(map(_entry_bytes, found))
            self._keep([one for one, size in zip(found, sizes, strict=True) if size <= MAX_OLDEST_BYTES])

    def _keep(self, oldest: list[Item | ValueBlock]) -> None:
        size = sum(map(_entry_bytes, oldest))
        self.buffer.history.queues.retained += size - self._oldest_bytes
        self._oldest, self._oldest_bytes = oldest, size

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        self._end = self.position if at_once else self.buffer.number

    def leave(self) -> bool:
        """Stop being a reader; return True if none is left."""
        self._keep([])
        self.buffer.readers -= 1
        return not self.buffer.readers

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost."""
        return self.position

    def _skip(self, number: int) -> None:
        self.dropped += number - self.position
        self.position = number

    def __len__(self) -> int:
        return max(0, self.number - self.position)


def _item_bytes(item: Item) -> int:
    return item[4] + ITEM_OVERHEAD_BYTES


def _entry_bytes(entry: Item | ValueBlock) -> int:
    return _item_bytes(entry) if isinstance(entry, tuple) else block_bytes(entry.values)


def _above(entry: Item | ValueBlock, number: int) -> Item | ValueBlock | None:
    """Return what comes after ``number`` of a value or block; None if nothing does."""
    if isinstance(entry, tuple):
        return entry if entry[0] > number else None
    start = max(0, number + 1 - entry.first)
    return entry.part(start, len(entry)) if start < len(entry) else None


def block_bytes(columns: Any) -> int:
    """Return the bytes that a block of columns holds."""
    count = len(columns.columns)
    return int(
        BLOCK_OVERHEAD_BYTES + COLUMN_OVERHEAD_BYTES * count + columns.nbytes + ROW_OVERHEAD_BYTES * len(columns)
    )


def _collapsed(found: Sequence[Item | ValueBlock | None], first: int, last: int) -> Iterator[Item | ValueBlock]:
    """Yield each value and each block once, of the slots of the numbers ``first`` on."""
    number = first
    while number <= last:
        entry = found[number - first]
        if type(entry) is ValueBlock and entry.first <= number < entry.first + len(entry):
            end = min(entry.first + len(entry), last + 1)
            whole = number == entry.first and end == entry.first + len(entry)
            yield entry if whole else entry.part(number - entry.first, end - entry.first)
            number = end
        else:
            if isinstance(entry, tuple) and entry[0] == number:
                yield entry
            number += 1
