"""Pages: many consecutive items of a stream as one row of columns.

Values of one type a field (see `ValueColumns`) are typed buffers, so that a million of them are read and written
without an object for each. A checksum tells a damaged page, in which any other byte would still be a number.
"""

from __future__ import annotations

import math
from array import array
from itertools import accumulate
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from looptap.protocol.types.built_types import built
from looptap.protocol.values.column_form import DTYPES, ShortText, buffer_of, column_of
from looptap.store.errors import StoreError
from looptap.store.layout.scalar_columns import little_endian
from looptap.streams.columns.value_columns import MAX_COLUMNS, MAX_TEXTS, TextColumn, ValueColumns
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch

PAGE_ITEMS, PAGE_BYTES = 4096, 262_144
"""Items of a page, or fewer if they have so many bytes; no reader relies on either."""
MAX_ITEM_NUMBER = 1 << 62
"""Highest number of an item or event; no run reaches it."""
INSERT_PAGE = "INSERT OR IGNORE INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PAGE_COLUMNS = "stream, first, count, event, rank, clock, rows, checksum, layout, flags, events, times, columns"

_ALIGNMENT_BYTES, _NUMBER_BYTES = 8, 8  # of a column in its blob; of an event and of a time
_PROGRESSION_ITEMS = 2  # numbers that say all events of more items, if they are as far from each other
_MAX_NARROW_TEXTS = 256  # whose indices are one byte each


class PageRow(NamedTuple):
    """A row of the table ``pages``."""

    stream: int
    first: int
    length: int
    event: int
    rank: int
    clock: float
    rows: int
    checksum: int
    layout: str
    flags: bytes | None
    events: bytes
    times: bytes
    columns: bytes

    def checked(self) -> int:
        """Return the checksum that the other columns have."""
        head = msgspec.json.encode((*self[:7], self.layout))
        found = crc32(self.flags or b"", crc32(head))
        return crc32(self.columns, crc32(self.times, crc32(self.events, found)))


class _Column(msgspec.Struct, array_like=True, frozen=True):
    """An element of the JSON array ``layout``."""

    code: str
    """The type of the items: see `looptap.protocol.values.column_form`."""
    offset: int
    """Of the first item in the blob ``columns``, in bytes."""
    texts: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_TEXTS)] = ()


_Layout = Annotated[tuple[_Column, ...], msgspec.Meta(min_length=1, max_length=MAX_COLUMNS)]
_decode = msgspec.json.Decoder(built(_Layout)).decode


def page_of(stream: int, batch: Batch, values: ValueColumns) -> PageRow:
    """Return a batch as a page. Raises ValueError for a text with a lone surrogate."""
    packed = [buffer_of(_narrow(column) if isinstance(column, TextColumn) else column) for column in values.columns]
    sizes = [-(-len(buffer) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for _, buffer in packed]
    offsets = accumulate(sizes[:-1], initial=0)
    layout = [
        (code, offset, column.texts) if isinstance(column, TextColumn) else (code, offset)
        for (code, _), offset, column in zip(packed, offsets, values.columns, strict=True)
    ]
    row = PageRow(
        stream,
        batch.first,
        len(values),
        batch.events[-1],
        batch.rank,
        batch.clock,
        int(values.rows),
        0,
        msgspec.json.encode(layout).decode(),
        bytes(batch.flags) if any(batch.flags) else None,
        little_endian(_short(batch.events)).tobytes(),
        little_endian(batch.times).tobytes(),
        b"".join(buffer.ljust(size, b"\0") for (_, buffer), size in zip(packed, sizes, strict=True)),
    )
    return row._replace(checksum=row.checked())


def _short(events: array[int]) -> array[int]:
    """Return the first event and the distance of two, if that is the same for all."""
    if len(events) > _PROGRESSION_ITEMS:
        steps = np.diff(np.frombuffer(events, np.int64))  # modulo 2^64, as `_long` adds them up
        if (steps == steps[0]).all():
            return array("q", (events[0], int(steps[0])))
    return events


def _long(events: array[int], count: int) -> array[int]:
    """Return the events of `_short`."""
    if count <= _PROGRESSION_ITEMS or len(events) != _PROGRESSION_ITEMS:
        return events
    first, step = np.frombuffer(events, np.int64)
    return array("q", (first + np.arange(count) * step).tobytes())


def _narrow(column: TextColumn) -> TextColumn:
    if len(column.texts) > _MAX_NARROW_TEXTS or column.indices.itemsize == 1:
        return column
    return TextColumn(column.indices.astype(np.uint8), column.texts)


def items_of(row: tuple[Any, ...]) -> Batch:
    """Return the items of a page. Raises StoreError if it is damaged."""
    try:
        page = msgspec.convert(row, built(PageRow))
        if page.checksum != page.checked():
            raise ValueError("its checksum is another")
        return _batch(page)
    except (ValueError, OverflowError, RecursionError) as error:
        raise StoreError(f"A page of stored values cannot be read ({error}): the file is damaged.") from None


def _batch(page: PageRow) -> Batch:
    count, flags = page.length, page.flags or b""
    if not (0 < page.first <= MAX_ITEM_NUMBER and 0 < count <= MAX_ITEM_NUMBER and math.isfinite(page.clock)):
        raise ValueError(f"{count:,} items from {page.first:,} on")
    even = len(page.times) == _NUMBER_BYTES * count and len(flags) in (0, count)
    events = _long(little_endian(array("q", page.events)), count) if even else array("q")
    if len(events) != count:
        raise ValueError("its columns have different lengths")
    if any(np.frombuffer(flags, np.uint8) & ERROR):
        raise ValueError("it has an error among its values")
    values = _values(page)
    return Batch(
        page.first, events, little_endian(array("d", page.times)), values, page.clock, flags, page.rank, values.nbytes
    )


def _values(page: PageRow) -> ValueColumns:
    layout, columns, end = _decode(page.layout), [], 0
    if len(layout) > 1 and not page.rows:
        raise ValueError(f"{len(layout)} columns of scalars")
    data = memoryview(page.columns)
    for one in layout:
        if one.offset != end:
            raise ValueError(f"a column at {one.offset:,} in place of {end:,}")
        size = page.length * DTYPES[one.code].itemsize if one.code in DTYPES else 0
        if end + size > len(data):
            raise ValueError("a column is too short")
        columns.append(column_of(one.code, data[end : end + size], one.texts))
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    if end != len(data):
        raise ValueError(f"{len(data):,} bytes in place of {end:,}")
    return ValueColumns(columns, bool(page.rows))
