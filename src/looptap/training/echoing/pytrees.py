"""Batches as trees: tuples, lists and dicts, with tensors and others as leaves."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_MAX_DEPTH = 12
"""How deep the leaves of a batch may lie; what lies deeper counts as one leaf."""


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``leaf(x)`` for each leaf x; containers are rebuilt.

    Containers are plain dicts, lists and tuples, and named tuples; a mapping of another class is a leaf.

    >>> mapped({"a": (1, [2])}, lambda x: 10 * x)
    {'a': (10, [20])}
    """
    kind = type(value)
    if kind is dict:
        return {key: mapped(item, leaf) for key, item in value.items()}
    if kind is list:
        return [mapped(item, leaf) for item in value]
    if kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = [mapped(item, leaf) for item in value]
        return tuple(items) if kind is tuple else kind(*items)
    return leaf(value)


def leaves(value: Any) -> list[Any]:
    """Return all leaves, from left to right, of objects of other classes too.

    >>> leaves({"a": (1, [2])})
    [1, 2]
    """
    found: list[Any] = []
    _collect(value, found, set(), 0)
    return found


def batch_length(batch: Any) -> int:
    """Return the number of examples of a batch.

    That is its number of graphs, else the length of its first leaf that has one.

    >>> batch_length([["a", "b"]])
    1
    """
    parts: list[Any] = []
    mapped(batch, parts.append)
    for part in parts:
        if isinstance(graphs := getattr(part, "num_graphs", None), int):
            return graphs
    shapes = (getattr(leaf, "shape", None) for leaf in leaves(batch))
    return next((int(shape[0]) for shape in shapes if shape), 1)


def _collect(value: Any, found: list[Any], looked: set[int], depth: int) -> None:
    inner: Any = None
    if not (isinstance(value, (*_PLAIN, np.ndarray, type)) or _is_tensor(value)):
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, tuple | list):
            inner = value
        else:
            inner = list(getattr(value, "__dict__", {}).values()) or None
    if inner is None or depth > _MAX_DEPTH:
        found.append(value)
    elif id(value) not in looked:
        looked.add(id(value))
        for item in inner:
            _collect(item, found, looked, depth + 1)


def copied(value: Any) -> Any:
    """Return a copy that shares nothing mutable.

    >>> x = [np.zeros(1), "a"]
    >>> copied(x)[0] is x[0]
    False
    """
    return mapped(value, _copied)


def owned(value: Any) -> Any:
    """Return a tree with copies in place of views, to keep less memory alive."""
    return mapped(value, lambda leaf: _copied(leaf) if _is_tensor(leaf) or isinstance(leaf, np.ndarray) else leaf)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, _PLAIN):
        return leaf
    if _is_tensor(leaf):
        return leaf.clone()
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return copy.deepcopy(leaf)


def tree_bytes(value: Any) -> int:
    """Return the bytes of all leaves: exact for tensors and arrays, else a guess."""
    return sum(getattr(leaf, "nbytes", None) or sys.getsizeof(leaf) for leaf in leaves(value))


def versions(value: Any) -> list[int]:
    """Return each tensor's version counter, which in-place changes increment."""
    return [leaf._version for leaf in leaves(value) if _is_tensor(leaf) and not leaf.is_inference()]


def _is_tensor(leaf: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


# ---------------------------------------------------------------- examples on their way from a worker


class Packed:
    """Examples as columns: all tensors of a leaf in one block, ragged or not.

    Sending each tensor separately from a worker would need a file descriptor for each.
    """

    def __init__(self, examples: list[Any]) -> None:
        self.count, self.columns = len(examples), list[Any]()
        if (rows := _rows_of(examples)) is not None:
            self.spec: Any = type(examples[0])(range(len(rows)))
            self.columns = [_column(row) for row in rows]
            return
        flat = [_flat(example) for example in examples]
        self.spec = flat[0][0] if flat else None
        alike = all(spec == self.spec for spec, _ in flat)
        if alike:
            self.columns = [_column(list(column)) for column in zip(*(found for _, found in flat), strict=True)]
        else:
            self.spec, self.columns = 0, [("list", examples, None)]

    def examples(self) -> list[Any]:
        """Return the examples; their tensors are views."""
        rows = [_rows(*column) for column in self.columns]
        if not rows:
            return [mapped(self.spec, lambda leaf: leaf) for _ in range(self.count)]
        kind = type(self.spec)
        if kind in (tuple, list) and self.spec == kind(range(len(rows))):
            return list(map(kind, zip(*rows, strict=True)))
        return [mapped(self.spec, one.__getitem__) for one in zip(*rows, strict=True)]

    def collated(self) -> Any:
        """Collate the examples as torch does, in one piece; None if they are ragged."""
        if not self.columns or any(kind == "ragged" for kind, _, _ in self.columns):
            return None
        return _batch(self.spec, self.columns, list)

    def own(self) -> None:
        """Copy the views, so that no other memory stays in use."""
        self.columns = [
            (kind, [owned(value) for value in values] if kind == "list" else values, more)
            for kind, values, more in self.columns
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(tree_bytes(values) for _, values, _ in self.columns)


def _rows_of(examples: list[Any]) -> list[list[Any]] | None:
    """Transpose tuples, or lists, of equally many leaves; None for others."""
    kind = type(examples[0]) if examples else None
    if kind not in (tuple, list) or any(type(one) is not kind for one in examples) or not examples[0]:
        return None
    if len(set(map(len, examples))) > 1:
        return None
    rows = [list(row) for row in zip(*examples, strict=True)]
    kinds = {found for row in rows for found in set(map(type, row))}
    return None if any(issubclass(found, dict | tuple | list) for found in kinds) else rows


def _batch(spec: Any, columns: list[Any], kind: type) -> Any:
    """Collate columns as torch does; texts become a list, or in a tuple a tuple."""
    if isinstance(spec, dict):
        return {key: _batch(item, columns, list) for key, item in spec.items()}
    if isinstance(spec, tuple | list):
        parts = [_batch(item, columns, tuple) for item in spec]
        return type(spec)(*parts) if hasattr(spec, "_fields") else parts
    form, values, _ = columns[spec]
    if form in ("tensors", "arrays"):
        return values
    from torch.utils.data import default_collate

    return default_collate(kind(values))


def _flat(example: Any) -> tuple[Any, list[Any]]:
    found: list[Any] = []

    def put(leaf: Any) -> int:
        found.append(leaf)
        return len(found) - 1

    return mapped(example, put), found


def _column(values: list[Any]) -> tuple[str, Any, Any]:
    import torch

    first = values[0]
    if isinstance(first, np.ndarray) and first.dtype.kind in "biuf":
        if all(isinstance(v, np.ndarray) and (v.shape, v.dtype) == (first.shape, first.dtype) for v in values):
            try:
                return "arrays", torch.from_numpy(np.stack(values)), None
            except TypeError:  # a type that torch lacks
                return "list", values, None
    elif _is_tensor(first) and all(_plain(v, first.dtype) for v in values):
        if len({v.shape for v in values}) == 1:
            with torch.no_grad():
                return "tensors", torch.utils.data.default_collate(values), None
        return "ragged", torch.cat([v.detach().reshape(-1) for v in values]), [v.shape for v in values]
    return "list", values, None


def _plain(value: Any, dtype: Any) -> bool:
    torch = sys.modules["torch"]
    return type(value) is torch.Tensor and value.is_cpu and value.dtype is dtype and value.layout is torch.strided


def _rows(kind: str, values: Any, shapes: Any) -> list[Any]:
    if kind == "tensors":
        return list(values.unbind(0))
    if kind == "arrays":
        return list(values.numpy())
    if kind == "ragged":
        parts = values.split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    return list(values)
