"""What is under every stream: the buffer, the numbers, who waits and who is called.

One lock guards it all. It is never held while somebody else's code runs; who feeds never waits for a reader.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from looptap.streams.stream.buffer import Batch, Gap, RunSeam, StreamBuffer
from looptap.streams.values.rows import rows

LIVE, ENDED, FAILED = "live", "ended", "failed"
"""The states of a stream."""

_MAX_ITEMS_PER_CALLBACK_TURN = 256  # items that a callback gets before the callbacks of other streams have their turn
_INTERRUPT_CHECK_SECONDS = (
    0.5  # seconds after which a waiting thread looks up, so that Ctrl-C works where locks block signals
)
_MAX_GAPS = 1000


class Subscriber:
    """Somebody who gets every item, and his place in the stream."""

    __slots__ = ("active", "missed", "on_batch", "on_end", "position")

    def __init__(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], position: int) -> None:
        self.on_batch, self.on_end, self.position = on_batch, on_end, position
        self.active, self.missed = True, 0


class Feed:
    """Numbered items come in by `_push` until `_finish`; each reader and subscriber has his own place.

    For subclasses: a stream is a `Feed` with the interface that users see.
    """

    def __init__(self, buffer: int, buffer_bytes: int, fields: Sequence[str] | None) -> None:
        for name, bound in (("buffer", buffer), ("buffer_bytes", buffer_bytes)):
            if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
                raise ValueError(f"{name}={bound!r}: it is a whole number, 1 or more.")
        self.state, self.reason = LIVE, ""
        self.traceback = ""
        """The text of the first error of the query, empty if there was none."""
        self._buffer = StreamBuffer(buffer, buffer_bytes)
        self._changed = threading.Condition(threading.Lock())
        self._arrived = 0  # values, errors not counted
        self._errors = 0
        self._latest: Any = None
        self._expected = 1
        self._missing = 0
        self._gaps: deque[Gap] = deque(maxlen=_MAX_GAPS)
        self._seams: deque[RunSeam] = deque(maxlen=_MAX_GAPS)
        self._subscribers: list[Subscriber] = []
        self._pumping = self._pump_again = False
        self._wakes: dict[Callable[[], None], None] = {}
        self._fields: tuple[str, ...] | None = None
        self._rows: Callable[[list[Any]], list[Any]] | None = None
        self._set_fields(fields)

    # ------------------------------------------------------------ what comes in

    def publish(self, batch: Batch) -> None:
        """Take in a batch with numbers above those that came before; a jump is a gap, an overlap is cut."""
        with self._changed:
            if self.state != LIVE:
                return
            if batch.first < self._expected:
                batch = batch.part(self._expected - batch.first)
            if not batch.values:
                return
            self._miss(batch.first - self._expected)
            self._expected = batch.first + len(batch.values)
            good = batch.good()
            self._buffer.append(batch)
            self._arrived += len(good)
            if good:
                self._latest = good[-1] if self._rows is None else self._rows(good[-1:])[0]
            if len(good) < len(batch.values):
                self._failed_items(batch)
            wakes = self._notify()
        for wake in wakes:
            wake()
        if self._subscribers:
            self._schedule()

    def _finish(self, state: str, reason: str = "", last: int = 0) -> None:
        """End the stream for good; items up to number ``last`` that are not here are missing."""
        with self._changed:
            if self.state != LIVE:
                return
            if last >= self._expected:
                self._miss(last + 1 - self._expected)
                self._expected = last + 1
            self.reason, self.state = reason, state
            wakes = self._notify()
        for wake in wakes:
            wake()
        if self._subscribers:
            self._schedule()

    def _notify(self) -> list[Callable[[], None]]:
        self._changed.notify_all()
        wakes, self._wakes = list(self._wakes), {}
        return wakes

    def _miss(self, missing: int) -> None:
        if missing > 0:
            self._gaps.append(Gap(self._expected - 1, missing))
            self._missing += missing

    def _go_on_after(self, number: int, *, unknown: bool) -> None:
        """What has not come up to this number never will; ``unknown``: nor do numbers tell what came to be after it."""
        with self._changed:
            self._miss(number + 1 - self._expected)
            self._expected = max(self._expected, number + 1)
            if unknown:
                self._gaps.append(Gap(self._expected - 1, None))

    def _failed_items(self, batch: Batch) -> None:
        failed = [record.error for record in batch.records() if record.error is not None]
        self._errors += len(failed)
        self.traceback = self.traceback or failed[0]

    def _set_fields(self, fields: Sequence[str] | None) -> None:
        """Name the elements of rows, also of those that are here."""
        if not fields:
            return
        with self._changed:
            self._fields = tuple(fields)
            self._rows = rows(self._fields)
            self._buffer.convert(self._rows)
            if self._latest is not None:
                (self._latest,) = self._rows([self._latest])

    # ------------------------------------------------------------ who waits

    def _wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, with the lock held, until it is so or the stream ends; False after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready() and self.state == LIVE:
            left = _INTERRUPT_CHECK_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, _INTERRUPT_CHECK_SECONDS))
        return True

    def _take(self, position: int, limit: int) -> tuple[list[Any], int, bool]:
        """Up to ``limit`` values from ``position`` on, the position after them, and whether that is all."""
        with self._changed:
            while True:
                batch, position = self._buffer.part(position, limit)
                if batch is None:
                    return [], position, self.state != LIVE
                if values := batch.good():
                    return values, position, False

    def _await_item(self, position: int, timeout: float | None) -> bool:
        """Wait for an item at ``position`` or the end; False if ``timeout`` seconds pass."""
        with self._changed:
            return self._wait_until(lambda: self._buffer.end > position, timeout)

    def _wake_at_item(self, position: int, wake: Callable[[], None]) -> bool:
        """Call ``wake`` once, from any thread, at the next item or the end; False if it is already there."""
        with self._changed:
            if self._buffer.end > position or self.state != LIVE:
                return False
            self._wakes[wake] = None
            return True

    def _forget_wake(self, wake: Callable[[], None]) -> None:
        with self._changed:
            self._wakes.pop(wake, None)

    # ------------------------------------------------------------ who is called

    def _schedule(self) -> None:
        """See to it that `_pump` is called until it returns False."""
        while self._pump():
            pass

    def _pump(self) -> bool:
        """Give each subscriber a slice of what he has not had; True if there is more."""
        with self._changed:
            if self._pumping:  # whoever is at it looks again
                self._pump_again = True
                return False
            self._pumping, self._pump_again = True, False
            subscribers = list(self._subscribers)
        more = False
        try:
            for subscriber in subscribers:
                more = self._serve(subscriber) or more
        finally:
            with self._changed:
                self._pumping = False
                more = more or self._pump_again
        return more

    def _serve(self, subscriber: Subscriber) -> bool:
        with self._changed:
            subscriber.missed += max(0, self._buffer.start - subscriber.position)
            batch, subscriber.position = self._buffer.part(subscriber.position, _MAX_ITEMS_PER_CALLBACK_TURN)
            over = self.state != LIVE
        if not subscriber.active:
            return False
        if batch is not None:
            subscriber.on_batch(batch)
            return True
        if over:
            self._unsubscribe(subscriber)
            subscriber.on_end()
        return False

    def _subscribe(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], replay: bool) -> Subscriber:
        with self._changed:
            subscriber = Subscriber(on_batch, on_end, 0 if replay else self._buffer.end)
            self._subscribers.append(subscriber)
        return subscriber

    def _unsubscribe(self, subscriber: Subscriber) -> None:
        with self._changed:
            subscriber.active = False
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)
