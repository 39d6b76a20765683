"""Estimate the memory of packed bytes before decoding them.

An empty list is one byte on the wire and 72 in memory, so a hostile peer could multiply what it sends. `check_memory`
scans the headers, without looking into buffers, of anything larger than `SMALL_BYTES`.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import NamedTuple

FREE_BYTES = 67_108_864
"""Bytes of objects that any packed value may take; agents with the default `Limits` send no larger ones."""
SMALL_BYTES = FREE_BYTES // 80
"""Packed bytes that never take more than `FREE_BYTES`: {None: None}, the costliest, has 3 bytes and takes 240."""
BYTES_PER_BYTE = 4
"""Bytes of objects per packed byte beyond that: text with a character beyond 16 bits takes as many."""

_LIST_BYTES, _DICT_BYTES, _ENTRY_BYTES = 72, 240, 60  # with what holds on to them, as below
_TEXT_BYTES, _FLOAT_BYTES, _INTEGER_BYTES, _ITEM_BYTES = 64, 32, 44, 8
_CONTAINER_BYTES, _MEMBER_BYTES, _LEAF_BYTES = 300, 128, 1200  # a tuple or set, an item of a set, an empty tensor

_SHORT_TEXTS = b"".join(b"|" + bytes((0xA0 | n,)) + b"[\\s\\S]{%d}" % n for n in range(32))
_TOKEN = (
    rb"[\x00-\x9f\xc0\xc2\xc3\xe0-\xff]|[\xca\xce\xd2][\s\S]{4}|[\xcb\xcf\xd3][\s\S]{8}"
    rb"|[\xcc\xd0][\s\S]|[\xcd\xd1][\s\S]{2}" + _SHORT_TEXTS
)
_LENGTHS = {
    0xC4: ">B",
    0xC5: ">H",
    0xC6: ">I",
    0xC7: ">B",
    0xC8: ">H",
    0xC9: ">I",
    0xD9: ">B",
    0xDA: ">H",
    0xDB: ">I",
    0xDC: ">H",
    0xDD: ">I",
    0xDE: ">H",
    0xDF: ">I",
}
_EXTENSIONS, _ARRAYS, _MAPS = (0xC7, 0xC8, 0xC9), (0xDC, 0xDD), (0xDE, 0xDF)
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


def _dict(entries: int) -> int:
    return max(_DICT_BYTES, _ENTRY_BYTES * entries) if entries else _LIST_BYTES


def _by_first_byte() -> dict[bytes, int]:
    """Return a token's cost by its first byte, beyond `_ITEM_BYTES` per byte."""
    costs = {0x80 | n: (_dict(n), 1) for n in range(16)} | {0x90 | n: (_LIST_BYTES, 1) for n in range(16)}
    costs |= {0xA0 | n: (_TEXT_BYTES + BYTES_PER_BYTE * n, 1 + n) for n in range(32)}
    costs |= {byte: (_INTEGER_BYTES, 1) for byte in range(0xE0, 0x100)} | {
        0xCA: (_FLOAT_BYTES, 5),
        0xCB: (_FLOAT_BYTES, 9),
    }
    costs |= {first + n: (_INTEGER_BYTES, 1 + (1 << n)) for first in (0xCC, 0xD0) for n in range(4)}
    return {b"": 0} | {bytes((byte,)): cost - _ITEM_BYTES * size for byte, (cost, size) in costs.items()}


_COSTS = _by_first_byte()


class _Patterns(NamedTuple):
    floats: re.Pattern[bytes]
    run: re.Pattern[bytes]
    """What follows each other without a length of its own: numbers, short texts, beginnings of short lists, dicts."""
    token: re.Pattern[bytes]
    """A token of a run; its group is the first byte, empty where a packed byte takes at most 8 bytes of objects."""


@cache
def _patterns() -> _Patterns:
    return _Patterns(
        re.compile(rb"(?:\xcb[\s\S]{8})++"),
        re.compile(b"(?:" + _TOKEN + b"){1,4096}+"),
        re.compile(rb"(?=([\x80-\xbf\xca-\xd3\xe0-\xff]?))(?:" + _TOKEN + b")"),
    )


def check_memory(raw: bytes | memoryview, containers: frozenset[int], sets: frozenset[int]) -> None:
    """Raise ValueError if ``raw`` would take too much memory.

    ``containers`` are the extension codes that hold packed values, ``sets`` those among them that hash their items.
    Bytes that are not msgpack pass: the decoder refuses them before it allocates much.
    """
    size = len(raw)
    bound = FREE_BYTES + BYTES_PER_BYTE * size
    try:
        cost = cost_of(raw, bound, containers, sets)
    except (IndexError, KeyError, struct.error):  # cut off, or an invalid first byte
        return
    if cost > bound:
        raise ValueError(f"{size:,} bytes that would take more than {bound:,} of memory")


def cost_of(raw: bytes | memoryview, bound: int, containers: frozenset[int], sets: frozenset[int]) -> int:
    """Estimate the memory of ``raw`` once decoded, counting up to ``bound``."""
    at, end, cost = 0, len(raw), 0
    floats, tokens, token = _patterns()
    while at < end and cost <= bound:
        if (run := floats.match(raw, at)) is not None:
            cost += _FLOAT_BYTES * (run.end() - at) // 9
            at = run.end()
        elif (run := tokens.match(raw, at)) is not None:
            cost += _ITEM_BYTES * (run.end() - at) + sum(map(_COSTS.__getitem__, token.findall(raw, at, run.end())))
            at = run.end()
        else:
            byte = raw[at]
            if byte in _FIXED_EXTENSIONS:
                at, cost = _extension(raw, at + 1, _FIXED_EXTENSIONS[byte], cost, containers, sets)
            else:
                layout = _LENGTHS[byte]
                (length,) = struct.unpack_from(layout, raw, at + 1)
                at += 1 + struct.calcsize(layout)
                if byte in _EXTENSIONS:
                    at, cost = _extension(raw, at, length, cost, containers, sets)
                elif byte in _ARRAYS:
                    cost += _LIST_BYTES
                elif byte in _MAPS:
                    cost += _dict(length)
                else:
                    cost += _TEXT_BYTES + BYTES_PER_BYTE * length
                    at += length
    return cost


def _extension(
    raw: bytes | memoryview, at: int, length: int, cost: int, containers: frozenset[int], sets: frozenset[int]
) -> tuple[int, int]:
    """Return the position after an extension's code at ``at``, and the cost."""
    code = raw[at]
    if code not in containers:
        return at + 1 + length, cost + _LEAF_BYTES + BYTES_PER_BYTE * length
    return at + 1, cost + _CONTAINER_BYTES + (_MEMBER_BYTES * _count(raw, at + 1) if code in sets else 0)


def _count(raw: bytes | memoryview, at: int) -> int:
    """Return how many items the array at ``at`` has."""
    byte = raw[at]
    if 0x90 <= byte <= 0x9F:
        return byte & 0x0F
    return int(struct.unpack_from(_LENGTHS[byte], raw, at + 1)[0]) if byte in _ARRAYS else 0
