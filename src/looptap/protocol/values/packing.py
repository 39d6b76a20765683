"""Pack values as msgpack with raw buffers.

Scalars and flat tuples of scalars are packed in C, column by column where each column has one type. Any other value is
`PACKED`: msgpack in which an array is a list, and tuples, sets, arrays, tensors and the like are extension types.
Buffers are little-endian, and copied once. There is no pickle.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np

from looptap.protocol.messages import COLUMNS, PACKED, ROWS, SCALARS
from looptap.protocol.values import extensions, tensors
from looptap.protocol.values.column_form import pack_columns
from looptap.protocol.values.extensions import MAX_DEPTH, MAX_INTEGER_BITS
from looptap.protocol.values.unpacking import check_size
from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.errors import SnapshotError
from looptap.streams.values.described import Image
from looptap.streams.values.rows import Row
from looptap.streams.values.torch_interop import is_tensor

MIN_COLUMN_VALUES = 8
"""Fewer values are smaller, and sooner unpacked, one by one."""
SCALAR_TYPES = frozenset({bool, int, float, str, type(None)})  # which msgpack and JSON hold as they are

_encode = msgspec.msgpack.Encoder().encode


def pack_values(values: Sequence[Any], *, columns: bool = True) -> tuple[int, bytes]:
    """Pack a list of snapshots, or columns. Raises SnapshotError for a misfit.

    The error has the misfit's type and path. From `MIN_COLUMN_VALUES` on values are packed in columns if that is exact,
    but never with ``columns`` false, for a reader that does not know that form.

    >>> pack_values([1, 2.5, None])[0] == SCALARS, pack_values([(1, 2.5), (2, 2.4)])[0] == ROWS
    (True, True)
    >>> pack_values([(step, 0.5) for step in range(100)])[0] == COLUMNS
    True
    """
    if columns and len(values) >= MIN_COLUMN_VALUES and (found := as_columns(values)) is not None:
        try:
            return COLUMNS, pack_columns(found)
        except ValueError:  # a lone surrogate
            pass
    values = values.tolist() if isinstance(values, ValueColumns) else values
    kinds = set(map(type, values))
    try:
        if kinds <= SCALAR_TYPES:
            return SCALARS, _encode(values)
        if kinds == {tuple} and SCALAR_TYPES.issuperset(map(type, chain.from_iterable(values))):
            return ROWS, _encode(values)
    except (OverflowError, UnicodeEncodeError):  # an integer beyond 64 bits, a lone surrogate
        pass
    return PACKED, pack(values)


def pack(value: Any) -> bytes:
    """Pack one snapshot. Raises SnapshotError with the type and path of a misfit.

    >>> from looptap.protocol.values.unpacking import unpack
    >>> unpack(pack({"shape": (2, 3), 7: {1 + 2j}}))
    {'shape': (2, 3), 7: {(1+2j)}}
    """
    parts: list[bytes | memoryview] = []
    try:
        _emit(value, parts, 0)
        raw = b"".join(parts)
        check_size(raw)
    except _Misfit as misfit:
        raise SnapshotError(f"The result{misfit.path} {misfit.reason}") from None
    except Exception as error:  # whatever a value's own methods raise
        raise SnapshotError(f"The result cannot be sent ({error}). Reduce it in the query.") from None
    return raw


_Parts: TypeAlias = list[bytes | memoryview]
_Emitter: TypeAlias = Callable[[Any, _Parts, int], None]


class _Misfit(Exception):
    """A value that cannot be sent; its path grows as the exception propagates."""

    def __init__(self, reason: str) -> None:
        self.reason, self.path = reason, ""


def _emit(value: Any, parts: _Parts, depth: int) -> None:
    kind = type(value)
    if kind in SCALAR_TYPES:
        try:
            parts.append(_encode(value))
        except OverflowError:
            if value.bit_length() > MAX_INTEGER_BITS:
                raise _Misfit("is an integer of more than 4,300 digits. Send its logarithm, or a float.") from None
            _emit_extension(extensions.BIG, [value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)], parts)
        except UnicodeEncodeError:
            _emit_extension(extensions.TEXT, [value.encode("utf-8", "surrogatepass")], parts)
        return
    if depth >= MAX_DEPTH:
        raise _Misfit(f"is nested more than {MAX_DEPTH} deep, or contains itself.")
    emitter = _emitters.get(kind) or _emitter_of_subclass(value)
    emitter(value, parts, depth)


def _emitter_of_subclass(value: Any) -> _Emitter:
    for base, emitter in _emitters.items():
        if isinstance(value, base):
            return emitter
    if is_tensor(value):
        return _emit_tensor
    kind = type(value)
    raise _Misfit(
        f"is of type {kind.__module__}.{kind.__qualname__}, which cannot be sent. "
        "Return numbers, text, tuples, lists, dicts, sets, arrays, tensors or pictures."
    )


def _emit_items(items: Sequence[Any], parts: _Parts, depth: int) -> None:
    """Emit an array of the items, in C if they are plain."""
    if SCALAR_TYPES.issuperset(map(type, items)):
        try:
            parts.append(_encode(items))
            return
        except (OverflowError, UnicodeEncodeError):
            pass
    parts.append(_header(0x90, 0xDC, len(items)))
    for i, item in enumerate(items):
        try:
            _emit(item, parts, depth + 1)
        except _Misfit as misfit:
            misfit.path = f"[{i}]{misfit.path}"
            raise


def _emit_dict(value: dict[Any, Any], parts: _Parts, depth: int) -> None:
    if SCALAR_TYPES.issuperset(map(type, value)) and SCALAR_TYPES.issuperset(map(type, value.values())):
        try:
            parts.append(_encode(value if type(value) is dict else dict(value)))
            return
        except (OverflowError, UnicodeEncodeError):
            pass
    parts.append(_header(0x80, 0xDE, len(value)))
    for key, item in value.items():
        try:
            _emit(key, parts, depth + 1)
            _emit(item, parts, depth + 1)
        except _Misfit as misfit:
            misfit.path = f"[{_name(key)}]{misfit.path}"
            raise


def _name(key: Any) -> str:
    try:
        return f"{key!r:.40}"
    except Exception:  # such as an integer of 5,000 digits
        return type(key).__name__


def _header(small: int, large: int, length: int) -> bytes:
    if length < 16:
        return bytes((small | length,))
    return struct.pack(">BH", large, length) if length < 1 << 16 else struct.pack(">BI", large + 1, length)


def _emit_extension(code: int, body: _Parts, parts: _Parts) -> None:
    size = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in body)
    if size >= 1 << 32:
        raise _Misfit(f"holds {size:,} bytes, more than 4 GiB. Reduce it in the query.")
    short = size < 256
    parts.append(struct.pack(">BBb" if short else ">BIb", 0xC7 if short else 0xC9, size, code))
    parts += body


def _emitter_of_items(code: int, items: Callable[[Any], tuple[Any, ...]] = tuple) -> _Emitter:
    def emit(value: Any, parts: _Parts, depth: int) -> None:
        body: _Parts = []
        _emit_items(items(value), body, depth)
        _emit_extension(code, body, parts)

    return emit


def _emitter_of_body(code: int, body: Callable[[Any], _Parts]) -> _Emitter:
    def emit(value: Any, parts: _Parts, depth: int) -> None:
        try:
            pieces = body(value)
        except tensors.MalformedArray as error:
            raise _Misfit(str(error)) from None
        _emit_extension(code, pieces, parts)

    return emit


def _emit_numpy_scalar(value: np.generic, parts: _Parts, depth: int) -> None:
    plain = value.item() if value.dtype.kind in "biufcSU" else value
    _emit(np.asarray(value) if isinstance(plain, np.generic) else plain, parts, depth)


def _emit_struct(value: msgspec.Struct, parts: _Parts, depth: int) -> None:
    """Emit a struct as the dict of its fields, with its tag if it has one."""
    config, fields = value.__struct_config__, msgspec.structs.asdict(value)
    _emit_dict({config.tag_field: config.tag, **fields} if config.tag else fields, parts, depth)


def _emit_as(convert: Callable[[Any], Any]) -> _Emitter:
    return lambda value, parts, depth: _emit(convert(value), parts, depth + 1)


_emit_tensor = _emitter_of_body(extensions.TENSOR, tensors.tensor_parts)


def _iso(value: Any) -> _Parts:
    text = value.isoformat()
    if not text[:1].isdigit():
        raise tensors.MalformedArray(f"is {value!r:.40}, which has no ISO form.")  # pandas.NaT says it is a datetime
    return [text.encode()]


# Looked up by exact type first, then tried in this order: a datetime is a date, a named tuple a tuple.
_emitters: dict[type, _Emitter] = {
    Row: _emitter_of_items(extensions.ROW, lambda row: (list(row._fields), *row)),
    tuple: _emitter_of_items(extensions.TUPLE),
    list: _emit_items,
    dict: _emit_dict,
    np.ndarray: _emitter_of_body(extensions.ARRAY, tensors.array_parts),
    bytes: lambda value, parts, depth: parts.append(_encode(bytes(value))),
    set: _emitter_of_items(extensions.SET),
    frozenset: _emitter_of_items(extensions.FROZENSET),
    Image: _emitter_of_body(extensions.IMAGE, lambda v: [struct.pack("<II", v.width, v.height), v.png]),
    np.generic: _emit_numpy_scalar,
    msgspec.Struct: _emit_struct,
    complex: _emitter_of_body(extensions.COMPLEX, lambda v: [struct.pack("<dd", v.real, v.imag)]),
    datetime.datetime: _emitter_of_body(extensions.DATETIME, _iso),
    datetime.date: _emitter_of_body(extensions.DATE, _iso),
    datetime.time: _emitter_of_body(extensions.TIME, _iso),
    datetime.timedelta: _emitter_of_body(
        extensions.TIMEDELTA, lambda v: [struct.pack("<iii", v.days, v.seconds, v.microseconds)]
    ),
    bytearray: _emit_as(bytes),
    memoryview: _emit_as(bytes),
    # subclasses, such as the members of an IntEnum
    int: _emit_as(int.__int__),
    float: _emit_as(float.__float__),
    str: _emit_as(str.__str__),
}
