"""Number, size and device of an item, for reducers.

This module does not import torch; a tensor is recognized by its attributes.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Collection
from itertools import chain, repeat
from typing import Any, Final

import msgspec
import numpy as np

from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.errors import QueryError
from looptap.streams.values.torch_interop import full, is_tensor, local_shard

_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None)})


class Bounds(msgspec.Struct, frozen=True):
    """Limits of what one reducer holds for one window; the repr can be pasted back.

    ``items`` and ``bytes`` bound what is collected, ``keys`` the keys of ``Counter`` and ``group_by``.

    >>> Bounds(keys=100)
    Bounds(items=100000, bytes=67108864, keys=100)
    """

    items: int = 100_000
    bytes: int = 67_108_864
    keys: int = 10_000


DEFAULT_BOUNDS: Final = Bounds()


class Missing:
    """The type of ``MISSING``, which stands for a missing argument or item."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


def as_number(item: Any, name: str) -> Any:
    """Return the item as a Python number; waits for a scalar on an accelerator.

    Raises ``TypeError`` for arrays of more than one element; items that are not arrays are left to Python.
    """
    if isinstance(item, (float, int)) and not isinstance(item, np.generic):
        return item
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, np.ndarray) or is_tensor(item):
        if item.shape and tuple(item.shape) != (1,):
            raise TypeError(
                f"{name} takes numbers, and an item is an array of shape {tuple(item.shape)}. Loop over its "
                f"elements, as in: x for e in events for x in e.losses.tolist()"
            )
        return item.item()
    if isinstance(item, str | bytes | list | tuple | dict | set) or item is None:
        raise TypeError(f"{name} takes numbers, and an item is {type(item).__name__} {item!r:.60}.")
    return item


def as_key(item: Any, name: str) -> Any:
    """Return a dict key for the item: the number in a tensor of one element.

    The hash of a tensor and of a NaN, also in a tuple, is its identity: equal tensors, and NaNs, would be as many keys.
    Raises ``TypeError`` for larger arrays.
    """
    if isinstance(item, tuple):
        parts = [as_key(part, name) for part in item]
        return item if all(map(operator.is_, parts, item)) else tuple.__new__(type(item), parts)
    if isinstance(item, np.ndarray) or is_tensor(item):
        if item.ndim:
            raise TypeError(
                f"{name} needs keys that can be hashed, and a key is an array of shape {tuple(item.shape)}. "
                f"Turn it into a number or a tuple, as in: tuple(e.x.tolist())"
            )
        item = item.item()
    return math.nan if isinstance(item, float) and item != item else item


def as_floats(item: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the item's numbers as a flat float64 array; waits for device tensors."""
    if is_tensor(item):
        item = full(local_shard(item)).cpu().numpy()
    array = np.asarray(item.compressed() if isinstance(item, np.ma.MaskedArray) else item)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"histogram takes numbers, and an item is {type(item).__name__} {item!r:.60}.")
    return array.astype(np.float64).ravel()


def size_of(item: Any) -> int:
    """Return the approximate bytes that the item holds, including its contents."""
    if isinstance(item, np.ndarray):
        return int(item.nbytes) + 112
    if is_tensor(item):
        return int(item.numel()) * int(item.element_size()) + 400
    if isinstance(item, ValueColumns):
        return item.list_bytes
    size = sys.getsizeof(item, 64) + 8
    if isinstance(item, (tuple, list, set, frozenset)):
        return size + _sizes(item)
    if isinstance(item, dict):
        return size + sum(map(size_of, item)) + sum(map(size_of, item.values()))
    return size


def _sizes(items: Collection[Any]) -> int:
    """Estimate the bytes that items hold, many at once for plain items and rows."""
    kinds = set(map(type, items))
    if _PLAIN.issuperset(kinds):
        return sum(map(sys.getsizeof, items)) + 8 * len(items)
    if all(issubclass(kind, tuple) for kind in kinds):
        parts = list(chain.from_iterable(items))
        if _PLAIN.issuperset(map(type, parts)):
            sizes = chain(map(sys.getsizeof, items, repeat(64)), map(sys.getsizeof, parts))
            return sum(sizes) + 8 * (len(items) + len(parts))
    return sum(map(size_of, items))


def too_much(name: str, bounds: Bounds, bound: str) -> QueryError:
    """Return the error of a window above a bound: ``items``, ``bytes`` or ``keys``."""
    if bound == "keys":
        return QueryError(
            f"{name} met more than {bounds.keys:,} different keys in one window, so the window has no value.",
            hint="Group by something coarser (round the key, or key % 100), use a smaller window, or raise "
            "Limits.keys.",
        )
    limit = f"{bounds.items:,} items" if bound == "items" else f"{bounds.bytes:,} bytes"
    return QueryError(
        f"{name} collects its items, and one window has more than {limit}, so the window has no value.",
        hint="Filter the events, use a smaller window or a reducer of constant size (mean, quantile, "
        f"histogram, sample, nlargest), or raise Limits.collected_{bound}.",
    )
