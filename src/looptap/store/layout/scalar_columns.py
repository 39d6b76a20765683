"""The history of scalars as columns of the file, the lowest byte first."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

N = TypeVar("N", int, float)


class ScalarRow(NamedTuple):
    """A row of the table ``scalars``: the kept numbers of one type of events."""

    event: str
    last: int
    clock: float
    names: str
    numbers: bytes
    times: bytes
    columns: bytes


class ScalarName(msgspec.Struct, array_like=True, frozen=True):
    """An element of the JSON array ``names``."""

    name: str
    query: str
    kind: Literal["int", "bool", "float", "NoneType"]
    """The type of the numbers; NoneType before there is one."""
    exposed: bool
    rests: list[Annotated[int, msgspec.Meta(ge=-1024, le=1024)]] = []
    """For integers beyond 2**53, one for each row: by how much the integer differs from the float nearest to it."""


def scalar_row(
    on: str,
    clock: float,
    events: array[int],
    times: array[float],
    names: Iterable[tuple[Any, ...]],
    columns: Sequence[array[float]],
    present: Sequence[bytearray],
) -> ScalarRow:
    """Return the row of a table that is not empty, a copy of it."""
    named = [(_utf8(name), _utf8(query), *about) for name, query, *about in names]
    return ScalarRow(
        on,
        events[-1],
        clock,
        msgspec.json.encode(named).decode(),
        little_endian(events).tobytes(),
        little_endian(times).tobytes(),
        b"".join([*(little_endian(one).tobytes() for one in columns), *present]),
    )


def little_endian(numbers: array[N]) -> array[N]:
    """Return numbers with the lowest byte first, or such numbers as this machine's."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


def _utf8(text: str) -> str:
    return text.encode(errors="replace").decode()
