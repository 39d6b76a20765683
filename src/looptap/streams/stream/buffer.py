"""The bounded buffer of a stream: numbered items in columns, newest kept.

Items arrive as a `Batch` and stay columnar: so do their values where each field has one type. Rows and `Record` objects
are built only on request. A buffer is not thread-safe: its stream holds a lock around it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from looptap.streams.columns.growing_columns import GrowingColumns
from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.flags import ERROR, HISTORY, PARTIAL, REPEATED, TRIGGER
from looptap.streams.values.sizing import size_of

_MAX_CHUNK_ITEMS = 4096
_MAX_CHUNK_BYTES = 1 << 20
CLOCK_JITTER_SECONDS = 1e-3
"""Difference of wall and monotonic clock below which two batches share one wall clock."""


Convert: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class Record(NamedTuple):
    """An item of a stream: its number (from 1), origin, and value or error.

    ``number`` counts the items, ``event`` is the number of its event on ``rank``, ``time`` is the host's monotonic
    clock and ``wall`` is seconds since the epoch. ``error`` is a text in place of a ``value``; ``partial`` marks an
    incomplete window, ``trigger`` the event at which ``when`` became true, ``again`` an event repeated after the job
    resumed from an older state, ``history`` a value of the history of scalars, which has only some of the events before
    the attach.
    """

    number: int
    event: int
    rank: int
    time: float
    wall: float
    value: Any
    error: str | None = None
    partial: bool = False
    trigger: bool = False
    again: bool = False
    history: bool = False


class Gap(NamedTuple):
    """``missing`` items lost after item ``after``; None if their number is unknown."""

    after: int
    missing: int | None


class RunSeam(NamedTuple):
    """A change of run: items up to ``after`` are of ``old``, later ones of ``new``."""

    after: int
    old: str
    new: str


class LimitedStretch(NamedTuple):
    """Items during which the budget limited the query; ``last`` None: it still does."""

    first: int
    last: int | None


class Batch(NamedTuple):
    """Items ``first`` to ``first + n - 1`` in columns, of one rank unless ``ranks``.

    ``ranks`` and ``events`` are n numbers, ``times`` n monotonic seconds, ``values`` n values (an error's text if its
    flag says so) in a list or as `ValueColumns`, ``flags`` n bytes or empty; ``clock`` is the offset from times to
    seconds since the epoch; ``nbytes`` is the approximate size of the values, 0 to estimate it; ``windows`` are n
    numbers of windows common to all ranks, which no buffer keeps.
    """

    first: int
    events: array[int]
    times: array[float]
    values: Sequence[Any]
    clock: float = 0.0
    flags: bytes = b""
    rank: int = 0
    nbytes: int = 0
    ranks: array[int] | None = None
    windows: array[int] | None = None

    @property
    def numbers(self) -> range:
        """The numbers of the items."""
        return range(self.first, self.first + len(self.events))

    def part(self, start: int, stop: int | None = None) -> Batch:
        """Return the items ``start`` to ``stop`` of this batch, counted from 0."""
        span = slice(start, stop)
        values = self.values[span]
        nbytes = self.nbytes * len(values) // max(1, len(self.values))
        columns = self.events[span], self.times[span], values
        ranks = None if self.ranks is None else self.ranks[span]
        windows = None if self.windows is None else self.windows[span]
        return Batch(self.first + start, *columns, self.clock, self.flags[span], self.rank, nbytes, ranks, windows)

    def good(self) -> Sequence[Any]:
        """Return the values without errors."""
        if not self.flags:
            return self.values
        if isinstance(self.values, ValueColumns):
            return self.values.where(np.frombuffer(self.flags, np.uint8) & ERROR == 0)
        return [v for v, flag in zip(self.values, self.flags, strict=True) if not flag & ERROR]

    def converted(self, convert: Convert) -> Batch:
        """Return this batch with its values, but not its errors, converted."""
        return self._replace(values=_converted(self.values, self.flags, convert))

    def records(self) -> list[Record]:
        """Return all items as records."""
        flags = self.flags or bytes(len(self.values))
        ranks = self.ranks or repeat(self.rank, len(self.values))
        columns = zip(self.events, ranks, self.times, self.values, flags, strict=True)
        clock = self.clock
        return [
            Record(number, event, rank, time, time + clock, value)
            if not flag
            else _flagged(Record(number, event, rank, time, time + clock, value), flag)
            for number, (event, rank, time, value, flag) in enumerate(columns, self.first)
        ]


def _flagged(record: Record, flag: int) -> Record:
    record = record._replace(
        partial=bool(flag & PARTIAL),
        trigger=bool(flag & TRIGGER),
        again=bool(flag & REPEATED),
        history=bool(flag & HISTORY),
    )
    return record._replace(value=None, error=str(record.value)) if flag & ERROR else record


def _converted(values: Sequence[Any], flags: bytes | bytearray, convert: Convert) -> Sequence[Any]:
    if not flags or isinstance(values, ValueColumns):  # rows, none of which is an error, or what has no fields
        return convert(values)
    wanted = [not flag & ERROR for flag in flags]
    made = iter(convert(list(compress(values, wanted))))
    return [next(made) if good else text for text, good in zip(values, wanted, strict=True)]


class _Chunk:
    """A run of consecutive items, merged so that small batches need no objects.

    Values of one type a field stay in columns. Those of a list are converted when first read: the garbage collector
    repeatedly traverses 200,000 rows of a custom class, but not bare tuples of numbers.
    """

    __slots__ = (
        "_converted",
        "_made",
        "clock",
        "events",
        "first",
        "flags",
        "nbytes",
        "rank",
        "ranks",
        "start",
        "times",
        "values",
    )

    def __init__(self, start: int, batch: Batch, nbytes: int) -> None:
        self.start = start  # the position of the first item: how many items came before it
        self.first, self.rank, self.clock, self.nbytes = batch.first, batch.rank, batch.clock, nbytes
        self.events, self.times, self.flags = batch.events[:], batch.times[:], bytearray(batch.flags)
        columns = as_columns(batch.values)
        self.values = list(batch.values) if columns is None else GrowingColumns(columns)
        self.ranks = None if batch.ranks is None else batch.ranks[:]
        self._converted = 0  # how many of the values of a list were converted
        self._made: list[Any] = []  # of columns: the rows that were asked for

    def add(self, batch: Batch, nbytes: int, items: int, most: int) -> bool:
        """Add a batch; return False if it does not belong here."""
        count = len(self.values)
        if (
            batch.first != self.first + count
            or batch.rank != self.rank
            or (batch.ranks is None) != (self.ranks is None)
            or count + len(batch.values) > items
            or self.nbytes + nbytes > most
            or abs(batch.clock - self.clock) >= CLOCK_JITTER_SECONDS
            or not self._add_values(batch.values, items)
        ):
            return False
        if batch.flags and not self.flags:
            self.flags = bytearray(count)
        if self.flags:
            self.flags += batch.flags or bytes(len(batch.values))
        if self.ranks is not None and batch.ranks is not None:
            self.ranks += batch.ranks
        self.events += batch.events
        self.times += batch.times
        self.nbytes += nbytes
        return True

    def _add_values(self, values: Sequence[Any], items: int) -> bool:
        if isinstance(self.values, GrowingColumns):
            columns = as_columns(values)
            if columns is not None and self.values.extend(columns):
                return True
            if len(self.values) >= items // 4:
                return False
            self.values = self.values.view(0, len(self.values)).tolist()  # types that change with each batch
            self._made = []
        self.values += values
        return True

    def part(self, start: int, stop: int, convert: Convert | None) -> Batch:
        """Return items; ``convert`` is applied to their values."""
        events, times, flags = self.events[start:stop], self.times[start:stop], bytes(self.flags[start:stop])
        ranks = None if self.ranks is None else self.ranks[start:stop]
        if isinstance(self.values, GrowingColumns):
            columns = self.values.view(start, stop)
            values = columns if convert is None else convert(columns)
        else:
            values = self._shown(self.values, convert)[start:stop]
        return Batch(self.first + start, events, times, values, self.clock, flags, self.rank, ranks=ranks)

    def made(self, start: int, convert: Convert | None) -> list[Any]:
        """Return the values without errors as a list; rows are made once."""
        if not isinstance(self.values, GrowingColumns):
            values = self._shown(self.values, convert)
        else:
            new = self.values.view(len(self._made), len(self.values))
            self._made += new if convert is None else convert(new)
            values = self._made
        if self.flags:
            return [v for v, flag in zip(values[start:], self.flags[start:], strict=True) if not flag & ERROR]
        return values[start:] if start else values

    def forget_made(self) -> None:
        """Forget the rows that were made of columns: they get names."""
        self._made = []

    def _shown(self, values: list[Any], convert: Convert | None) -> list[Any]:
        """Return a list's values, after converting those that are not converted yet."""
        if convert is not None and self._converted < len(values):
            new = slice(self._converted, None)
            values[new] = _converted(values[new], self.flags[new], convert)
            self._converted = len(values)
        return values


class StreamBuffer:
    """The newest items of a stream, bounded by ``items`` and about ``nbytes`` bytes.

    The last batch is always kept. A position counts all items that ever arrived, so it stays valid when old items are
    dropped.
    """

    def __init__(self, items: int, nbytes: int) -> None:
        self.max_items, self.max_bytes = items, nbytes
        self.start = 0
        """The position of the oldest kept item."""
        self.end = 0
        """The position of the next item."""
        self.nbytes = 0
        self.peak_bytes = 0
        self._chunks: deque[_Chunk] = deque()
        self._convert: Convert | None = None
        self._chunk_items = max(1, min(_MAX_CHUNK_ITEMS, items // 8))
        self._chunk_bytes = min(_MAX_CHUNK_BYTES, nbytes // 8)

    def append(self, batch: Batch) -> None:
        """Add a batch; drop the oldest items above the bounds."""
        count = len(batch.values)
        nbytes = batch.nbytes or size_of(batch.values)
        if (surplus := count - self.max_items) > 0:
            batch, nbytes = batch.part(surplus), nbytes * self.max_items // count
            self._chunks.clear()
            self.nbytes, self.end, self.start = 0, self.end + surplus, self.end + surplus
        last = self._chunks[-1] if self._chunks else None
        if last is None or not last.add(batch, nbytes, self._chunk_items, self._chunk_bytes):
            self._chunks.append(_Chunk(self.end, batch, nbytes))
        self.end += len(batch.values)
        self.nbytes += nbytes
        self._forget()
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def _forget(self) -> None:
        self.start = max(self.start, self.end - self.max_items)
        chunks = self._chunks
        while len(chunks) > 1 and (self.nbytes > self.max_bytes or chunks[1].start <= self.start):
            self.nbytes -= chunks.popleft().nbytes
            self.start = max(self.start, chunks[0].start)

    def part(self, position: int, limit: int) -> tuple[Batch | None, int]:
        """Return up to ``limit`` consecutive items, and the position after them."""
        position = max(position, self.start)
        if position >= self.end:
            return None, self.end
        index = bisect_right(self._chunks, position, key=lambda chunk: chunk.start) - 1
        chunk = self._chunks[index]
        offset = position - chunk.start
        batch = chunk.part(offset, min(offset + limit, len(chunk.values)), self._convert)
        return batch, position + len(batch.values)

    def parts(self) -> list[Batch]:
        """Return all items."""
        return self.parts_after(-1)

    def parts_after(self, number: int, *, plain: bool = False) -> list[Batch]:
        """Return the items above ``number``; ``plain`` skips converting unread ones."""
        found = []
        for chunk in reversed(self._chunks):
            offset = max(self.start - chunk.start, number + 1 - chunk.first, 0)
            if offset >= len(chunk.values):
                break
            found.append(chunk.part(offset, len(chunk.values), None if plain else self._convert))
        return found[::-1]

    def values(self) -> list[Any]:
        """Return all values without errors."""
        found: list[Any] = []
        for chunk in self._chunks:
            found += chunk.made(max(0, self.start - chunk.start), self._convert)
        return found

    def errors(self) -> list[Record]:
        """Return the items that are errors."""
        flagged = [part for part in self.parts_after(-1, plain=True) if part.flags]
        return [record for part in flagged for record in part.records() if record.error is not None]

    def error_count(self) -> int:
        """Return how many of the items are errors."""
        return sum(
            sum(1 for flag in chunk.flags[max(0, self.start - chunk.start) :] if flag & ERROR)
            for chunk in self._chunks
            if chunk.flags
        )

    def convert(self, convert: Convert) -> None:
        """Convert values from now on, once each, when they are first read."""
        self._convert = convert
        for chunk in self._chunks:
            chunk.forget_made()
