"""Values from the training thread to the I/O thread: single ones and blocks.

A value that comes alone is a bare tuple, which costs least to make. Those of many events are a block of columns, made
once and sliced, joined and sent without an object for each value.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeAlias

from looptap.streams.columns.value_columns import ValueColumns, joined
from looptap.streams.values.snapshots import NUMBERS

MIN_VALUE_BYTES = 64
"""Every value counts as at least this large."""


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
"""One value in a queue: its number, the number and time of its event, the value, its bytes."""


class ValueBlock:
    """Values column by column, numbered from ``first`` on, of ``size`` bytes each."""

    __slots__ = ("events", "first", "size", "times", "values")

    def __init__(
        self, first: int, events: Sequence[int], times: Sequence[float], values: Sequence[Any], size: int
    ) -> None:
        self.first, self.events, self.times, self.values, self.size = first, events, times, values, size

    def __len__(self) -> int:
        return len(self.events)

    def part(self, start: int, stop: int) -> ValueBlock:
        """Return some of the values."""
        cut = slice(start, stop)
        return ValueBlock(self.first + start, self.events[cut], self.times[cut], self.values[cut], self.size)

    def items(self) -> list[Item]:
        """Return the values one by one."""
        numbers = range(self.first, self.first + len(self))
        return list(zip(numbers, self.events, self.times, self.values, repeat(self.size), strict=False))

    def follows(self, other: ValueBlock) -> bool:
        """Return True if both can be one block, this one behind ``other``."""
        if self.first != other.first + len(other) or self.size != other.size:
            return False
        mine, others = self.values, other.values
        if isinstance(mine, ValueColumns) and isinstance(others, ValueColumns):
            return mine.like(others)
        return type(mine) is type(others)


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


class ValueBatch(NamedTuple):
    """Values with consecutive numbers, column by column."""

    numbers: range
    events: Sequence[int]
    times: Sequence[float]
    values: Sequence[Any]
    nbytes: int

    def part(self, start: int, stop: int) -> ValueBatch:
        """Return the values from place ``start`` to before ``stop``.

        They have their share of the bytes.
        """
        here, count = slice(start, stop), len(self.numbers)
        return ValueBatch(
            self.numbers[here], self.events[here], self.times[here], self.values[here],
            self.nbytes * (stop - start) // count,
        )  # fmt: skip

    @classmethod
    def of_items(cls, items: Sequence[Item]) -> ValueBatch | None:
        """Return items as columns; None if there are none."""
        if not items:
            return None
        numbers, events, times, values, sizes = zip(*items, strict=True)
        return cls(range(numbers[0], numbers[0] + len(numbers)), events, times, values, sum(sizes))

    @classmethod
    def of_blocks(cls, blocks: Sequence[ValueBlock]) -> ValueBatch:
        """Return blocks that follow each other as one."""
        first, *more = blocks
        events, times, values = first.events, first.times, first.values
        if more:
            events, times = array("q", events), array("d", times)
            for block in more:
                events.extend(block.events)
                times.extend(block.times)
            values = joined([block.values for block in blocks]) or [*chain.from_iterable(b.values for b in blocks)]
        return cls(range(first.first, first.first + len(events)), events, times, values, first.size * len(events))


def leading(entries: Sequence[Item | ValueBlock], count: int, size: int) -> ValueBatch | None:
    """Return the first of the values, those that can be one batch.

    At most ``count`` of ``size`` bytes together, but at least one; None if there are none.
    """
    if not entries:
        return None
    if type(entries[0]) is ValueBlock:
        return ValueBatch.of_blocks(_leading_blocks(entries, count, size))
    items = entries[:count]
    kinds = [*map(type, items)]
    return _leading_items(items[: kinds.index(ValueBlock)] if ValueBlock in kinds else items, size)


def _leading_blocks(entries: Sequence[Item | ValueBlock], count: int, size: int) -> list[ValueBlock]:
    found: list[ValueBlock] = []
    for block in entries:
        if type(block) is not ValueBlock or (found and not block.follows(found[-1])):
            break
        fits = min(count, size // block.size or not found)
        if fits < len(block):
            if fits > 0:
                found.append(block.part(0, fits))
            break
        found.append(block)
        count, size = count - len(block), size - len(block) * block.size
    return found


def _leading_items(items: Sequence[Any], size: int) -> ValueBatch | None:
    batch = ValueBatch.of_items(items)
    if batch is None or (items[-1][0] - items[0][0] < len(items) and batch.nbytes <= size):
        return batch
    first, total = items[0][0], 0
    for i, item in enumerate(items):
        total += item[4]
        if item[0] != first + i or (i and total > size):
            return ValueBatch.of_items(items[:i])
    return batch
