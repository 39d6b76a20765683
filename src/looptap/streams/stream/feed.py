"""`Feed`: the numbered items of one stream, its readers and subscribers.

Guarantees: every method may be called from any thread; the only lock, `Feed.changed`, is never held while a
subscriber's code runs, and `Feed.publish` never waits for a reader.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from looptap.streams.stream.attention import Attention
from looptap.streams.stream.buffer import Batch, Gap, RunSeam, StreamBuffer
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.text import last_line
from looptap.streams.values.rows import Row, rows
from looptap.streams.waiting import wait_interruptibly

_MAX_ITEMS_PER_CALLBACK_TURN = 256  # items for one callback before those of other streams run
_MAX_GAPS = 1000


class Subscriber:
    """A receiver of every item, and its position in the stream."""

    __slots__ = ("active", "missed", "on_batch", "on_end", "position")

    def __init__(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], position: int) -> None:
        self.on_batch, self.on_end, self.position = on_batch, on_end, position
        self.active, self.missed = True, 0


class Feed:
    """Numbered items, published until `finish`; readers have their own positions.

    A `Stream` owns one as `Stream.feed`. ``latest``, ``arrived`` and the other counters may be read without the lock;
    ``buffer``, ``gaps`` and ``seams`` are read while holding `changed`.
    """

    def __init__(self, buffer: int, buffer_bytes: int, fields: Sequence[str] | None = None) -> None:
        for name, bound in (("buffer", buffer), ("buffer_bytes", buffer_bytes)):
            if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
                raise ValueError(f"{name}={bound!r} must be a whole number, 1 or more.")
        self.state, self.reason = LIVE, ""
        self.traceback = ""
        """The text of the first error of the query, empty if there was none."""
        self.buffer = StreamBuffer(buffer, buffer_bytes)
        self.changed = threading.Condition(threading.Lock())
        self.arrived = 0
        """Values that have arrived, without errors."""
        self.errors = 0
        """Items that are errors."""
        self.latest: Any = None
        """The newest value, None before the first."""
        self.missing = 0
        """Items that never arrived."""
        self._expected = 1
        self.gaps: deque[Gap] = deque(maxlen=_MAX_GAPS)
        self.seams: deque[RunSeam] = deque(maxlen=_MAX_GAPS)
        self._subscribers: list[Subscriber] = []
        self.attention = Attention()
        self._pumping = self._pump_requested = False
        self.wakes: dict[Callable[[], None], None] = {}
        self.fields: tuple[str, ...] | None = None
        self._rows: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        self.set_fields(fields)

    # ------------------------------------------------------------ publishing

    def publish(self, batch: Batch) -> None:
        """Add a batch with increasing numbers; a jump is a gap, an overlap is cut off."""
        with self.changed:
            if self.state != LIVE:
                return
            if batch.first < self._expected:
                batch = batch.part(self._expected - batch.first)
            if not batch.values:
                return
            self._count_missing(batch.first - self._expected)
            self._expected = batch.first + len(batch.values)
            good = batch.good()
            self.buffer.append(batch)
            if not self.arrived and good and isinstance(good[0], Row) and self._rows is None:
                self.fields = good[0]._fields
            self.arrived += len(good)
            if good:
                self.latest = good[-1] if self._rows is None else self._rows(good[-1:])[0]
            if len(good) < len(batch.values):
                self._failed_items(batch)
            wakes = self._notify()
        for wake in wakes:
            wake()
        if self._subscribers:
            self.schedule()

    @property
    def newest(self) -> int:
        """The number of the newest item, errors and missing ones included, or 0."""
        return self._expected - 1

    def begin_after(self, number: int) -> None:
        """Expect ``number`` + 1 first; items before it do not count as missing."""
        self._expected = number + 1

    def finish(self, state: str, reason: str = "", last: int = 0) -> None:
        """End the stream for good; items up to ``last`` that have not come are missing."""
        with self.changed:
            if self.state != LIVE:
                return
            if last >= self._expected:
                self._count_missing(last + 1 - self._expected)
                self._expected = last + 1
            self.reason, self.state = reason, state
            wakes = self._notify()
        for wake in wakes:
            wake()
        if self._subscribers:
            self.schedule()

    def _notify(self) -> list[Callable[[], None]]:
        self.changed.notify_all()
        wakes, self.wakes = list(self.wakes), {}
        return wakes

    def _count_missing(self, missing: int) -> None:
        if missing > 0:
            self.gaps.append(Gap(self._expected - 1, missing))
            self.missing += missing

    def skip_to(self, number: int, *, unknown: bool) -> None:
        """Count items up to ``number`` as missing; ``unknown`` adds a gap without size."""
        with self.changed:
            self._count_missing(number + 1 - self._expected)
            self._expected = max(self._expected, number + 1)
            if unknown:
                self.gaps.append(Gap(self._expected - 1, None))

    def _failed_items(self, batch: Batch) -> None:
        failed = [record.error for record in batch.records() if record.error is not None]
        self.errors += len(failed)
        self.traceback = self.traceback or failed[0]

    def add_seam(self, old: str, new: str, after: int | None = None) -> None:
        """Record that items above ``after`` (None: the newest) are of run ``new``."""
        with self.changed:
            self.seams.append(RunSeam(self.newest if after is None else after, old, new))

    def set_fields(self, fields: Sequence[str] | None) -> None:
        """Name the elements of rows, including those already here."""
        if not fields:
            return
        with self.changed:
            self.fields = tuple(fields)
            self._rows = rows(self.fields)
            self.buffer.convert(self._rows)
            if self.latest is not None:
                (self.latest,) = self._rows([self.latest])

    def first_error(self) -> str:
        """Return the last line of `traceback`: the message of the first error."""
        return last_line(self.traceback)

    # ------------------------------------------------------------ readers

    def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for ``ready()`` or the end, holding `changed`; False after ``timeout``."""
        over = functools.partial(self.changed.wait_for, lambda: ready() or self.state != LIVE)
        self.attention.waiting += 1
        try:
            return wait_interruptibly(over, timeout)
        finally:
            self.attention.waiting -= 1

    @property
    def patience(self) -> float:
        """The seconds for which further items may gather before they are published."""
        return self.attention.patience(bool(self.wakes or self._subscribers))

    def wait_for_end(self, timeout: float) -> bool:
        """Wait until the stream ends; False after ``timeout`` seconds."""
        with self.changed:
            return self.wait_until(lambda: False, timeout)

    def wait_for_number(self, number: int, timeout: float) -> bool:
        """Wait until item ``number`` has arrived or is missing; False after ``timeout``."""
        self.attention.wait()
        with self.changed:
            return self.wait_until(lambda: self.newest >= number, timeout)

    def part(self, position: int, limit: int) -> tuple[Batch | None, int]:
        """Return up to ``limit`` items (None at the end) and the next position."""
        self.attention.look()
        with self.changed:
            return self.buffer.part(position, limit)

    def take(self, position: int, limit: int) -> tuple[Sequence[Any], int, bool]:
        """Return up to ``limit`` values, the next position, and True at the end."""
        self.attention.look()
        with self.changed:
            while True:
                batch, position = self.buffer.part(position, limit)
                if batch is None:
                    return [], position, self.state != LIVE
                if values := batch.good():
                    return values, position, False

    def await_item(self, position: int, timeout: float | None) -> bool:
        """Wait for an item at ``position`` or the end; False after ``timeout`` seconds."""
        self.attention.wait()
        with self.changed:
            return self.wait_until(lambda: self.buffer.end > position, timeout)

    def wake_at_item(self, position: int, wake: Callable[[], None]) -> bool:
        """Call ``wake`` once, on any thread, at the next item or end; False if reached."""
        self.attention.wait()
        with self.changed:
            if self.buffer.end > position or self.state != LIVE:
                return False
            self.wakes[wake] = None
            return True

    def forget_wake(self, wake: Callable[[], None]) -> None:
        """Undo `wake_at_item`."""
        with self.changed:
            self.wakes.pop(wake, None)

    # ------------------------------------------------------------ subscribers

    @property
    def subscribed(self) -> bool:
        """True if there is a subscriber."""
        return bool(self._subscribers)

    def schedule(self) -> None:
        """Call `pump` until it returns False; a subclass may do so on another thread."""
        while self.pump():
            pass

    def pump(self) -> bool:
        """Send each subscriber a slice of its new items; return True if there is more."""
        with self.changed:
            if self._pumping:  # the pumping thread will look again
                self._pump_requested = True
                return False
            self._pumping, self._pump_requested = True, False
            subscribers = list(self._subscribers)
        more = False
        try:
            for subscriber in subscribers:
                more = self._serve(subscriber) or more
        finally:
            with self.changed:
                self._pumping = False
                more = more or self._pump_requested
        return more

    def _serve(self, subscriber: Subscriber) -> bool:
        with self.changed:
            subscriber.missed += max(0, self.buffer.start - subscriber.position)
            batch, subscriber.position = self.buffer.part(subscriber.position, _MAX_ITEMS_PER_CALLBACK_TURN)
            over = self.state != LIVE
        if not subscriber.active:
            return False
        if batch is not None:
            subscriber.on_batch(batch)
            return True
        if over:
            self.unsubscribe(subscriber)
            subscriber.on_end()
        return False

    def subscribe(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], replay: bool) -> Subscriber:
        """Call ``on_batch`` with new items (``replay``: also kept ones), then ``on_end``.

        Call `schedule` afterwards, once ready for the first call.
        """
        self.attention.wait()
        with self.changed:
            subscriber = Subscriber(on_batch, on_end, 0 if replay else self.buffer.end)
            self._subscribers.append(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop calling the subscriber."""
        with self.changed:
            subscriber.active = False
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)
