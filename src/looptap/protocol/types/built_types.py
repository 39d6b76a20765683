"""Types that msgspec decodes or converts to, built in one thread at a time.

When msgspec first meets a struct, it looks up its fields, and publishes what it builds before that is whole. A second
thread that converts to the same type meanwhile reads empty pointers, which ends the process. Every type is therefore
built here first; the tests check that no other call names one.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

_Kind = TypeVar("_Kind")

_building = threading.RLock()
_built: set[Any] = set()


def built(kind: _Kind) -> _Kind:
    """Return ``kind``, built for msgspec, with the types of its fields.

    >>> msgspec.convert([1, 2], built(tuple[int, int]))
    (1, 2)
    """
    if kind not in _built:
        with _building:
            msgspec.msgpack.Decoder(kind)
            _built.add(kind)
    return kind
