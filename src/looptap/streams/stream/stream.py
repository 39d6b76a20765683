"""`Stream`: the numbered values of a query, live, stored or derived.

Guarantees: every method may be called from any thread; a gap in the numbers is recorded with its exact size; memory is
bounded; feeding a stream never waits for a reader. Callbacks run on the thread that feeds the stream unless a subclass
schedules them elsewhere, and never while the stream's lock is held.
"""

from __future__ import annotations

import contextlib
import warnings
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

from looptap.streams.errors import StreamEnded, StreamTimeout
from looptap.streams.forwarding import facade
from looptap.streams.stream.buffer import Batch, Gap, LimitedStretch, Record, RunSeam
from looptap.streams.stream.contents import StreamContents
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.follow import Follow
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_BYTES, DEFAULT_BUFFER_ITEMS, ENDED, Cost
from looptap.streams.text import cut

__all__ = ["Gap", "Record", "RunSeam", "Stream", "stream_of"]


@facade
class Stream(StreamContents):
    """Numbered values, the newest of which are kept.

    A for loop over a stream yields the kept values, then waits for more until the stream ends; `values` is a list of
    the kept ones, and ``len()`` its length. A live stream grows between two calls: `to_numpy`, `to_pandas` and
    `columns` return columns of one moment. The items that are kept are bounded in number and size; `forgotten` counts
    those dropped to make room for newer ones. `state` is live, ended or failed, and `reason` says why.

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
        buffer: int = DEFAULT_BUFFER_ITEMS,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        feed: Feed | None = None,
    ) -> None:
        self.feed = Feed(buffer, buffer_bytes, fields) if feed is None else feed
        """The items, readers and subscribers behind this interface, for code that creates streams."""
        self.name, self.text, self.on = name or text, text, on
        self.cost = Cost()
        self.notes: list[str] = []
        self.limits: list[str] = []
        """The notes on how a budget limits the query now."""
        self.thinned = False
        """True if a budget has ever reduced the events at which the query runs."""
        self.limited: tuple[LimitedStretch, ...] = ()
        """The newest stretches in which a budget limited the query, as far as this client knows."""
        self.drawn: tuple[str, ...] = ()
        """The fields that a chart draws by default; empty for all."""
        self.withheld = self.filtered = 0
        """Events that the budget kept from the query (see `notes`), and events at which it had no value to yield.

        Of a mapped query that yields one value at an event, the events that it asks for are its values (those that were
        `dropped` included), errors, withheld and filtered events, and what ``throttle`` held back: exactly so many.
        """
        self.callback_error: BaseException | None = None
        """The first exception of a callback, None if there was none."""

    # ------------------------------------------------------------ reading

    def wait(self, n: int = 1, timeout: float | None = 30.0) -> list[Any]:
        """Wait until ``n`` values have arrived since the start, and return `values`.

        Args:
            n: The number of values, including those that had arrived before; ``stream.arrived + 20`` waits for twenty
                more.
            timeout: Seconds to wait; None: no limit.

        Raises StreamTimeout after ``timeout`` seconds, and StreamEnded if the stream ends with fewer.
        """
        self.feed.attention.wait()
        with self.feed.changed:
            in_time = self.feed.wait_until(lambda: self.feed.arrived >= n, timeout)
            arrived, state = self.feed.arrived, self.state
            values = self.feed.buffer.values() if arrived >= n else []
        if arrived >= n:
            return values
        if not in_time:
            raise StreamTimeout(
                f"{arrived} of {n} values of {self.title[0].lower()}{self.title[1:]} arrived within "
                f"{timeout:g} s.{self._outlook()}"
            )
        reason = f": {self.reason.removesuffix('.')}" if self.reason else ""
        raise StreamEnded(f"{self.title} {state} after {arrived} of {n} values{reason}.")

    def follow(self, timeout: float | None = None, *, history: bool = True) -> Follow:
        """Iterate over the values with ``for`` or ``async for``, kept ones first.

        A reader that falls behind the buffer continues with the oldest value that is kept.

        Args:
            timeout: Seconds without a value after which StreamTimeout is raised; None: wait until the stream ends.
            history: False skips the kept values.
        """
        return Follow(self, 0 if history else self.feed.buffer.end, timeout)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.follow())

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self.follow())

    def on_value(self, callback: Callable[[Any], object], *, replay: bool = False) -> Callable[[], None]:
        """Call ``callback(value)`` for each new value; with ``replay`` kept ones first.

        Returns a function that ends this. An exception in the callback is warned of once and kept as `callback_error`;
        the callback is still called.

        Args:
            callback: Is called on the thread "looptap-callbacks".
            replay: True begins with the kept values.
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

        subscriber = self.feed.subscribe(on_batch, lambda: None, replay)
        self.feed.schedule()
        return lambda: self.feed.unsubscribe(subscriber)

    def query(
        self,
        code: str | Callable[..., Any],
        *,
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        buffer: int = DEFAULT_BUFFER_ITEMS,
        name: str = "",
    ) -> DerivedStream:
        """Return a stream derived from this one by a query over its ``values``.

        It is evaluated in this process. The language is that of a run's queries with ``values`` in place of
        ``events``.

        Args:
            code: A text, a function of one value, or one of ``values``.
            window: The window that a reduction aggregates over: a number of values, `seconds` or `sliding`. Without it,
                it yields one value, when this stream ends.
            every: Evaluate at every n-th value only.
            throttle: The minimum time between two values, in seconds.
            buffer: The maximum number of values to keep.
            name: The name in charts and messages; by default the query.

        Raises QueryError.

        >>> stream_of([3, 1, 4, 1]).query("max(v for v in values)", window=2).values
        [3, 4]
        """
        return DerivedStream(self, code, window, every, throttle, buffer, name)

    def publish(self, batch: Batch) -> None:
        """Add a batch with increasing numbers; a jump is a gap, an overlap is cut off."""
        self.feed.publish(batch)

    def close(self) -> None:
        """End the stream; what has arrived stays."""
        self.feed.finish(ENDED, "closed")

    @property
    def title(self) -> str:
        """The name of this stream in messages."""
        return f"The stream {cut(self.name, 60)!r}" if self.name else "The stream"

    def __repr__(self) -> str:
        on = f" on {self.on!r}" if self.on else ""
        state = f"{self.state}: {self.reason}" if self.reason else self.state
        with self.feed.changed:
            facts = [state, f"{self.feed.arrived:,} value{'s' * (self.feed.arrived != 1)}"]
            gaps = len(self.feed.gaps)
        if self.feed.arrived:
            facts.append(f"latest {cut(repr(self.feed.latest), 80)}")
        if self.dropped:
            facts.append(f"{self.dropped:,} missing in {gaps:,} gap{'s' * (gaps != 1)}")
        if self.withheld:
            facts.append(f"{self.withheld:,} event{'s' * (self.withheld != 1)} withheld by the budget")
        if self.feed.seams:
            facts.append(
                f"{len(self.feed.seams) + 1:,} runs, the last from number {self.feed.seams[-1].after + 1:,} on"
            )
        if self.forgotten:
            facts.append(f"{self.forgotten:,} forgotten")
        if count := self.error_count:
            facts.append(f"{count:,} error{'s' * (count != 1)} ({cut(self.feed.first_error(), 80)})")
        facts += [cut(note, 80) for note in self.notes[:3]]
        return f"<{type(self).__name__} {cut(self.name, 80)!r}{on}: {'; '.join(facts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "A Stream belongs to this process and cannot be pickled or sent along with a query. Its values, records, "
            "to_numpy() and to_pandas() can."
        )

    def _callback_failed(self, callback: object, error: BaseException) -> None:
        if self.callback_error is not None:
            return
        self.callback_error = error
        name = getattr(callback, "__name__", repr(callback))
        with contextlib.suppress(Warning):  # warnings may be errors, and nothing on this thread would catch them
            warnings.warn(
                f"The callback {name} of a stream raised {type(error).__name__}: {error}. It is called again "
                "for further values; this exception is kept as callback_error, others are not reported.",
                RuntimeWarning,
                stacklevel=2,
            )

    def outlook(self) -> str:
        """Return why values do not arrive, in a sentence or two; empty if unknown."""
        return self._outlook().strip()

    def panel(self) -> Sequence[tuple[Stream, str]]:
        """Return the streams drawn in place of this one with their kinds of charts."""
        return ()

    def _outlook(self) -> str:
        """Return a note on missing values for a message."""
        return self._failures()

    def _failures(self) -> str:
        count = self.error_count
        return f" The query has failed {count:,} time{'s' * (count != 1)}: {self.feed.first_error()}" if count else ""


class DerivedStream(Stream):
    """The values of a query over the values of ``source``; ends with its source.

    Each value carries the event, time and rank of the value that completed it. Items that the source lost are counted
    in `dropped`, and the window they belonged to is flagged partial. So is a window that the end of the source cuts
    short.
    """

    def __init__(
        self,
        source: Stream,
        code: str | Callable[..., Any],
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        buffer: int = DEFAULT_BUFFER_ITEMS,
        name: str = "",
    ) -> None:
        from looptap.streams.stream.derive import Derivation  # loads the query language, which most streams lack

        self._derivation = derivation = Derivation(source.feed, code, window, every, throttle)
        super().__init__(name, text=derivation.text, on=source.on, fields=derivation.fields, buffer=buffer)
        self.source = source
        self.notes = list(derivation.notes)
        derivation.start(self.feed, self.notes)

    @property
    def dropped(self) -> int:
        """Number of source values that never reached this query."""
        return self.source.dropped + self._derivation.missed

    def explain(self) -> str:
        """Describe which parts of the query stream or are collected, and when it yields."""
        return self._derivation.explain()

    def close(self) -> None:
        """End this stream; the source continues."""
        self._derivation.stop()
        super().close()


def stream_of(values: Iterable[Any], *, fields: Sequence[str] | None = None, name: str = "") -> Stream:
    """Return an ended stream of ``values``; numbers and events count from 1.

    Args:
        values: The values.
        fields: Names for the parts of values that are tuples.
        name: The name in charts and messages.

    >>> stream_of([0.5, 0.25]).latest
    0.25
    """
    items = list(values)
    stream = Stream(name, fields=fields, buffer=max(len(items), 1))
    if items:
        events = array("q", range(1, len(items) + 1))
        stream.publish(Batch(1, events, array("d", bytes(8 * len(items))), items))
    stream.feed.finish(ENDED)
    return stream
