"""Read and write TensorBoard event files.

A file is a sequence of records. A record is its length (8 bytes), a masked CRC-32C of the length, the data, and a
masked CRC-32C of the data. The data is an `Event`: wall_time = 1 (double), step = 2, file_version = 3, summary = 5; a
`Summary` has values = 1, each with tag = 1, simple_value = 2 (float) or tensor = 8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ScalarPoint(NamedTuple):
    """One point of a curve."""

    tag: str
    step: int
    wall: float
    value: float


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of ``data``.

    >>> hex(masked_crc(b"123456789"))  # the CRC is 0xe3069283
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# ---------------------------------------------------------------- writing


def write_points(file: IO[bytes], wall: float, scalars: Iterable[ScalarPoint]) -> int:
    """Write an event file with header time ``wall``; return how many points it has."""
    file.write(framed(double_field(1, wall) + bytes_field(3, b"brain.Event:2")))
    count = 0
    for scalar in scalars:
        tag = bytes_field(1, scalar.tag.encode("utf-8", "replace"))
        value = tag + b"\x15" + struct.pack("<f", _single(scalar.value))
        step = b"\x10" + _varint(scalar.step & 0xFFFFFFFFFFFFFFFF)
        file.write(framed(double_field(1, scalar.wall) + step + bytes_field(5, bytes_field(1, value))))
        count += 1
    return count


def _single(value: float) -> float:
    try:
        struct.pack("<f", value)
    except OverflowError:  # beyond single precision
        return float("inf") if value > 0 else float("-inf")
    return value


def framed(data: bytes) -> bytes:
    """Return a record: the data between its length and the checksums."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def double_field(field: int, value: float) -> bytes:
    """Return a protobuf field that holds a double."""
    return bytes((field << 3 | _FIXED64,)) + struct.pack("<d", value)


def bytes_field(field: int, data: bytes) -> bytes:
    """Return a protobuf field that holds bytes, text or a message."""
    return bytes((field << 3 | _BYTES,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---------------------------------------------------------------- reading


class Damaged(ValueError):
    """Bytes that are not a record of an event file."""


_MAX_RECORD_BYTES = 1 << 30  # bytes of a record
_MAX_CHECKED_BYTES = 65_536  # bytes of a record that is read (CRC: 80 ns a byte); larger ones are not scalars


def read_points(file: IO[bytes]) -> Iterator[ScalarPoint]:
    """Yield the scalars of an event file up to where it is cut off. Raises Damaged."""
    while len(head := file.read(12)) == 12:
        length, check = struct.unpack("<QI", head)
        if check != masked_crc(head[:8]) or length > _MAX_RECORD_BYTES:
            raise Damaged("the length of a record is damaged")
        if length > _MAX_CHECKED_BYTES:
            file.seek(length + 4, os.SEEK_CUR)
            continue
        data, tail = file.read(length), file.read(4)
        if len(data) < length or len(tail) < 4:
            return
        if struct.unpack("<I", tail)[0] != masked_crc(data):
            raise Damaged("a record is damaged")
        yield from _scalars(data)


def _scalars(event: bytes) -> Iterator[ScalarPoint]:
    fields = list(_fields(event))
    newest = dict(fields)
    wall, step = _number("d", newest.get(1)) or 0.0, newest.get(2)
    step = step if isinstance(step, int) else 0
    for summary in _messages(fields, 5):
        for value in _messages(_fields(summary), 1):
            tag, number = _point(value)
            if number is not None:
                yield ScalarPoint(tag, step - (step >> 63 << 64), wall, number)


def _point(value: bytes) -> tuple[str, float | None]:
    fields = list(_fields(value))
    tag = b"".join(_messages(fields, 1)[-1:]).decode("utf-8", "replace")
    number = _number("f", dict(fields).get(2))
    for tensor in _messages(fields, 8):
        number = _tensor(tensor)
    return tag, number


_TYPES = {1: "f", 2: "d", 3: "i", 9: "q"}  # float, double, int32, int64


def _tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor without dimensions; None for any other."""
    fields = list(_fields(tensor))
    kind = _TYPES.get(next((v for f, v in fields if f == 1 and isinstance(v, int)), 0))
    if kind is None or any(field == 2 and value for field, value in fields):  # it has dimensions
        return None
    numbers = (_number(kind, value) for field, value in fields if field in (4, 5, 6))
    return next((number for number in numbers if number is not None), None)


def _number(kind: str, data: object) -> float | None:
    """Return the number of a type that ``data`` is, None if it is none."""
    if isinstance(data, bytes) and len(data) == struct.calcsize(f"<{kind}"):
        return float(struct.unpack(f"<{kind}", data)[0])
    return None


def _messages(fields: Iterable[tuple[int, int | bytes]], number: int) -> list[bytes]:
    """Return the messages and texts in the fields of a number."""
    return [value for field, value in fields if field == number and isinstance(value, bytes)]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: numbers as int, the rest as bytes."""
    at = 0
    try:
        while at < len(message):
            key, at = _read_varint(message, at)
            kind = key & 7
            if kind == _VARINT:
                value, at = _read_varint(message, at)
                yield key >> 3, value
                continue
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                size, at = _read_varint(message, at)
            elif not size:
                raise Damaged(f"an event has a field of the unknown kind {kind}")
            if at + size > len(message):
                raise Damaged("an event ends too early")
            yield key >> 3, message[at : at + size]
            at += size
    except IndexError:
        raise Damaged("an event ends too early") from None


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        if shift > 63:
            raise Damaged("a number of an event is too long")
