"""One query's values for several clients: taken from its queue once for all.

Guarantees: every reader gets the same batches in the same order. One that lags loses its newest values, as it would
with a query of its own; no other reader sees that. What readers hold counts once against the bytes of the agent.
All of it is on the I/O thread; the producer knows the `ValueQueue` alone.
"""

from __future__ import annotations

import sys
from collections import deque

from looptap.agent.handoff.value_batch import ValueBatch
from looptap.agent.handoff.value_ring import MAX_FREE_SHARE_PER_QUEUE, QueueSet, ValueQueue, ValueSource


class _HeldBatch:
    """A batch with the number of readers that still have to send it."""

    __slots__ = ("batch", "nbytes", "readers")

    def __init__(self, batch: ValueBatch) -> None:
        self.batch, self.nbytes, self.readers = batch, batch.nbytes, 0


class FanOut:
    """The readers of one queue."""

    def __init__(self, queues: QueueSet, queue: ValueQueue) -> None:
        self.queue, self.queues = queue, queues
        self.readers: list[QueueReader] = []
        self.taken = queue.number
        """The number of the newest value that left the queue."""

    def open(self, after: int = 0) -> QueueReader:
        """Return a reader from now on, whose client numbers the values above ``after``."""
        reader = QueueReader(self, after)
        self.readers.append(reader)
        return reader

    def pull(self, count: int, size: int) -> bool:
        """Give the next values to each reader; return whether there were any."""
        queue, queues = self.queue, self.queues
        batch = queue.peek(count, size)
        if batch is None:
            return False
        held = _HeldBatch(batch)
        queues.retained += held.nbytes  # before they leave the queue: they are in both sums rather than in none
        queue.take(batch)
        self.taken = batch.numbers[-1]
        for reader in self.readers:
            reader.offer(held)
        if not held.readers:
            queues.retained -= held.nbytes
        return True

    def close(self, reader: QueueReader) -> None:
        """Forget a reader; without another one the queue is closed."""
        if reader in self.readers:
            self.readers.remove(reader)
            if not self.readers:
                self.queues.close(self.queue)


class QueueReader:
    """One client's position in the values of a query; a `ValueSource`."""

    def __init__(self, fan_out: FanOut, after: int) -> None:
        self.fan_out = fan_out
        queue = fan_out.queue
        self.start = queue.number
        self.base = after - self.start
        self._held: deque[_HeldBatch] = deque()
        self._values = self._nbytes = self._taken = self._lost = 0
        self._lost_before = queue.dropped
        self._position = self.start
        self._end, self._dropped_at_end = sys.maxsize, 0

    @property
    def shared(self) -> bool:
        """True if other clients read the same query."""
        return len(self.fan_out.readers) > 1

    @property
    def number(self) -> int:
        """The number of the newest value, as its client counts."""
        return self.base + min(self.fan_out.queue.number, self._end)

    @property
    def dropped(self) -> int:
        """The number of values that this client has lost."""
        if self._end == sys.maxsize:
            return self.fan_out.queue.dropped - self._lost_before + self._lost
        return self._dropped_at_end if len(self) else self._end - self.start - self._taken

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost, as its client counts."""
        settled = self._taken + self.dropped  # before the number, which the training thread raises first
        number = self.number
        return number if settled == number - self.base - self.start else self.base + self._position

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next values without removing them: see `ValueSource.peek`.

        There are more than ``count`` of them where another reader has asked for more.
        """
        while not self._held and self.fan_out.taken < self._end:
            if not self.fan_out.pull(count, size):
                return None
        return self._held[0].batch if self._held else None

    def take(self, batch: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        count = len(batch.numbers)
        self._position = batch.numbers[-1]
        self._taken += count
        self._values -= count
        self._release(self._held.popleft())

    def offer(self, held: _HeldBatch) -> None:
        """Append those of a batch for which there is room, and count the others as lost."""
        numbers, queues = held.batch.numbers, self.fan_out.queues
        first, last = max(numbers[0], self.start + 1), min(numbers[-1], self._end)
        if first > last:
            return
        fits = min(last, first + self.fan_out.queue.capacity - self._values - 1)
        if self._held and self._nbytes + held.nbytes > MAX_FREE_SHARE_PER_QUEUE * queues.free_bytes():
            fits = first - 1
        self._lost += last - max(fits, first - 1)
        if fits < first:
            return
        if fits - first + 1 < len(numbers):
            held = _HeldBatch(held.batch.part(first - numbers[0], fits - numbers[0] + 1))
            queues.retained += held.nbytes
        held.readers += 1
        self._held.append(held)
        self._values += fits - first + 1
        self._nbytes += held.nbytes

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        if self._end == sys.maxsize:
            self._dropped_at_end = self.dropped
            self._end = self._position if at_once else self.fan_out.queue.number
            if at_once:
                self._forget()

    def leave(self) -> bool:
        """Stop being a reader; return True if none is left."""
        self._forget()
        self.fan_out.close(self)
        return not self.fan_out.readers

    def _forget(self) -> None:
        """Give up the values that it holds."""
        while self._held:
            self._release(self._held.popleft())
        self._values = 0

    def _release(self, held: _HeldBatch) -> None:
        self._nbytes -= held.nbytes
        held.readers -= 1
        if not held.readers:
            self.fan_out.queues.retained -= held.nbytes

    def __len__(self) -> int:
        waiting = min(len(self.fan_out.queue), max(0, self._end - self.fan_out.taken))
        return self._values + waiting


class ChainedSource:
    """The values of ``first``, which gets no more, and then those of ``then``.

    So a client reads on where its query has become a declared stream, or has parted from those that shared it.
    """

    def __init__(self, first: ValueSource, then: ValueSource) -> None:
        first.stop()
        self.then = then
        self._first: ValueSource | None = first
        self._lost = 0

    @property
    def _now(self) -> ValueSource:
        return self.then if self._first is None else self._first

    @property
    def base(self) -> int:
        """What the client's numbers are above those of the next batch."""
        return self._now.base

    @property
    def number(self) -> int:
        """The number of the newest value, as its client counts."""
        return self.then.number

    @property
    def dropped(self) -> int:
        """The number of values that both have lost."""
        return (self._lost if self._first is None else self._first.dropped) + self.then.dropped

    @property
    def reached(self) -> int:
        """The number up to which every value was taken, or lost, as its client counts."""
        return self._now.reached

    @property
    def shared(self) -> bool:
        """True if the query that it continues with is not this client's alone."""
        return self.then.shared

    def peek(self, count: int, size: int) -> ValueBatch | None:
        """Return the next values without removing them: see `ValueSource.peek`."""
        if self._first is not None:
            batch = self._first.peek(count, size)
            if batch is not None:
                return batch
            self._lost = self._first.dropped
            self._first.leave()
            self._first = None
        return self.then.peek(count, size)

    def take(self, batch: ValueBatch) -> None:
        """Remove the values that `peek` returned."""
        self._now.take(batch)

    def stop(self, *, at_once: bool = False) -> None:
        """End after the newest value; with ``at_once``, at the present position."""
        self.then.stop(at_once=at_once)

    def leave(self) -> bool:
        """Stop being a reader; return True if none is left."""
        if self._first is not None:
            self._first.leave()
        return self.then.leave()

    def __len__(self) -> int:
        return (0 if self._first is None else len(self._first)) + len(self.then)
