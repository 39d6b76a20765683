"""The buffer of a stored stream, which reads items from the file in pages.

An item is in a row of its own or in a page of columns. While the run is written, rows and small pages become large
pages: so each query looks for rows first, and those that have become a page meanwhile are found there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from looptap.store.errors import StoreError
from looptap.store.layout.columns import restored
from looptap.store.layout.pages import MAX_ITEM_NUMBER, PAGE_COLUMNS, items_of
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import CLOCK_JITTER_SECONDS, Batch, Convert, Record, StreamBuffer

Select: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs one SQL query over the file."""

ITEMS_PER_PAGE = 4096
"""Items in rows that are read at a time."""
_MAX_PAGES_AT_ONCE = 16  # pages of columns that are read at a time

_COLUMNS = "SELECT number, event, time, wall, rank, flags, value, packed FROM items WHERE stream = ?1"
_PAGES = f"SELECT {PAGE_COLUMNS} FROM pages WHERE stream = ?1"
_FROM_PAGE = "first >= coalesce((SELECT max(first) FROM pages WHERE stream = ?1 AND first <= ?2 + 1), 0)"
"""The page that may have the item after ?2, and all later ones."""
_NEXT_PAGE = f"""coalesce(
    (SELECT first FROM pages WHERE stream = ?1 AND first <= ?2 + 1 AND {_FROM_PAGE} AND first + count > ?2 + 1),
    (SELECT min(first) FROM pages WHERE stream = ?1 AND first > ?2 + 1), {MAX_ITEM_NUMBER + 1})"""
"""The first item in a page after ?2."""
_COUNTED = f"""
    SELECT 0, count(*), max(number), count(nullif(flags & ?3, 0)) FROM items WHERE stream = ?1 AND number > ?2
    UNION ALL SELECT first, count, first + count - 1, 0 FROM pages WHERE stream = ?1 AND {_FROM_PAGE}"""
"""Counts new items, in one query, so that none is counted in a row and in a page."""
_SPANS = f"""
    SELECT min(number), max(number) FROM (SELECT number, number - row_number() OVER (ORDER BY number) AS span
    FROM items WHERE stream = ?1 AND number > ?2 AND number <= ?3) GROUP BY span
    UNION ALL SELECT first, first + count - 1 FROM pages WHERE stream = ?1 AND {_FROM_PAGE}"""
"""The first and the last number of each stretch of items in rows, and of each page."""


class PagedBuffer(StreamBuffer):
    """All items of one stored stream; a position is the number of the item before it."""

    def __init__(self, select: Select, stream: int, first: int = 1) -> None:
        super().__init__(1, 1)
        self.end = first - 1
        self._select, self._stream = select, stream
        self._position, self._used = 0, 0
        self._read_ahead: list[Batch] = []
        """What was read after a position, with the number of items used of the first batch."""
        self._convert: Convert | None = None
        self.count = self.failed = 0
        """Number of items, and of errors among them, as of the last `look`."""

    def look(self) -> tuple[int, int, list[tuple[int, int]]]:
        """Find new items; return how many, how many errors, and (after, missing) gaps."""
        before = self.end
        found = self._select(_COUNTED, (self._stream, before, ERROR))
        for number in chain.from_iterable((first, last) for first, _, last, _ in found):
            if not isinstance(number, int | None) or (number or 0) > MAX_ITEM_NUMBER:
                raise StoreError(f"A stored value has the number {number!r:.40}: the file is damaged.")
        failed = found[0][3]
        count = found[0][1] + sum(max(0, last - max(first - 1, before)) for first, _, last, _ in found[1:])
        self.end = max([before, *(last for _, _, last, _ in found if last is not None)])
        gaps: list[tuple[int, int]] = []
        if self.end - before != count:
            gaps = self._gaps(before)
            count = self.end - before - sum(missing for _, missing in gaps)
        self.count += count
        self.failed += failed
        return count, failed, gaps

    def _gaps(self, before: int) -> list[tuple[int, int]]:
        """Return the gaps (after, missing) above an item."""
        gaps = []
        for first, last in sorted(self._select(_SPANS, (self._stream, before, self.end))):
            if first > before + 1:
                gaps.append((before, first - before - 1))
            before = max(before, last)
        return gaps

    def after(self, number: int) -> Iterator[Batch]:
        """Yield all items above ``number``, a page at a time."""
        while batches := self._fetch(number, ITEMS_PER_PAGE, _MAX_PAGES_AT_ONCE):
            for batch in batches:
                number = batch.first + len(batch.values) - 1
                yield self._converted(batch)

    def part(self, position: int, limit: int) -> tuple[Batch | None, int]:
        """Return up to ``limit`` consecutive items and the position after them."""
        if self._position != position or not self._read_ahead:
            pages = _MAX_PAGES_AT_ONCE if limit >= ITEMS_PER_PAGE else 1
            self._read_ahead, self._used = self._fetch(position, limit, pages), 0
        if not self._read_ahead:
            return None, max(position, self.end)
        batch = self._read_ahead[0]
        found = batch.part(self._used, self._used + limit)
        self._used += len(found.values)
        if self._used == len(batch.values):
            self._read_ahead, self._used = self._read_ahead[1:], 0
        self._position = found.first + len(found.values) - 1
        return self._converted(found), self._position

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
        rows = self._select(f"{_COLUMNS} AND flags & ?2 = 0 ORDER BY number DESC LIMIT 1", (self._stream, ERROR))
        pages = self._select(f"{_PAGES} ORDER BY first DESC LIMIT 1", (self._stream,))
        found = [*(_batch_of([row]) for row in rows), *map(items_of, pages)]
        newest = max(found, key=lambda batch: batch.first + len(batch.values), default=None)
        return None if newest is None else self._converted(newest).values[-1]

    def errors(self, most: int = -1) -> list[Record]:
        """Return the items that are errors, or the first ``most`` of them."""
        rows = self._select(f"{_COLUMNS} AND flags & ?2 ORDER BY number LIMIT ?3", (self._stream, ERROR, most))
        return [record for row in rows for record in _batch_of([row]).records()]

    def error_count(self) -> int:
        """Return how many of the items are errors."""
        return self.failed

    def convert(self, convert: Convert) -> None:
        """Convert values whenever they are read."""
        self._convert = convert

    def _converted(self, batch: Batch) -> Batch:
        return batch if self._convert is None else batch.converted(self._convert)

    def _fetch(self, position: int, limit: int, pages: int) -> list[Batch]:
        """Return the next items: up to ``limit`` in rows, else in up to so many pages."""
        rows = self._select(
            f"{_COLUMNS} AND number > ?2 AND number <= ?3 AND number < {_NEXT_PAGE} ORDER BY number LIMIT ?4",
            (self._stream, position, self.end, limit),
        )
        if rows:
            return _batches(rows)
        if position >= self.end:
            return []
        found: list[Batch] = []
        within = f"first >= {_NEXT_PAGE} AND first <= ?3 ORDER BY first LIMIT ?4"
        for row in self._select(f"{_PAGES} AND {within}", (self._stream, position, self.end, pages)):
            page = items_of(row)
            if found and page.first != position + 1:  # there may be rows between
                break
            last = page.first + len(page.values) - 1
            if page.first <= position or last > self.end:
                page = page.part(max(0, position + 1 - page.first), self.end + 1 - page.first)
            position = min(last, self.end)
            found.append(page)
        return found


def _batches(rows: list[tuple[Any, ...]]) -> list[Batch]:
    """Return rows as batches of consecutive items, each of one rank and clock."""
    found, begin = [], 0
    while begin < len(rows):
        end = _end_of_run(rows, begin)
        found.append(_batch_of(rows[begin:end]))
        begin = end
    return found


def _batch_of(rows: list[tuple[Any, ...]]) -> Batch:
    """Return the rows as a batch."""
    try:
        numbers, events, times, walls, ranks, flags, values, packed = zip(*rows, strict=True)
        if type(numbers[0]) is not int:
            raise ValueError(f"the number {numbers[0]!r:.40}")
        return Batch(
            first=numbers[0],
            events=array("q", events),
            times=array("d", times),
            values=[v if p is None and v is not None else restored(v, p) for v, p in zip(values, packed, strict=True)],
            clock=walls[0] - times[0],
            flags=bytes(flags) if any(flags) else b"",
            rank=ranks[0],
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"A stored value cannot be read ({error}): the file is damaged.") from None


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
