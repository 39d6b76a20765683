"""What tests of the codec share: equality with types, mutated bytes, peak memory."""

from __future__ import annotations

import random
import tracemalloc

from looptap.protocol.errors import MessageError


def same(a: object, b: object) -> bool:
    """Return True if types and values are equal, which repr shows; nan equals nan."""
    if isinstance(a, set | frozenset):
        return type(a) is type(b) and sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, tuple | list) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and type(a) is type(b):
        return all(map(same, a.items(), b.items())) and len(a) == len(b)
    return type(a) is type(b) and repr(a) == repr(b)


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randint(1, 5)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 5))
            case _:
                changed[at : at + 4] = b"\xff" * 4
        changed = changed or bytearray(b"\xc1")
    return bytes(changed)


def peak(decode, raw):
    """Return the peak memory of decoding, and whether it was refused."""
    tracemalloc.start()
    try:
        decode(raw)
        return tracemalloc.get_traced_memory()[1], False
    except MessageError:
        return tracemalloc.get_traced_memory()[1], True
    finally:
        tracemalloc.stop()
