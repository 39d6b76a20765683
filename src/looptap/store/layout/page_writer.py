"""Writes items as rows and pages of columns, and joins small pages to full ones.

What is handed over is in the file with the next commit, however little it is: as rows, or as a small page. Once the
newest items of a stream are as many as a page has, one page replaces their rows and small pages, in one transaction. So
nothing waits in memory to be lost, and each value is written at most twice.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from looptap.store.layout.columns import COLUMN_COUNT, item_parameters
from looptap.store.layout.pages import INSERT_PAGE, PAGE_BYTES, PAGE_ITEMS, page_of
from looptap.streams.columns.growing_columns import GrowingColumns
from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import CLOCK_JITTER_SECONDS, Batch

MIN_PAGE_ITEMS = 32
"""Fewer new items are written as rows, which plain SQL reads."""
MAX_HELD_BYTES = 16_777_216
"""Bytes of items, of all streams, that are held to be joined with later ones."""

_ITEMS_PER_STATEMENT = 500  # items of one statement: 0.2 ms of holding the interpreter lock
_ITEM_BYTES = 16  # of an item in a page, beside its value: its event and its time


class _Run:
    """The newest items of a stream, alike and without a gap; ``stored`` are written."""

    __slots__ = ("clock", "each", "events", "first", "flags", "full", "rank", "stored", "times", "values")

    def __init__(self, batch: Batch, values: ValueColumns) -> None:
        self.first, self.rank, self.clock, self.stored = batch.first, batch.rank, batch.clock, 0
        self.events, self.times = batch.events[:], batch.times[:]
        self.flags = bytearray(batch.flags or len(values))
        self.values = GrowingColumns(values)
        self.each = _ITEM_BYTES + values.nbytes // len(values)
        self.full = max(1, min(PAGE_ITEMS, PAGE_BYTES // self.each))

    def __len__(self) -> int:
        return len(self.events)

    def extend(self, batch: Batch, values: ValueColumns) -> bool:
        """Add items; return False if they do not belong here."""
        fits = (
            batch.first == self.first + len(self)
            and batch.rank == self.rank
            and abs(batch.clock - self.clock) < CLOCK_JITTER_SECONDS
            and self.values.extend(values)
        )
        if fits:
            self.events += batch.events
            self.times += batch.times
            self.flags += batch.flags or bytes(len(values))
        return fits

    def part(self, start: int, stop: int) -> tuple[Batch, ValueColumns]:
        """Return some of the items."""
        values = self.values.view(start, stop)
        events, times, flags = self.events[start:stop], self.times[start:stop], self.flags[start:stop]
        return Batch(self.first + start, events, times, values, self.clock, bytes(flags), self.rank), values


class PageWriter:
    """The tables of items of one file, written in transactions of its caller."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self._rows: list[Any] = []
        self._most = 0

    def write(self, connection: sqlite3.Connection, batches: Iterable[tuple[int, Batch]]) -> None:
        """Insert the batches of streams, each stream's in order.

        Call `forget` if this or the commit fails.
        """
        self._rows, changed = [], dict.fromkeys(self._runs, False)
        variables = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._most = min(_ITEMS_PER_STATEMENT, variables // COLUMN_COUNT) * COLUMN_COUNT
        for stream, batch in batches:
            run = self._runs.get(stream)
            values = _columns(batch)
            if run is None or values is None or not run.extend(batch, values):
                if run is not None and changed[stream]:
                    self._store(connection, stream, run)
                self._runs.pop(stream, None)
                if values is None:
                    self._store_rows(connection, stream, batch)
                    continue
                self._runs[stream] = _Run(batch, values)
            changed[stream] = True
        for stream, run in list(self._runs.items()):
            if changed[stream]:
                self._store(connection, stream, run)
        self._insert_rows(connection, rest=True)
        while self.held_bytes > MAX_HELD_BYTES:  # the least recently begun stay as they are in the file
            self._runs.pop(next(iter(self._runs)))

    @property
    def held_bytes(self) -> int:
        """The bytes of items that are held to be joined with later ones."""
        return sum(len(run) * run.each for run in self._runs.values())

    def forget(self) -> None:
        """Begin new pages with later items; what is in the file stays as it is."""
        self._runs.clear()

    def _store(self, connection: sqlite3.Connection, stream: int, run: _Run) -> None:
        """Store the new items of a run; a full page replaces what is stored of its items."""
        try:
            rest = self._store_full(connection, stream, run) if len(run) >= run.full else run
            if rest is None:
                self._runs.pop(stream)
                return
            self._runs[stream], new = rest, rest.part(rest.stored, len(rest))
            if len(new[1]) < MIN_PAGE_ITEMS:
                self._store_rows(connection, stream, new[0])
            else:
                connection.execute(INSERT_PAGE, page_of(stream, *new))
            rest.stored = len(rest)
        except ValueError:  # a text with a lone surrogate
            self._runs.pop(stream)
            self._store_rows(connection, stream, run.part(run.stored, len(run))[0])

    def _store_full(self, connection: sqlite3.Connection, stream: int, run: _Run) -> _Run | None:
        """Store full pages in place of all that is stored of a run; return the rest."""
        ends = range(run.full, len(run) + 1, run.full)
        pages = [page_of(stream, *run.part(end - run.full, end)) for end in ends]
        if run.stored:
            span = stream, run.first, run.first + run.stored - 1
            connection.execute("DELETE FROM items WHERE stream = ? AND number BETWEEN ? AND ?", span)
            connection.execute("DELETE FROM pages WHERE stream = ? AND first BETWEEN ? AND ?", span)
        connection.executemany(INSERT_PAGE, pages)
        rest = run.part(ends[-1], len(run))
        return _Run(*rest) if len(rest[1]) else None

    def _store_rows(self, connection: sqlite3.Connection, stream: int, batch: Batch) -> None:
        self._rows += item_parameters(stream, batch)
        if len(self._rows) >= self._most:
            self._insert_rows(connection)

    def _insert_rows(self, connection: sqlite3.Connection, *, rest: bool = False) -> None:
        """Insert the rows that fill whole statements, with ``rest`` all of them."""
        rows, most, start = self._rows, self._most, 0
        while len(rows) - start >= most or (rest and start < len(rows)):
            part = rows[start : start + most]
            row = f"({', '.join('?' * COLUMN_COUNT)})"
            sql = f"INSERT OR IGNORE INTO items VALUES {', '.join([row] * (len(part) // COLUMN_COUNT))}"
            connection.execute(sql, part)
            start += most
        self._rows = rows[start:]


def _columns(batch: Batch) -> ValueColumns | None:
    """Return the values of a batch that can be in a page, else None."""
    plain = batch.ranks is None and math.isfinite(batch.clock) and not any(flag & ERROR for flag in batch.flags)
    return as_columns(batch.values) if plain else None
