"""Unpack values from msgpack with raw buffers; hostile bytes are refused.

What decodes arrays is imported where the first one comes: a client that asks only for facts starts without numpy.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from looptap.protocol.errors import MessageError, malformed
from looptap.protocol.messages import COLUMNS, PACKED, ROWS, SCALARS
from looptap.protocol.types.built_types import built
from looptap.protocol.values import extensions, footprint
from looptap.protocol.values.extensions import MAX_DEPTH, MAX_INTEGER_BITS
from looptap.streams.values.described import Image
from looptap.streams.values.rows import row_of

if TYPE_CHECKING:
    from looptap.streams.columns.value_columns import ValueColumns

Scalar: TypeAlias = bool | int | float | str | None

_Decode: TypeAlias = Callable[[bytes | memoryview | msgspec.Raw], Any]
_decode_scalars = msgspec.msgpack.Decoder(built(list[Scalar])).decode
_decode_rows = msgspec.msgpack.Decoder(built(list[tuple[Scalar, ...]])).decode


def unpack_values(form: int, raw: bytes | memoryview | msgspec.Raw) -> list[Any] | ValueColumns:
    """Unpack the values of `pack_values`. Raises MessageError, and nothing else."""
    try:
        check_size(raw)
        if form == COLUMNS:
            from looptap.protocol.values.column_form import unpack_columns

            return unpack_columns(raw)
        if form == SCALARS:
            return _decode_scalars(raw)
        if form == ROWS:
            return _decode_rows(raw)
        if form == PACKED and type(values := _decoders[0](raw)) is list:
            return values
    except Exception as error:
        raise malformed("Values that cannot be decoded", error) from None
    raise MessageError(f"Values of the unknown form {form!r:.40}: the sender may be newer than this looptap.")


def unpack(raw: bytes | memoryview | msgspec.Raw) -> Any:
    """Unpack the value of `pack`. Raises MessageError, and nothing else."""
    try:
        check_size(raw)
        return _decoders[0](raw)
    except Exception as error:
        raise malformed("A value that cannot be decoded", error) from None


def check_size(raw: bytes | memoryview | msgspec.Raw) -> None:
    """Raise ValueError for bytes that would take too much memory once decoded."""
    if len(raw) > footprint.SMALL_BYTES:
        sets = frozenset({extensions.SET, extensions.FROZENSET})
        footprint.check_memory(memoryview(raw), frozenset(CONTAINERS), sets)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _big(data: memoryview) -> int:
    found = int.from_bytes(data, "little", signed=True)
    if found.bit_length() > MAX_INTEGER_BITS:
        raise ValueError(f"an integer of {len(data):,} bytes")
    return found


def _array(data: memoryview) -> Any:
    from looptap.protocol.values import tensors

    return tensors.array(data)


def _tensor(data: memoryview) -> Any:
    from looptap.protocol.values import tensors

    return tensors.tensor(data)


def _image(data: memoryview) -> Image:
    return Image(bytes(data[8:]), *struct.unpack("<II", data[:8]))


_leaves: dict[int, Callable[[memoryview], Any]] = {
    extensions.BIG: _big,
    extensions.COMPLEX: lambda data: complex(*struct.unpack("<dd", data)),
    extensions.ARRAY: _array,
    extensions.TENSOR: _tensor,
    extensions.IMAGE: _image,
    extensions.TEXT: _text,
    extensions.DATETIME: lambda data: datetime.datetime.fromisoformat(_text(data)),
    extensions.DATE: lambda data: datetime.date.fromisoformat(_text(data)),
    extensions.TIME: lambda data: datetime.time.fromisoformat(_text(data)),
    extensions.TIMEDELTA: lambda data: datetime.timedelta(*struct.unpack("<iii", data)),
}
CONTAINERS: dict[int, Callable[[list[Any]], Any]] = {
    extensions.TUPLE: tuple,
    extensions.SET: set,
    extensions.FROZENSET: frozenset,
    extensions.ROW: row_of,
}


def _decoder(depth: int) -> _Decode:
    """Return the decoder for ``depth`` nested extensions: depth needs no state."""

    def extension(code: int, data: memoryview) -> Any:
        container = CONTAINERS.get(code)
        if container is not None:
            if depth >= MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} deep")
            items = _decoders[depth + 1](data)
            if type(items) is not list:
                raise ValueError("a container without items")
            return container(items)
        leaf = _leaves.get(code)
        if leaf is None:
            raise ValueError(f"the unknown extension {code}")
        return leaf(data)

    return msgspec.msgpack.Decoder(ext_hook=extension).decode


_decoders = [_decoder(depth) for depth in range(MAX_DEPTH + 1)]
