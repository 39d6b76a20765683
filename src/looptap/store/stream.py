"""`StoredStream`: a kept stream, with the interface of a live one."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from looptap.protocol.types.built_types import built
from looptap.store.errors import StoreError
from looptap.store.exchange import csv_parquet
from looptap.store.layout.columns import fact_of
from looptap.store.layout.pages import MAX_ITEM_NUMBER
from looptap.store.paged_buffer import PagedBuffer, Select
from looptap.store.queue import COMMAND_FIELDS, COMMANDS, QueuedCommand
from looptap.streams.forwarding import facade
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Gap, Stream


class Declared(NamedTuple):
    """A row of the streams table."""

    id: int
    name: str
    query: str
    event: str
    window: str
    fields: str | None
    unit: str
    first: int


class StoredContents:
    """The part of a stored stream that exports it, and that its run tells facts."""

    run: Any = None
    """The stored run that it is of."""

    def read_facts(self, facts: Mapping[str, Any]) -> None:
        """Read what the facts of the run say of it."""

    def to_csv(self, path: str | Path | IO[bytes]) -> int:
        """Write the values as CSV with numbers, times and fields; return the count.

        Args:
            path: The file, or an open one, which is then closed.
        """
        return csv_parquet.to_csv(cast(Stream, self), Path(path) if isinstance(path, str) else path)

    def to_parquet(self, path: str | Path) -> int:
        """Write a Parquet file; return the count. Raises StoreError without pyarrow.

        Args:
            path: The file.
        """
        return csv_parquet.to_parquet(cast(Stream, self), Path(path))

    def to_tensorboard(self, directory: str | Path) -> int:
        """Write the numbers as a TensorBoard event file; return the number of points.

        The step is the event number. Each field of a row is its own curve.

        Args:
            directory: The directory of the event file; it is made if it is missing.

        Raises StoreError if there are no numbers.
        """
        return csv_parquet.to_tensorboard([cast(Stream, self)], Path(directory))


class StoredFeed(Feed):
    """The items of a stored stream."""

    def __init__(self, pages: PagedBuffer, fields: Sequence[str] | None) -> None:
        super().__init__(1, 1)
        self.buffer = self.pages = pages
        self.set_fields(fields)

    def look(self) -> None:
        """Find items written since the last look."""
        with self.changed:
            if self.state != LIVE:
                return
            count, failed, gaps = self.pages.look()
            if not count:
                return
            self.arrived += count - failed
            self.errors += failed
            self.gaps.extend(Gap(after, missing) for after, missing in gaps)
            self.missing += sum(missing for _, missing in gaps)
            self.begin_after(self.pages.end)
            self.latest = self.pages.newest()
            if failed and not self.traceback:
                self.traceback = str(self.pages.errors(1)[0].error)
            wakes = self._notify()
        for wake in wakes:
            wake()
        if self.subscribed:
            self.schedule()


@facade
class StoredStream(StoredContents, Stream):
    """A stored stream, which reads its values from the file as needed.

    While the run is alive the stream grows, and is iterated, waited for and queried like a live one. Nothing is
    dropped, so `values` of a long run are many; iterate, or use `records_after` and `query`.
    """

    def __init__(self, declared: Declared, select: Select) -> None:
        fields = None if declared.fields is None else _fields(declared)
        self.feed: StoredFeed = StoredFeed(PagedBuffer(select, declared.id, declared.first), fields)
        super().__init__(declared.name, text=declared.query, on=declared.event, feed=self.feed)
        self.id, self.window, self.unit = declared.id, declared.window, declared.unit
        self._reported_errors = 0
        self.look()

    def look(self) -> None:
        """Find items written since the last look; the run calls this while it is alive."""
        self.feed.look()

    @property
    def error_count(self) -> int:
        """Number of failed evaluations: error items, and events without a value."""
        return max(self.feed.errors, self._reported_errors)

    def read_facts(self, facts: Mapping[str, Any]) -> None:
        """Read the query's errors, and the events that its budget withheld."""
        match self._fact(facts, "errors"):
            case (int(count), str(text), str(reason)):  # how many, the first, and why they ended it
                self._reported_errors = count
                self.feed.traceback = self.feed.traceback or text
                self.notes[:] = [reason] if reason else []
        if isinstance(withheld := self._fact(facts, "withheld"), int):
            self.withheld = max(0, withheld)

    def _fact(self, facts: Mapping[str, Any], name: str) -> object:
        by_stream = facts.get(name)
        return by_stream.get(str(self.id)) if isinstance(by_stream, dict) else None

    def __len__(self) -> int:
        with self.feed.changed:
            return self.feed.pages.count - self.feed.pages.failed


class StoredCommands(StoredContents, Stream):
    """The commands of clients as a stream of rows, in the order they were stored."""

    def __init__(self, select: Select) -> None:
        super().__init__(COMMANDS, fields=COMMAND_FIELDS)
        self._select, self._row = select, 0
        self.look()

    def look(self) -> None:
        """Find commands written since the last look; the run calls this while alive."""
        rows = self._select(
            "SELECT rowid, id, time, wall, event, number, client, what, old, new, outcome FROM commands "
            "WHERE rowid > ? ORDER BY rowid",
            (self._row,),
        )
        if not rows or self.state != LIVE:
            return
        self._row = rows[-1][0]
        found = [stored_command(row[1:]) for row in rows]
        values = [tuple(getattr(command, field) for field in COMMAND_FIELDS) for command in found]
        for command, value in zip(
            found, values, strict=True
        ):  # one batch each: the host's clock may have been set between them
            events, times = array("q", (command.number,)), array("d", (command.time,))
            self.publish(Batch(self.newest + 1, events, times, [value], command.wall - command.time))


def declared_of(row: tuple[Any, ...]) -> Declared:
    """Return the stream that a table row declares. Raises StoreError if unreadable."""
    try:
        declared = msgspec.convert(row, built(Declared))
    except ValueError as error:
        raise StoreError(f"A stored stream cannot be read ({error}): the file is damaged.") from None
    if not 0 < declared.first < MAX_ITEM_NUMBER:
        raise StoreError(f"The stream {declared.name!r:.60} begins with item {declared.first:,}: the file is damaged.")
    return declared


def stored_command(row: tuple[Any, ...]) -> QueuedCommand:
    """Return the command of a table row. Raises StoreError if it is unreadable."""
    try:
        command = msgspec.convert(row, built(QueuedCommand))
    except ValueError as error:
        raise StoreError(f"A stored command cannot be read ({error}): the file is damaged.") from None
    return command._replace(old=fact_of(command.old), new=fact_of(command.new), asked=fact_of(command.asked))


def _fields(declared: Declared) -> list[str]:
    try:
        return msgspec.json.decode(declared.fields or "", type=built(list[str]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"The fields of the stream {declared.name!r:.60} cannot be read: {error}") from None
