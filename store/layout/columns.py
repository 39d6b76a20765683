"""Values as columns of a table and back: numbers as numbers, so that plain SQL works; the rest packed beside them.

A number is in ``value`` and nothing is in ``packed``. A row of plain values (what "step, loss" yields) is a JSON array
in ``packed``, which SQLite looks into by itself (`packed ->> 1`). Anything else, and what JSON cannot say exactly (NaN
in a row), is a msgpack blob in ``packed``. A truth value and NaN are both: 1, 0 or NULL, and what they were.
"""

from __future__ import annotations

from typing import Any

import msgspec

from looptap.protocol.codec import SCALAR_TYPES, Scalar, pack, unpack
from looptap.store.errors import StoreError
from looptap.streams.errors import LooptapError, SnapshotError
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch

COLUMN_COUNT = 9
"""Columns of an item."""
MAX_VALUE_BYTES = 500_000_000
"""Bytes of a value; SQLite's own bound is twice that."""

_json = msgspec.json.Encoder().encode
_row = msgspec.json.Decoder(tuple[Scalar, ...]).decode
_NAN, _TRUE, _FALSE = pack(float("nan")), pack(True), pack(False)
_INTEGER_LIMIT = 1 << 63


def stored(value: Any) -> tuple[Any, Any]:
    """``value`` as the columns value and packed. Raises SnapshotError for what cannot be packed.

    >>> stored(0.5), stored((3, 0.5)), stored(True)[0]
    ((0.5, None), (None, '[3,0.5]'), 1)
    """
    kind = type(value)
    if kind is float:
        return (value, None) if value == value else (None, _NAN)
    if kind is tuple and SCALAR_TYPES.issuperset(map(type, value)):
        try:
            text = _json(value)
            if b"null" not in text:  # what JSON says for None, NaN and infinities alike
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
    """Return the value that `stored` was given. Raises StoreError for what it cannot have made."""
    if packed is None:
        if isinstance(value, int | float):
            return value
        raise StoreError(f"A stored value has no number and no bytes ({value!r:.40}): the file is damaged.")
    try:
        return _row(packed) if isinstance(packed, str) else unpack(packed)
    except (LooptapError, ValueError, RecursionError, TypeError) as error:
        raise StoreError(f"A stored value cannot be read: {error}") from None


def fact(value: Any) -> Any:
    """``value`` in one column: a number, a text or None as it is, else packed; what cannot be packed as its repr."""
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
        except Exception:  # as of an integer of 5,000 digits
            return str(error)


def fact_of(column: Any) -> Any:
    """Return what `fact` was given."""
    return restored(None, column) if isinstance(column, bytes) else column


def parameters(stream: int, batch: Batch) -> list[Any]:
    """Return the items of a batch, `COLUMN_COUNT` parameters each, one after the other."""
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
