"""The history of scalars in the file of a run: tables, and streams of them.

Guarantees: what is read is checked, so a damaged or hostile row raises StoreError.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from looptap.protocol.errors import MessageError
from looptap.protocol.replies import KeptScalars, ScalarInfo
from looptap.protocol.types.built_types import built
from looptap.store.errors import StoreError
from looptap.store.kept_scalars import HistorySpan, kept_batch, note_on, row_fields
from looptap.store.layout.scalar_columns import ScalarName, ScalarRow, little_endian
from looptap.store.paged_buffer import Select
from looptap.store.stream import StoredContents
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Stream

MAX_TABLES = 1000
"""Types of events whose scalars are read from a file."""
_ROW_BYTES = 8  # of an event, of its time, and of each of its numbers
_DEFAULT_EVENT = "batch"


class StoredTable:
    """The kept numbers of one type of events, as a file has them. Raises StoreError."""

    def __init__(self, row: tuple[Any, ...], rank: int) -> None:
        try:
            read = msgspec.convert(row, built(ScalarRow))
            names = msgspec.json.decode(read.names, type=built(list[ScalarName]))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"Stored scalars cannot be read ({error}): the file is damaged.") from None
        self.on, self.last, self._row, self._rank = read.event, read.last, read, rank
        count = len(read.numbers) // _ROW_BYTES
        sizes = _ROW_BYTES * count, _ROW_BYTES * count, (_ROW_BYTES + 1) * count * len(names)
        if (len(read.numbers), len(read.times), len(read.columns)) != sizes or not count:
            raise StoreError(f"The stored scalars of {self.on!r:.60} have columns of other lengths: it is damaged.")
        times = little_endian(array("d", read.times))
        self.count, self.columns = count, {one.name: (index, one) for index, one in enumerate(names)}
        if len(self.columns) != len(names):
            raise StoreError(f"The stored scalars of {self.on!r:.60} have a name twice: the file is damaged.")
        self.pace = (times[-1] - times[0]) / (count - 1) if count > 1 else 0.0
        events = little_endian(array("q", read.numbers))
        if events[-1] != read.last or not all(map(operator.lt, events, events[1:])):
            raise StoreError(f"The stored scalars of {self.on!r:.60} have events out of order: the file is damaged.")
        if not all(map(math.isfinite, (*times, self.pace, read.clock))):
            raise StoreError(f"The stored scalars of {self.on!r:.60} have impossible times: the file is damaged.")

    @property
    def names(self) -> dict[str, str]:
        """The names by the query that yields their numbers."""
        return {one.query: name for name, (_, one) in self.columns.items()}

    def rows(self, names: Sequence[str]) -> KeptScalars:
        """Return the rows of some names, not yet checked."""
        found, data, count = [self.columns[name] for name in names], self._row.columns, self.count
        wide, flags = _ROW_BYTES * count, _ROW_BYTES * count * len(self.columns)
        return KeptScalars(
            on=self.on,
            query=", ".join(one.query for _, one in found),
            fields=row_fields(names),
            events=little_endian(array("q", self._row.numbers)).tobytes(),
            times=little_endian(array("d", self._row.times)).tobytes(),
            columns=tuple(little_endian(array("d", data[at * wide : (at + 1) * wide])).tobytes() for at, _ in found),
            present=tuple(data[flags + at * count : flags + (at + 1) * count] for at, _ in found),
            kinds=tuple(one.kind for _, one in found),
            rests=tuple(array("h", one.rests).tobytes() for _, one in found),
            pace=self.pace,
            clock=self._row.clock,
        )

    def batch(self, names: Sequence[str], first: int = 1, above: int = -1) -> Batch:
        """Return the rows that have all names, of the events above one."""
        try:
            found = kept_batch(self.rows(names), first, self._rank)
        except MessageError as error:
            raise StoreError(f"{error} The file is damaged.") from None
        start = next((at for at, event in enumerate(found.events) if event > above), len(found.events))
        return found._replace(
            events=found.events[start:],
            times=found.times[start:],
            values=found.values[start:],
            flags=found.flags[start:],
        )

    def infos(self) -> Iterable[ScalarInfo]:
        """Yield what is kept of each name."""
        for name, (_, about) in self.columns.items():
            found = self.batch([name])
            if found.values:
                yield ScalarInfo(
                    name=name,
                    on=self.on,
                    query=about.query,
                    points=len(found.values),
                    pace=self.pace,
                    first=found.events[0],
                    last=found.events[-1],
                    value=found.values[-1],
                    exposed=about.exposed,
                )


class StoredScalars(StoredContents, Stream):
    """The kept values of one name, or of several as rows; grows with the run."""

    def __init__(self, select: Select, table: StoredTable, names: Sequence[str], rank: int) -> None:
        rows = table.rows(names)
        super().__init__(", ".join(names), text=rows.query, on=table.on, fields=rows.fields)
        self.history: HistorySpan | None = None
        """The items that come from the history, and the seconds between two: all of them."""
        self._select, self._names, self._rank, self._last = select, names, rank, -1
        self._add(table)

    def look(self) -> None:
        """Find values written since the last look; the run calls this while alive."""
        newest = self._select("SELECT last FROM scalars WHERE event = ?", (self.on,))
        if self.state == LIVE and newest and newest != [(self._last,)]:
            for table in tables_of(self._select, self._rank, self.on):
                if all(name in table.columns for name in self._names):
                    self._add(table)

    def _add(self, table: StoredTable) -> None:
        batch = table.batch(self._names, self.newest + 1, self._last)
        self._last = table.last
        if batch.values:
            self.publish(batch)
            self.history = HistorySpan(1, self.newest, table.pace)
            self.notes[:] = [note_on(table.batch(self._names), table.pace, stored=True)]


def tables_of(select: Select, rank: int, on: str | None = None) -> list[StoredTable]:
    """Return the stored tables: that of ``on``, or all, the one to prefer first."""
    which, parameters = ("", ()) if on is None else ("WHERE event = ?", (on,))
    rows = select(
        f"SELECT event, last, clock, names, numbers, times, columns FROM scalars {which} ORDER BY rowid LIMIT ?",
        (*parameters, MAX_TABLES),
    )
    found = [StoredTable(row, rank) for row in rows]
    return sorted(found, key=lambda table: (table.on != _DEFAULT_EVENT, -table.count))
