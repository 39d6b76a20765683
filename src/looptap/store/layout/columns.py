"""Convert values to table columns and back.

A number is in ``value``, so that plain SQL works, and ``packed`` is NULL. A row of plain values (the result of "step,
loss") is a JSON array in ``packed``, which SQLite can index (`packed ->> 1`). Anything else, and what JSON cannot
represent exactly (NaN in a row), is a msgpack blob in ``packed``. Booleans and NaN use both columns: 1, 0 or NULL in
``value``, and the original in ``packed``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from looptap.protocol.types.built_types import built
from looptap.protocol.values.packing import SCALAR_TYPES, pack
from looptap.protocol.values.unpacking import Scalar, unpack
from looptap.store.errors import StoreError
from looptap.streams.errors import LooptapError, SnapshotError
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch

COLUMN_COUNT = 9
"""Columns of an item."""
MAX_VALUE_BYTES = 500_000_000
"""Bytes of a value; SQLite's own bound is twice that."""

_json = msgspec.json.Encoder().encode
_row = msgspec.json.Decoder(built(tuple[Scalar, ...])).decode
_NAN, _TRUE, _FALSE = pack(float("nan")), pack(True), pack(False)
_INTEGER_LIMIT = 1 << 63


def stored(value: Any) -> tuple[Any, Any]:
    """Return the columns value and packed. Raises SnapshotError if it cannot pack.

    >>> stored(0.5), stored((3, 0.5)), stored(True)[0]
    ((0.5, None), (None, '[3,0.5]'), 1)
    """
    kind = type(value)
    if kind is float:
        return (value, None) if value == value else (None, _NAN)
    if kind is tuple and SCALAR_TYPES.issuperset(map(type, value)):
        try:
            text = _json(value)
            if b"null" not in text:  # JSON has null for None, NaN and infinities alike
                return None, text.decode()
        except (OverflowError, UnicodeEncodeError):  # an integer beyond 64 bits, a lone surrogate
            pass
    elif kind is int:
        return (value, None) if -_INTEGER_LIMIT <= value < _INTEGER_LIMIT else (None, pack(value))
    elif kind is bool:
        return int(value), _TRUE if value else _FALSE
    packed = pack(value)
    if len(packed) > MAX_VALUE_BYTES:
        raise SnapshotError(f"The result has {len(packed):,} bytes, more than the store takes. Reduce it in the query.")
    return None, packed


def restored(value: Any, packed: Any) -> Any:
    """Return the value from the columns of `stored`. Raises StoreError if damaged."""
    if packed is None:
        if isinstance(value, int | float):
            return value
        raise StoreError(f"A stored value has no number and no bytes ({value!r:.40}): the file is damaged.")
    try:
        return _row(packed) if isinstance(packed, str) else unpack(packed)
    except (LooptapError, ValueError, RecursionError, TypeError) as error:
        raise StoreError(f"A stored value cannot be read: {error}") from None


def fact(value: Any) -> Any:
    """Return ``value`` for one column: plain, else packed, else its repr."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return pack(value)
        return value
    try:
        number, packed = (None, None) if value is None else stored(value)
        return number if packed is None else pack(value)
    except SnapshotError as error:
        try:
            return f"{value!r:.1000}"
        except Exception:  # such as an integer of 5,000 digits
            return str(error)


def fact_of(column: Any) -> Any:
    """Return the value that `fact` stored."""
    return restored(None, column) if isinstance(column, bytes) else column


def item_parameters(stream: int, batch: Batch) -> list[Any]:
    """Return the SQL parameters of a batch, `COLUMN_COUNT` for each item."""
    out: list[Any] = []
    first, clock, rank = batch.first, batch.clock, batch.rank
    flags = batch.flags or bytes(len(batch.values))
    columns = zip(batch.events, batch.times, batch.values, flags, strict=True)
    for number, (event, time, value, flag) in enumerate(columns, first):
        try:
            plain, packed = stored(value)
        except SnapshotError as error:
            plain, packed, flag = None, pack(str(error)), flag | ERROR
        out += (stream, number, event, rank, time, time + clock, flag, plain, packed)
    return out
