"""`join`: one stream of the values of several that belong together.

Guarantees: the rows are the same however the streams' values interleave, and on whichever threads these arrive; memory
is bounded; no lock is held while a subscriber's code runs.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from numbers import Real
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from looptap.streams.errors import QueryError
from looptap.streams.flags import ERROR, HISTORY, PARTIAL, REPEATED
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.feed import Subscriber
from looptap.streams.stream.state_and_cost import DEFAULT_BUFFER_ITEMS, FAILED, LIVE
from looptap.streams.stream.stream import Stream
from looptap.streams.text import did_you_mean
from looptap.streams.values.rows import Row

MAX_WAITING_ROWS = 10_000
"""Rows that wait for the other streams' values; beyond, the oldest is given up."""
MATCH_SECONDS = 1.0
"""Seconds between values that ``on="time"`` joins, unless ``within=`` says otherwise."""

How = Literal["inner", "outer"]
_Place: TypeAlias = tuple[int, float]
"""A key, and before it how often keys had fallen."""
_Origin: TypeAlias = tuple[int, float, float, int]
"""The event, time, clock and rank of a value."""
_FLAGS = PARTIAL | REPEATED | HISTORY
_AFTER_ALL: _Place = (1 << 62, math.inf)


def join(
    *streams: Stream,
    on: str = "step",
    how: How = "inner",
    within: float | None = None,
    buffer: int = DEFAULT_BUFFER_ITEMS,
    name: str = "",
) -> JoinedStream:
    """Join the values of several streams that belong together.

    A row has the key and the streams' other fields; a field that an earlier stream has, too, is named ``loss_2``. A row
    is yielded once all its values have arrived, or once it is certain that one will not arrive because its stream is
    past the key or has ended. Values of one key are paired in their order. If a key decreases, as at the beginning of
    an epoch, a new round begins in that stream; rounds are joined in order. If more than 10,000 rows wait, the oldest
    is given up. The first row fixes the columns: a key of a dict that appears later is left out. `notes` has these
    keys, and the first value of a stream that has no number as its key.

    Args:
        streams: Two or more, live, stored or derived, of one run or of several.
        on: A field with a number that the values of each stream have, such as ``"step"``; ``"event"`` for the number of
            their event, or ``"time"`` for the wall clock.
        how: ``"inner"`` yields rows for which all streams have a value, ``"outer"`` all rows, with None for missing
            values.
        within: The maximum distance of two keys that belong together; by default 1 s for ``"time"``, else 0.
        buffer: The maximum number of rows to keep.
        name: The name in charts and messages.

    Raises QueryError.

    >>> from looptap import stream_of
    >>> train = stream_of([(1, 0.9), (2, 0.7), (3, 0.6)], fields=("step", "loss"))
    >>> val = stream_of([(1, 0.95), (3, 0.8)], fields=("step", "loss"))
    >>> join(train, val, on="step").values
    [(step=1, loss=0.9, loss_2=0.95), (step=3, loss=0.6, loss_2=0.8)]
    >>> join(train, val, on="step", how="outer").values[1]
    (step=2, loss=0.7, loss_2=None)
    """
    return JoinedStream(streams, on, how, within, buffer, name)


class JoinedStream(Stream):
    """The rows of several streams that belong together; `join` makes it."""

    def __init__(
        self, sources: Sequence[Stream], on: str, how: How, within: float | None, buffer: int, name: str
    ) -> None:
        if len(sources) < 2 or not all(isinstance(source, Stream) for source in sources):
            raise QueryError("join takes two streams or more: looptap.join(train, validation, on='step').")
        if how not in ("inner", "outer"):
            raise QueryError(f"how={how!r} must be 'inner' or 'outer'.")
        if not isinstance(on, str) or not on:
            raise QueryError(f"on={on!r} must be the name of a field, 'event' or 'time'.")
        for source in () if on in ("event", "time") else sources:
            if source.fields is not None and on not in source.fields:
                raise QueryError(f"on={on!r}: {_without(on, source, source.fields)}")
        within = (MATCH_SECONDS if on == "time" else 0.0) if within is None else within
        if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within < math.inf:
            raise QueryError(f"within={within!r} must be the largest distance between two keys, 0 or more.")
        text = f"join({', '.join(source.name for source in sources)}, on={on!r})"
        super().__init__(name, text=text, on=sources[0].on, buffer=buffer)
        self.sources = tuple(sources)
        self._matching = _Matching(self, on, how == "outer", float(within))
        self._matching.start()

    @property
    def dropped(self) -> int:
        """Number of the sources' values that never reached this stream."""
        return sum(source.dropped for source in self.sources) + self._matching.missed

    @property
    def unmatched(self) -> int:
        """Rows so far that lack a value of a stream; ``how="inner"`` leaves them out."""
        return self._matching.unmatched

    @property
    def given_up(self) -> int:
        """Rows so far that were given up while a value of theirs could still come."""
        return self._matching.given_up

    @property
    def keyless(self) -> int:
        """Values so far without a number as their key, which no row has."""
        return self._matching.keyless

    def close(self) -> None:
        """End this stream; the sources continue."""
        self._matching.stop()
        super().close()


class _Waiting:
    """A row, some of whose values are still to come."""

    __slots__ = ("flags", "key", "origin", "place", "values")

    def __init__(self, place: _Place, key: Any, sources: int, origin: _Origin) -> None:
        self.place, self.key, self.origin = place, key, origin
        self.values: list[dict[str, Any] | None] = [None] * sources
        self.flags = 0

    def lacking(self) -> list[int]:
        """Return the sources whose values are still to come."""
        return [index for index, value in enumerate(self.values) if value is None]


class _Matching:
    """Collects the sources' values into rows, and publishes these."""

    def __init__(self, stream: JoinedStream, on: str, outer: bool, within: float) -> None:
        self._stream, self._sources, self._on, self._outer, self._within = stream, stream.sources, on, outer, within
        self._lock = threading.Lock()
        count = len(self._sources)
        self._waiting: list[_Waiting] = []  # by place
        self._awaited = [0] * count  # the waiting rows that lack a value of each source
        self._reached: list[_Place] = [(0, -math.inf)] * count
        self._names: list[dict[str, None]] = [{} for _ in range(count)]
        self._without_key: set[int] = set()  # sources that have had a value without a key
        self._left_out: set[str] = set()  # names that came too late for a column
        self._columns: tuple[str, ...] = ()
        self._out: deque[tuple[_Origin, int, tuple[Any, ...]]] = deque()
        self._publishing = False
        self._published = 0
        self._end: tuple[str, str] | None = None
        self._subscribers: list[Subscriber] = []
        self.unmatched = self.given_up = self.keyless = 0

    def start(self) -> None:
        """Read the sources, kept values first."""
        for index, source in enumerate(self._sources):
            on_batch, on_end = partial(self._on_batch, index), partial(self._on_end, index)
            self._subscribers.append(source.feed.subscribe(on_batch, on_end, replay=True))
        for source in self._sources:
            source.feed.schedule()

    def stop(self) -> None:
        """Stop reading the sources."""
        for source, subscriber in zip(self._sources, self._subscribers, strict=True):
            source.feed.unsubscribe(subscriber)

    @property
    def missed(self) -> int:
        """Values that the sources' buffers dropped before they were read."""
        return sum(subscriber.missed for subscriber in self._subscribers)

    # ------------------------------------------------------------ values arrive

    def _on_batch(self, index: int, batch: Batch) -> None:
        flags = batch.flags or bytes(len(batch.values))
        ranks = batch.ranks or repeat(batch.rank, len(batch.values))
        with self._lock:
            for event, time, rank, value, flag in zip(
                batch.events, batch.times, ranks, batch.values, flags, strict=True
            ):
                if not flag & ERROR:
                    self._add(index, value, (event, time, batch.clock, rank), flag & _FLAGS)
        self._publish()

    def _on_end(self, index: int) -> None:
        with self._lock:
            self._reached[index] = _AFTER_ALL
            self._settle_before(index, _AFTER_ALL)
            ended = [one for one, place in zip(self._sources, self._reached, strict=True) if place is _AFTER_ALL]
            if len(ended) == len(self._sources) or not (self._outer or self._waiting):  # no row can come
                source = next((one for one in ended if one.state == FAILED), ended[0])
                self._end = (source.state, source.reason)
        self._publish()

    def _add(self, index: int, value: Any, origin: _Origin, flags: int) -> None:
        fields = _fields_of(value, self._sources[index])
        event, time, clock, _ = origin
        key: Any = event if self._on == "event" else time + clock if self._on == "time" else fields.get(self._on)
        if not _is_key(key):
            self.keyless += 1
            if index not in self._without_key:
                self._without_key.add(index)
                source, missing = self._sources[index], self._on not in fields and self._on != "time"
                why = f"of {source.name!r:.80} a value with {self._on}={key!r:.40}, which is no number"
                self._stream.notes.append(f"left out: {_without(self._on, source, fields) if missing else why}")
            return
        self._note_names(index, fields)
        rounds, newest = self._reached[index]
        if key < newest and self._on != "time":
            rounds += 1
        self._reached[index] = max(self._reached[index], (rounds, key))
        self._settle_before(index, (rounds, self._moved(key, -self._within)))
        row = self._row_at((rounds, key), key, index, origin)
        row.values[index] = fields
        row.flags |= flags
        row.origin = max(row.origin, origin, key=_wall)
        self._awaited[index] -= 1
        if not row.lacking():
            self._remove(row)
            self._yield(row)
        else:
            self._settle(row)
        if len(self._waiting) > MAX_WAITING_ROWS:
            self._give_up(self._waiting[0])

    def _note_names(self, index: int, fields: Mapping[str, Any]) -> None:
        """Make columns of the names that a source has before the first row."""
        names = self._names[index]
        if new := [name for name in fields if name not in names and name != self._on]:
            if not self._columns:
                names.update(dict.fromkeys(new))
            elif further := dict.fromkeys(name for name in new if name not in self._left_out):
                self._left_out |= further.keys()
                self._stream.notes.append(f"left out, as no value had it before the first row: {', '.join(further)}")

    def _row_at(self, place: _Place, key: Any, index: int, origin: _Origin) -> _Waiting:
        """Return the nearest waiting row that lacks a value of the source, or a new one."""
        rounds, at = place
        first = bisect_left(self._waiting, (rounds, self._moved(at, -self._within)), key=_PLACE)
        last = bisect_right(self._waiting, (rounds, self._moved(at, self._within)), key=_PLACE)
        free = [row for row in self._waiting[first:last] if row.values[index] is None]
        if free:
            return min(free, key=lambda row: abs(row.key - key))
        row = _Waiting(place, key, len(self._sources), origin)
        insort(self._waiting, row, key=_PLACE)
        for one in range(len(self._sources)):
            self._awaited[one] += 1
        return row

    def _moved(self, key: Any, by: float) -> Any:
        try:
            return key + by if by else key
        except OverflowError:  # an integer beyond all floats
            return key + int(by)

    # ------------------------------------------------------------ rows leave

    def _settle_before(self, index: int, place: _Place) -> None:
        """Settle the rows before ``place`` that lack a value of the source."""
        if self._awaited[index]:
            for row in self._waiting[: bisect_left(self._waiting, place, key=_PLACE)]:
                if row.values[index] is None:
                    self._settle(row)

    def _settle(self, row: _Waiting) -> None:
        """Let a row go once all values that it lacks are certain not to come."""
        latest = (row.place[0], self._moved(row.key, self._within))
        if all(self._reached[index] > latest for index in row.lacking()):
            self._remove(row)
            self.unmatched += 1
            if self._outer:
                self._yield(row)

    def _give_up(self, row: _Waiting) -> None:
        self._remove(row)
        self.given_up += 1
        if self._outer:
            self._yield(row)

    def _remove(self, row: _Waiting) -> None:
        index = bisect_left(self._waiting, row.place, key=_PLACE)
        while self._waiting[index] is not row:
            index += 1
        del self._waiting[index]
        for one in row.lacking():
            self._awaited[one] -= 1

    def _yield(self, row: _Waiting) -> None:
        if not self._columns:
            self._name_columns()
        found = [row.key]
        for names, fields in zip(self._names, row.values, strict=True):
            found += [None] * len(names) if fields is None else [fields.get(name) for name in names]
        self._out.append((row.origin, row.flags, tuple(found)))

    def _name_columns(self) -> None:
        """Name the columns, also those of a source that has had no value so far."""
        columns = [self._on]
        for index, source in enumerate(self._sources):
            expected = (name for name in source.feed.fields or (_label(source),) if name != self._on)
            names = self._names[index] = self._names[index] or dict.fromkeys(expected)
            for name in names:
                columns.append(name if name not in columns else next(_others(name, columns)))
        self._columns = tuple(columns)
        self._stream.feed.set_fields(columns)

    def _publish(self) -> None:
        """Publish the rows in their order; only one thread does so at a time."""
        with self._lock:
            if self._publishing:  # that thread looks again
                return
            self._publishing = True
        try:
            while True:
                with self._lock:
                    rows = list(self._out)
                    self._out.clear()
                    if not rows:
                        self._publishing = False
                        end = self._end
                        break
                for batch in self._batches(rows):
                    self._stream.publish(batch)
        except BaseException:
            self._publishing = False
            raise
        if end is not None and self._stream.state == LIVE:
            self.stop()
            self._stream.feed.finish(*end)

    def _batches(self, rows: list[tuple[_Origin, int, tuple[Any, ...]]]) -> Iterator[Batch]:
        """Yield the rows in batches of one rank and clock each."""
        for (clock, rank), group in groupby(rows, key=lambda row: row[0][2:]):
            origins, flags, values = zip(*group, strict=True)
            events, times = array("q", [one[0] for one in origins]), array("d", [one[1] for one in origins])
            flagged = bytes(flags) if any(flags) else b""
            yield Batch(self._published + 1, events, times, list(values), clock, flagged, rank)
            self._published += len(values)


_PLACE = attrgetter("place")


def _is_key(key: Any) -> bool:
    return isinstance(key, Real) and not isinstance(key, bool) and key == key


def _wall(origin: _Origin) -> float:
    return origin[1] + origin[2]


def _without(key: str, source: Stream, fields: Iterable[str]) -> str:
    """Return a sentence on a stream whose values have ``fields`` and no key."""
    names = list(fields)
    hint = did_you_mean(key, names) or " Join on='event' or on='time' instead."
    return f"the values of {source.name!r:.80} have no {key!r:.40}; they have: {', '.join(names)}.{hint}"


def _label(source: Stream) -> str:
    return source.name if source.name.isidentifier() else "value"


def _fields_of(value: Any, source: Stream) -> dict[str, Any]:
    """Return the fields of a value; a plain one is a field named like its stream."""
    if isinstance(value, Row):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, dict):
        return {str(name): item for name, item in value.items()}
    return {_label(source): value}


def _others(name: str, taken: list[str]) -> Iterator[str]:
    """Yield names for a further column of the same name."""
    return (other for count in range(2, len(taken) + 2) if (other := f"{name}_{count}") not in taken)
