"""The buffer of a stored stream, which reads items from the file in pages."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from looptap.store.errors import StoreError
from looptap.store.layout.columns import restored
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import CLOCK_JITTER_SECONDS, Batch, Convert, Record, StreamBuffer

Select: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs one SQL query over the file."""

MAX_ITEM_NUMBER = 1 << 62
"""Highest number of an item or event; no run reaches it."""
ITEMS_PER_PAGE = 4096
"""Items that are read at a time."""
_COLUMNS = "SELECT number, event, time, wall, rank, flags, value, packed FROM items WHERE stream = ?"
_ITEMS = f"{_COLUMNS} AND number > ?"


class PagedBuffer(StreamBuffer):
    """All items of one stored stream; a position is the number of the item before it."""

    def __init__(self, select: Select, stream: int, first: int = 1) -> None:
        super().__init__(1, 1)
        self.end = first - 1
        self._select, self._stream = select, stream
        self._read_ahead: tuple[int, int, list[tuple[Any, ...]]] = (0, 0, [])
        """A position, and the rows read ahead of it, with the index of the first unused one."""
        self._convert: Convert | None = None
        self.count = self.failed = 0
        """Number of items, and of errors among them, as of the last `look`."""

    def look(self) -> tuple[int, int, list[tuple[int, int]]]:
        """Find new items; return how many, how many errors, and (after, missing) gaps."""
        before = self.end
        ((count, failed, last),) = self._select(
            "SELECT count(*), count(nullif(flags & ?, 0)), max(number) FROM items WHERE stream = ? AND number > ?",
            (ERROR, self._stream, before),
        )
        last = before if last is None else last
        if not isinstance(last, int) or last > MAX_ITEM_NUMBER:
            raise StoreError(f"A stored value has the number {last!r:.40}: the file is damaged.")
        gaps: list[tuple[int, int]] = []
        if count and last - before != count:
            gaps = [
                (number - missing - 1, missing)
                for number, missing in self._select(
                    "SELECT number, number - 1 - previous AS missing FROM (SELECT number, lag(number, 1, ?) OVER "
                    "(ORDER BY number) AS previous FROM items WHERE stream = ? AND number > ?) WHERE missing > 0",
                    (before, self._stream, before),
                )
            ]
        self.end = last
        self.count += count
        self.failed += failed
        return count, failed, gaps

    def after(self, number: int) -> Iterator[Batch]:
        """Yield all items above ``number``, a page at a time."""
        while True:
            batch, number = self.part(number, ITEMS_PER_PAGE)
            if batch is None:
                return
            yield batch

    def part(self, position: int, limit: int) -> tuple[Batch | None, int]:
        """Return up to ``limit`` consecutive items and the position after them."""
        known, begin, rows = self._read_ahead
        if known != position or begin >= len(rows):
            within = (self._stream, position, self.end, limit)
            begin, rows = 0, self._select(f"{_ITEMS} AND number <= ? ORDER BY number LIMIT ?", within)
        if not rows:
            return None, max(position, self.end)
        end = min(_end_of_run(rows, begin), begin + limit)
        batch = self._batch(rows[begin:end])
        position = batch.first + len(batch.values) - 1
        self._read_ahead = (position, end, rows if end < len(rows) else [])
        return batch, position

    def parts(self) -> list[Batch]:
        """Return all items."""
        return self.parts_after(0)

    def parts_after(self, number: int, *, plain: bool = False) -> list[Batch]:
        """Return all items above ``number``; ``plain`` has no effect."""
        return list(self.after(number))

    def values(self) -> list[Any]:
        """Return all values except errors."""
        return [value for batch in self.after(0) for value in batch.good()]

    def newest(self) -> Any:
        """Return the newest value; None if there is none."""
        newest = f"{_COLUMNS} AND flags & ? = 0 ORDER BY number DESC LIMIT 1"
        rows = self._select(newest, (self._stream, ERROR))
        return self._batch(rows).values[0] if rows else None

    def errors(self, most: int = -1) -> list[Record]:
        """Return the items that are errors, or the first ``most`` of them."""
        rows = self._select(f"{_ITEMS} AND flags & ? ORDER BY number LIMIT ?", (self._stream, 0, ERROR, most))
        return [record for row in rows for record in self._batch([row]).records()]

    def error_count(self) -> int:
        """Return how many of the items are errors."""
        return self.failed

    def convert(self, convert: Convert) -> None:
        """Convert values whenever they are read."""
        self._convert = convert

    def _batch(self, rows: list[tuple[Any, ...]]) -> Batch:
        """Return the rows as a batch."""
        try:
            return self._batch_of(rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"A stored value cannot be read ({error}): the file is damaged.") from None

    def _batch_of(self, rows: list[tuple[Any, ...]]) -> Batch:
        numbers, events, times, walls, ranks, flags, values, packed = zip(*rows, strict=True)
        if type(numbers[0]) is not int:
            raise ValueError(f"the number {numbers[0]!r:.40}")
        batch = Batch(
            first=numbers[0],
            events=array("q", events),
            times=array("d", times),
            values=[v if p is None and v is not None else restored(v, p) for v, p in zip(values, packed, strict=True)],
            clock=walls[0] - times[0],
            flags=bytes(flags) if any(flags) else b"",
            rank=ranks[0],
        )
        return batch if self._convert is None else batch.converted(self._convert)


def _end_of_run(rows: list[tuple[Any, ...]], begin: int) -> int:
    """Return the end of the consecutive rows from ``begin`` on one rank and clock."""
    first, _, time, wall, rank, *_ = rows[begin]
    try:
        clock = wall - time
        for index in range(begin, len(rows)):
            row = rows[index]
            if row[0] != first + index - begin or row[4] != rank or abs(row[3] - row[2] - clock) > CLOCK_JITTER_SECONDS:
                return index
    except TypeError as error:
        raise StoreError(f"A stored value cannot be read ({error}): the file is damaged.") from None
    return len(rows)
