"""`Stream`: the numbered values that a query yields, live, stored or derived, behind one interface.

Guarantees: every method may be called from any thread; a gap in the numbers is recorded with its exact size;
memory is bounded; feeding a stream never waits for a reader. Callbacks run on the thread that feeds the stream
unless a subclass schedules them elsewhere, and never while the stream's lock is held.
"""

from __future__ import annotations

import threading
import time
import warnings
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from looptap.streams.buffers import Batch, Buffer, Gap, Record
from looptap.streams.errors import StreamEnded, StreamTimeout
from looptap.streams.follow import Follow, remaining
from looptap.streams.rows import rows
from looptap.streams.tables import Columns, as_array, as_frame, columns_of

if TYPE_CHECKING:
    import pandas

    from looptap.streams.derived import DerivedStream

LIVE, ENDED, FAILED = "live", "ended", "failed"
"""The states of a stream."""

BUFFER = 200_000
"""Items that a stream keeps, unless ``buffer=`` says otherwise."""
BUFFER_BYTES = 268_435_456
"""Bytes that a stream's items may take, about, unless ``buffer_bytes=`` says otherwise."""

_SLICE = 256  # items that a callback gets before the callbacks of other streams have their turn
_TICK = 0.5  # seconds after which a waiting thread looks up, so that Ctrl-C works where locks block signals
_GAPS = 1000


class Cost(NamedTuple):
    """What a query costs the run: nanoseconds of the training thread per event, and its share of the step time."""

    nanoseconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.nanoseconds / 1000:.3g} µs an event, {self.share:.2%} of the step time"


class _Subscriber:
    """Somebody who gets every item, and his place in the stream."""

    __slots__ = ("active", "missed", "on_batch", "on_end", "position")

    def __init__(self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], position: int) -> None:
        self.on_batch, self.on_end, self.position = on_batch, on_end, position
        self.active, self.missed = True, 0


class Stream:
    """Numbered values, the newest of which are kept.

    A for loop over a stream yields what is here, then waits for more until the stream ends; `values` is a list of
    what is here. ``len()`` is the length of that list. ``buffer`` bounds the items that are kept and
    ``buffer_bytes`` what they take; `forgotten` counts the items that made room for newer ones.

    >>> stream = stream_of([(1, 0.9), (2, 0.7)], fields=("step", "loss"))
    >>> stream.latest.loss
    0.7
    >>> [row.step for row in stream]
    [1, 2]
    """

    def __init__(
        self,
        name: str = "",
        *,
        text: str = "",
        on: str = "",
        fields: Sequence[str] | None = None,
        buffer: int = BUFFER,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
            raise ValueError(f"buffer={buffer!r}: it is the number of items to keep, 1 or more.")
        if isinstance(buffer_bytes, bool) or not isinstance(buffer_bytes, int) or buffer_bytes < 1:
            raise ValueError(f"buffer_bytes={buffer_bytes!r}: it is a number of bytes, 1 or more.")
        self.name, self.text, self.on = name or text, text, on
        self.state, self.reason = LIVE, ""
        self.cost = Cost()
        self.notes: list[str] = []
        self.traceback = ""
        """The text of the first error of the query, empty if there was none."""
        self.callback_error: BaseException | None = None
        """The first exception of a callback, None if there was none."""
        self._buffer = Buffer(buffer, buffer_bytes)
        self._changed = threading.Condition(threading.Lock())
        self._arrived = 0  # values, errors not counted
        self._errors = 0
        self._latest: Any = None
        self._expected = 1
        self._missing = 0
        self._gaps: deque[Gap] = deque(maxlen=_GAPS)
        self._subscribers: list[_Subscriber] = []
        self._pumping = self._pump_again = False
        self._wakes: dict[Callable[[], None], None] = {}
        self._fields: tuple[str, ...] | None = None
        self._rows: Callable[[list[Any]], list[Any]] | None = None
        self._set_fields(fields)

    # ------------------------------------------------------------ what is here

    @property
    def values(self) -> list[Any]:
        """The values that have arrived and are still kept, the oldest first."""
        with self._changed:
            return self._buffer.values()

    @property
    def records(self) -> list[Record]:
        """What is kept as records, errors included: with numbers, events, ranks and times."""
        with self._changed:
            parts = self._buffer.parts()
        return [record for part in parts for record in part.records()]

    @property
    def errors(self) -> list[Record]:
        """The records that are errors: windows whose reduction failed."""
        with self._changed:
            return self._buffer.errors()

    @property
    def latest(self) -> Any:
        """The newest value, None before the first."""
        return self._latest

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The names of the elements of a value, if the values are rows."""
        return self._fields

    @property
    def arrived(self) -> int:
        """How many values have arrived, those forgotten included."""
        return self._arrived

    @property
    def forgotten(self) -> int:
        """How many items the buffer gave up to make room for newer ones."""
        return self._buffer.start

    @property
    def dropped(self) -> int:
        """How many items never arrived."""
        return self._missing

    @property
    def gaps(self) -> list[Gap]:
        """Where items are missing and how many; the newest 1,000 gaps (`dropped` counts them all)."""
        with self._changed:
            return list(self._gaps)

    @property
    def error_count(self) -> int:
        """How many times the query failed."""
        return self._errors

    def __len__(self) -> int:
        with self._changed:
            return self._buffer.end - self._buffer.start - self._buffer.error_count()

    def __bool__(self) -> bool:
        return True  # a stream without values is still a stream

    def columns(self, after: int = 0) -> Columns:
        """The kept values whose number is above ``after``, with numbers, events, ranks and times as arrays."""
        with self._changed:
            parts = self._buffer.parts_after(after)
        return columns_of(parts)

    def to_numpy(self) -> NDArray[Any]:
        """The values as an array: numbers along one axis, rows and arrays of one shape stacked, else objects."""
        return as_array(self.values)

    def to_pandas(self) -> pandas.DataFrame:
        """The values as a DataFrame indexed by number: event, rank, time, wall and a column for each field.

        Raises ImportError if pandas is not installed.
        """
        return as_frame(self.columns(), self._fields)

    # ------------------------------------------------------------ what is to come

    def wait(self, n: int = 1, timeout: float | None = 30.0) -> list[Any]:
        """Wait until ``n`` values have arrived since the start, and return `values`.

        Raises StreamTimeout after ``timeout`` seconds (None: no limit), StreamEnded if the stream ends with fewer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._arrived < n and self.state == LIVE:
                left = remaining(deadline)
                if left is not None and left <= 0:
                    break
                self._changed.wait(_TICK if left is None else min(left, _TICK))
            arrived, state = self._arrived, self.state
            values = self._buffer.values() if arrived >= n else []
        if arrived >= n:
            return values
        if state != LIVE:
            raise StreamEnded(
                f"{self.title} {state} with {arrived} of {n} values: {self.reason or 'no reason'}"
            )
        raise StreamTimeout(
            f"{arrived} of {n} values of {self.title} arrived within {timeout:g} s.{self._outlook()}"
        )

    def follow(self, timeout: float | None = None, *, history: bool = True) -> Follow:
        """Iterate over the values, with ``for`` or ``async for``; what is kept comes first unless not ``history``.

        Raises StreamTimeout if no value comes for ``timeout`` seconds (None: wait until the stream ends).
        A reader that falls behind by more than the buffer continues with the oldest value that is kept.
        """
        return Follow(self, 0 if history else self._buffer.end, timeout)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.follow())

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self.follow())

    def on_value(self, callback: Callable[[Any], object], *, replay: bool = False) -> Callable[[], None]:
        """Call ``callback(value)`` for each value from now on, with ``replay`` also for those kept.

        Returns a function that ends this. An exception in the callback is warned of once and kept as
        `callback_error`; the callback goes on to be called.
        """

        def on_batch(batch: Batch) -> None:
            for value in batch.good():
                if not subscriber.active:
                    return
                try:
                    callback(value)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    self._callback_failed(callback, error)

        subscriber = self._subscribe(on_batch, lambda: None, replay)
        return lambda: self._unsubscribe(subscriber)

    def query(
        self,
        code: str | Callable[..., Any],
        *,
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        buffer: int = BUFFER,
        name: str = "",
    ) -> DerivedStream:
        """A stream derived from this one by a query over its ``values``, evaluated in this process.

        The language is that of a run's queries with ``values`` in place of ``events``. A reduction without a
        ``window`` yields one value, when this stream ends. Raises QueryError.

        >>> stream_of([3, 1, 4, 1]).query("max(v for v in values)", window=2).values
        [3, 4]
        """
        from looptap.streams.derived import DerivedStream

        return DerivedStream(self, code, window, every, throttle, buffer, name)

    def close(self) -> None:
        """End the stream; what has arrived stays."""
        self._finish(ENDED, "closed")

    @property
    def title(self) -> str:
        """What messages call this stream."""
        name = self.name if len(self.name) <= 60 else self.name[:59] + "…"
        return f"The stream {name!r}" if name else "The stream"

    def __repr__(self) -> str:
        on = f" on {self.on!r}" if self.on else ""
        state = f"{self.state}: {self.reason}" if self.reason else self.state
        with self._changed:
            facts = [state, f"{self._arrived:,} value{'s' * (self._arrived != 1)}"]
            gaps = len(self._gaps)
        if self._arrived:
            facts.append(f"latest {_short(repr(self._latest))}")
        if self.dropped:
            facts.append(f"{self.dropped:,} missing in {gaps:,} gap{'s' * (gaps != 1)}")
        if self.forgotten:
            facts.append(f"{self.forgotten:,} forgotten")
        if self._errors:
            last = (self.traceback.strip().splitlines() or [""])[-1]
            facts.append(f"{self._errors:,} error{'s' * (self._errors != 1)} ({_short(last)})")
        facts += [_short(note) for note in self.notes[:3]]
        return f"<{type(self).__name__} {_short(self.name)!r}{on}: {'; '.join(facts)}>"

    # ------------------------------------------------------------ for those who feed a stream

    def _push(self, batch: Batch) -> None:
        """Take in a batch whose numbers are above those that came before; a jump is a gap, an overlap is cut."""
        with self._changed:
            if self.state != LIVE:
                return
            if batch.first < self._expected:
                batch = batch.part(self._expected - batch.first)
            if not batch.values:
                return
            self._miss(batch.first - self._expected)
            self._expected = batch.first + len(batch.values)
            if self._rows is not None and not batch.flags:
                batch = batch._replace(values=self._rows(batch.values))
            elif self._rows is not None:
                batch = batch.converted(self._rows)
            good = batch.good()
            self._buffer.append(batch)
            self._arrived += len(good)
            if good:
                self._latest = good[-1]
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

    def _serve(self, subscriber: _Subscriber) -> bool:
        with self._changed:
            subscriber.missed += max(0, self._buffer.start - subscriber.position)
            batch, subscriber.position = self._buffer.part(subscriber.position, _SLICE)
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

    def _subscribe(
        self, on_batch: Callable[[Batch], None], on_end: Callable[[], None], replay: bool
    ) -> _Subscriber:
        with self._changed:
            subscriber = _Subscriber(on_batch, on_end, 0 if replay else self._buffer.end)
            self._subscribers.append(subscriber)
        self._schedule()
        return subscriber

    def _unsubscribe(self, subscriber: _Subscriber) -> None:
        with self._changed:
            subscriber.active = False
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

    def _callback_failed(self, callback: object, error: BaseException) -> None:
        if self.callback_error is not None:
            return
        self.callback_error = error
        name = getattr(callback, "__name__", repr(callback))
        try:
            warnings.warn(
                f"The callback {name} of {self.title[4:]} raised {type(error).__name__}: {error}. It is called again "
                "for further values; the exception is kept as callback_error, others are not reported.",
                RuntimeWarning,
                stacklevel=2,
            )
        except Warning:  # somebody made warnings errors; on this thread nobody would catch it
            pass

    # ------------------------------------------------------------ for those who read along

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
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._buffer.end <= position and self.state == LIVE:
                left = remaining(deadline)
                if left is not None and left <= 0:
                    return False
                self._changed.wait(_TICK if left is None else min(left, _TICK))
        return True

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

    def _outlook(self) -> str:
        """What a message about missing values may add."""
        return ""


def _short(text: str, length: int = 80) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def stream_of(values: Iterable[Any], *, fields: Sequence[str] | None = None, name: str = "") -> Stream:
    """A stream that has ended and holds ``values``, numbered from 1; their events count likewise.

    >>> stream_of([0.5, 0.25]).latest
    0.25
    """
    items = list(values)
    stream = Stream(name, fields=fields, buffer=max(len(items), 1))
    if items:
        events = array("q", range(1, len(items) + 1))
        stream._push(Batch(1, events, array("d", bytes(8 * len(items))), items))
    stream._finish(ENDED)
    return stream
