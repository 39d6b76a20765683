"""The values in a ring: single ones, and batches of columns.

A value that comes alone is a bare tuple, which costs least to make. Those of many events are a `Batch`, made once and
sliced, joined and sent without an object for each value.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import Any, TypeAlias

from looptap.streams.columns.value_columns import ValueColumns, as_columns, joined_columns
from looptap.streams.stream.buffer import Batch
from looptap.streams.values.snapshots import NUMBERS

MIN_VALUE_BYTES = 64
"""Every value counts as at least this large."""
ITEM_OVERHEAD_BYTES = 192
"""Overhead of a value in a ring: the tuple, its number, event and time, its place."""
MIN_BATCH_VALUES = 16
"""Fewer values are kept one by one, which takes less memory than so small a batch."""
BATCH_OVERHEAD_BYTES, COLUMN_OVERHEAD_BYTES, ROW_OVERHEAD_BYTES = 768, 512, 24
"""Overhead of a batch in a ring, of each of its columns, and of each value: its event, its time."""


class FlaggedValue:
    """A value with flags, condition inputs (flight recorder) or a window number."""

    __slots__ = ("condition_inputs", "flags", "nbytes", "value", "window")

    def __init__(
        self, value: Any, flags: int, kept: dict[str, Any] | None = None, window: int = 0, nbytes: int = 0
    ) -> None:
        self.value, self.flags, self.condition_inputs, self.window = value, flags, kept, window
        self.nbytes = nbytes
        """The bytes of the value and its condition inputs."""


Item: TypeAlias = tuple[int, int, float, Any, int]
"""One value in a ring: its number, the number and time of its event, the value, its bytes."""
Entry: TypeAlias = "Item | Batch"
"""What a ring holds: one value, or many; the first element is the number of its first value."""
_ITEM_BYTES = itemgetter(4)


def bytes_each(values: Sequence[Any]) -> int:
    """Return the bytes that each of some numbers counts for, or of rows of as many.

    0 if some are neither.
    """
    if isinstance(values, ValueColumns):
        return MIN_VALUE_BYTES * len(values.columns)
    kinds = set(map(type, values))
    if kinds <= NUMBERS:
        return MIN_VALUE_BYTES
    rows = kinds == {tuple} and len(set(map(len, values))) == 1
    if not (rows and NUMBERS.issuperset(map(type, chain.from_iterable(values)))):
        return 0
    return MIN_VALUE_BYTES * (len(values[0]) or 1)


def compact(batch: Batch, size: int) -> tuple[list[Entry], int]:
    """Return values of ``size`` bytes each as they take least memory, and how much."""
    count = len(batch.events)
    columns = as_columns(batch.values) if count >= MIN_BATCH_VALUES else None
    if columns is None:
        sizes = repeat(size + ITEM_OVERHEAD_BYTES, count)
        items: list[Entry] = list(zip(batch.numbers, batch.events, batch.times, batch.values, sizes, strict=True))
        return items, count * (size + ITEM_OVERHEAD_BYTES)
    rows = columns.nbytes + ROW_OVERHEAD_BYTES * count
    nbytes = BATCH_OVERHEAD_BYTES + COLUMN_OVERHEAD_BYTES * len(columns.columns) + rows
    return [batch._replace(values=columns, nbytes=nbytes)], nbytes


def bytes_in(entries: Sequence[Entry]) -> int:
    """Return the bytes that entries of a ring take."""
    if Batch in set(map(type, entries)):
        return sum([one.nbytes if isinstance(one, Batch) else one[4] for one in entries])
    return sum(map(_ITEM_BYTES, entries))


def last_of(entry: Entry) -> int:
    """Return the number of the last value of an entry."""
    return entry.first + len(entry.events) - 1 if isinstance(entry, Batch) else entry[0]


def single_items(entry: Entry) -> list[Item]:
    """Return the values of an entry one by one."""
    if not isinstance(entry, Batch):
        return [entry]
    sizes = repeat(entry.nbytes // len(entry.events), len(entry.events))
    return list(zip(entry.numbers, entry.events, entry.times, entry.values, sizes, strict=True))


def batch_of(items: Sequence[Item]) -> Batch:
    """Return single values with consecutive numbers as columns."""
    numbers, events, times, values, sizes = zip(*items, strict=True)
    return Batch(numbers[0], array("q", events), array("d", times), values, nbytes=sum(sizes))


def leading(entries: Sequence[Entry], after: int, count: int, size: int) -> tuple[Batch, int]:
    """Return the first values above ``after``, and how many entries end in them.

    At most ``count`` of ``size`` bytes together, but at least one. Batches stay columns; single values become some.
    """
    head = entries[0]
    if isinstance(head, Batch):
        rest = head if head.first > after else head.part(after + 1 - head.first)
        return _leading_batches(rest, entries[1:], count, size)
    items: Sequence[Any] = entries[:count]
    kinds = [*map(type, items)]
    if Batch in kinds:
        items = items[: kinds.index(Batch)]
    batch = batch_of(items)
    if items[-1][0] - head[0] < len(items) and batch.nbytes <= size:
        return batch, len(items)
    totals = enumerate(accumulate([item[4] for item in items]))
    whole = next((i for i, total in totals if items[i][0] != head[0] + i or (i and total > size)), len(items))
    return batch_of(items[:whole]), whole


def _leading_batches(head: Batch, more: Sequence[Entry], count: int, size: int) -> tuple[Batch, int]:
    values, total = len(head.events), head.nbytes
    fits = min(count, max(1, size * values // max(1, total)))
    if fits < values:
        return head.part(0, fits), 0
    parts = [head]
    for entry in more:
        if not isinstance(entry, Batch) or entry.first != head.first + values or not _alike(head.values, entry.values):
            break
        values, total = values + len(entry.events), total + entry.nbytes
        if values > count or total > size:
            break
        parts.append(entry)
    return (_joined(parts) if len(parts) > 1 else head), len(parts)


def _alike(values: Sequence[Any], more: Sequence[Any]) -> bool:
    """Return True if both are columns of the same types."""
    return isinstance(values, ValueColumns) and isinstance(more, ValueColumns) and values.like(more)


def _joined(parts: Sequence[Batch]) -> Batch:
    """Return columns that follow each other as one batch."""
    first, events, times = parts[0].first, array("q"), array("d")
    for part in parts:
        events += part.events
        times += part.times
    values: Sequence[Any] | None = joined_columns([part.values for part in parts])
    if values is None:  # texts of too many kinds
        values = [*chain.from_iterable(part.values for part in parts)]
    return Batch(first, events, times, values, nbytes=bytes_in(parts))
