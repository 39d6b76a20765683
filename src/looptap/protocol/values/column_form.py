"""The form COLUMNS: a type code and a raw little-endian buffer for each field.

It is a msgpack array: whether the values are rows, then for each column its code, its buffer, and of texts the
different ones, into which the buffer has indices. A row costs the sender and the reader nothing but its bytes.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from looptap.protocol.types.built_types import built
from looptap.protocol.values import footprint
from looptap.streams.columns.value_columns import (
    MAX_COLUMNS,
    MAX_TEXT_CHARACTERS,
    MAX_TEXTS,
    Column,
    TextColumn,
    ValueColumns,
)

INTEGERS, FLOATS, BOOLEANS, FEW_TEXTS, TEXTS = "q", "d", "?", "B", "H"
"""Codes of a column: int64, float64, a byte 0 or 1, and texts by indices of one byte or two."""
DTYPES: dict[str, Any] = {
    INTEGERS: np.dtype("<i8"),
    FLOATS: np.dtype("<f8"),
    BOOLEANS: np.dtype("u1"),
    FEW_TEXTS: np.dtype("u1"),
    TEXTS: np.dtype("<u2"),
}
"""The type of a column's items in its buffer, by code."""
_NATIVE: dict[str, Any] = {INTEGERS: np.int64, FLOATS: np.float64, FEW_TEXTS: np.uint8, TEXTS: np.uint16}
_CODES = {"i": INTEGERS, "f": FLOATS, "b": BOOLEANS}

ShortText = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]
"""A text of a column."""


class _PackedColumn(msgspec.Struct, array_like=True, frozen=True):
    code: str
    buffer: bytes
    texts: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_TEXTS)] = ()


class _PackedColumns(msgspec.Struct, array_like=True, frozen=True):
    rows: bool
    columns: Annotated[tuple[_PackedColumn, ...], msgspec.Meta(min_length=1, max_length=MAX_COLUMNS)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(built(_PackedColumns)).decode


def pack_columns(values: ValueColumns) -> bytes:
    """Pack columns. Raises ValueError for what a reader would refuse.

    That is a text with a lone surrogate, or more values than fit in memory as a list.
    """
    raw = _encode(_PackedColumns(values.rows, tuple(map(_packed, values.columns))))
    _check_memory(values, len(raw))
    return raw


def _packed(column: Column) -> _PackedColumn:
    code, items = _items_of(column)
    view = np.ascontiguousarray(items).data  # which is packed as its bytes are, without a copy of them
    return _PackedColumn(code, view, column.texts if isinstance(column, TextColumn) else ())  # type: ignore[arg-type]


def unpack_columns(raw: bytes | memoryview | msgspec.Raw) -> ValueColumns:
    """Unpack columns, which own their memory. Raises ValueError."""
    found = _decode(raw)
    if not found.rows and len(found.columns) > 1:
        raise ValueError(f"{len(found.columns)} columns of scalars")
    values = ValueColumns([column_of(one.code, one.buffer, one.texts) for one in found.columns], found.rows)
    _check_memory(values, len(raw))
    return values


def _check_memory(values: ValueColumns, size: int) -> None:
    if values.list_bytes > footprint.FREE_BYTES + footprint.BYTES_PER_BYTE * size:
        raise ValueError(f"{size:,} bytes in columns that would take {values.list_bytes:,} of memory as a list")


def buffer_of(column: Column) -> tuple[str, bytes]:
    """Return the code of a column and its items as bytes, of texts the indices.

    >>> column_of(*buffer_of(np.array([1, 2]))).tolist()
    [1, 2]
    """
    code, items = _items_of(column)
    return code, items.tobytes()


def _items_of(column: Column) -> tuple[str, NDArray[Any]]:
    if isinstance(column, TextColumn):
        code = FEW_TEXTS if column.indices.itemsize == 1 else TEXTS
        return code, column.indices.astype(DTYPES[code], copy=False)
    code = _CODES[column.dtype.kind]
    return code, column.astype(DTYPES[code], copy=False)


def column_of(code: str, buffer: bytes | memoryview, texts: tuple[str, ...] = ()) -> Column:
    """Return the column of `buffer_of`, which shares the memory. Raises ValueError."""
    if (dtype := DTYPES.get(code)) is None:
        raise ValueError(f"a column of the unknown type {code!r:.40}: the sender may be newer than this looptap")
    items = np.frombuffer(buffer, dtype)
    if code == BOOLEANS:
        if items.size and int(items.max()) > 1:
            raise ValueError("a truth value that is neither")
        return items.view(np.bool_)
    items = items.astype(_NATIVE[code], copy=False)
    if code not in (FEW_TEXTS, TEXTS):
        return items
    if items.size and int(items.max()) >= len(texts):
        raise ValueError(f"the text {int(items.max())} of {len(texts)}")
    return TextColumn(items, texts)
