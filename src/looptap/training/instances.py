"""The index of an instance, its copies in a batch, and expected epoch lengths.

A convention for all loaders that repeat or skip instances. Needs numpy, but not torch.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices: TypeAlias = NDArray[np.int64]
"""Positions in a data set, from 0."""


class IndexedItem(NamedTuple):
    """The pair ``(index, item)``; a batch pairs all indices with the items' batch.

    >>> index, item = IndexedItem(7, "seven")
    >>> index, item
    (7, 'seven')
    """

    index: Any
    item: Any


def on_item(function: Callable[[Any], Any], given: Any) -> Any:
    """Return ``function`` of an item or batch, still with its index if it has one.

    >>> on_item(str.upper, "a"), on_item(str.upper, IndexedItem(7, "a"))
    ('A', IndexedItem(index=7, item='A'))
    """
    return IndexedItem(given.index, function(given.item)) if isinstance(given, IndexedItem) else function(given)


class WithIndex:
    """A map-style ``dataset`` whose items come with their index: ``(index, item)``.

    The index of an instance is its position in ``dataset``, a whole number from 0, regardless of the order in which
    items are drawn and the process that reads them. A loader collates the indices to one tensor, so that a loop gets
    them with its batch. Other attributes (``set_epoch``, ``targets``, ...) are those of ``dataset``.

    Raises TypeError for a data set without a length or without indices.

    >>> letters = WithIndex(["a", "b", "c"])
    >>> [(index, letter) for index, letter in letters], len(letters)
    ([(0, 'a'), (1, 'b'), (2, 'c')], 3)
    >>> letters[-1]
    IndexedItem(index=2, item='c')
    """

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__") or _is_stream(dataset):
            kind = type(dataset).__name__
            raise TypeError(
                f"dataset={dataset!r:.60} has no indices: a {kind} cannot return an item by its index. Give "
                "a map-style data set, with __getitem__ and __len__; of a DataLoader, loader.dataset. Of a stream, say "
                "what its index is: indexed_stream of looptap.training.indexed_stream."
            )
        try:
            len(dataset)
        except (TypeError, NotImplementedError) as error:
            raise TypeError(
                f"dataset={dataset!r:.60} has no length, so which indices it has is unknown. Give it __len__."
            ) from error
        self.dataset = dataset
        """What was given."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> IndexedItem:
        found = self._checked(index)
        return IndexedItem(found, self.dataset[found])

    def __getitems__(self, indices: Sequence[Any]) -> list[IndexedItem]:
        """Return many items, in one request if the data set supports it."""
        found = [self._checked(index) for index in indices]
        many = getattr(self.dataset, "__getitems__", None)
        items = many(list(found)) if callable(many) else [self.dataset[index] for index in found]
        return [IndexedItem(index, item) for index, item in zip(found, items, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # while it is unpickled there is no data set yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __repr__(self) -> str:
        return f"WithIndex({self.dataset!r})"

    def _checked(self, index: Any) -> int:
        """Return ``index`` as a whole number from 0; raises IndexError outside."""
        found, count = operator.index(index), len(self.dataset)
        if not -count <= found < count:
            raise IndexError(f"index {found} is outside a data set of {count} items.")
        return found + count if found < 0 else found


def merge_copies(indices: Any, values: Any, keep: str = "mean") -> tuple[Indices, NDArray[Any]]:
    """Return each index once, ascending, with the mean (or last) of its values.

    An echoed batch may hold several copies of an instance, each with its own loss. ``values`` has one value, or one
    row, for each index; ``keep`` is "mean" or "last". Tensors may be on any device. A value that is NaN makes the mean
    of its instance NaN, and of no other.

    Raises ValueError for values that do not belong to the indices, TypeError for indices that are not whole numbers.

    >>> unique, losses = merge_copies([7, 2, 7], [1.0, 5.0, 2.0])
    >>> unique.tolist(), losses.tolist()
    ([2, 7], [5.0, 1.5])
    >>> merge_copies([7, 2, 7], [1.0, 5.0, 2.0], keep="last")[1].tolist()
    [5.0, 2.0]
    """
    if keep not in ("mean", "last"):
        raise ValueError(f"keep={keep!r} must be 'mean' or 'last'.")
    where, found = index_array(indices), _array(values)
    if found.ndim < 1 or len(found) != len(where):
        raise ValueError(f"values of shape {found.shape} are not one for each of {len(where)} indices.")
    order = np.argsort(where, kind="stable")
    where, found = where[order], found[order]
    starts = np.flatnonzero(np.diff(where, prepend=where[:1] - 1))
    if keep == "last":
        return where[starts], found[np.append(starts[1:], len(where))[: len(starts)] - 1]
    if len(starts) == len(where):  # no copies, which is usual
        return where, found.astype(np.float64)
    counts = np.diff(starts, append=len(where))
    sums = np.add.reduceat(found.astype(np.float64), starts, axis=0)
    return where[starts], sums / counts.reshape(-1, *[1] * (sums.ndim - 1))


def index_array(indices: Any) -> Indices:
    """Return indices of any kind (list, tensor, array) as one array.

    Raises TypeError if they are not whole numbers, ValueError if they are not a list.

    >>> index_array([3, 1]).tolist()
    [3, 1]
    """
    found = _array(indices)
    if found.ndim != 1:
        raise ValueError(f"indices of shape {found.shape} must be a list of whole numbers, one for each instance.")
    if not len(found):
        return np.empty(0, np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"indices={indices!r:.60} must be whole numbers, as WithIndex yields them.")
    return found.astype(np.int64)


def expected_length(loader: Any) -> float | None:
    """Return the expected number of batches in the current epoch; None if unknown.

    That is ``loader.expected_length``, else the ``expected_length`` of its ``batch_sampler``, else its ``len()``. It
    may be a fraction, and change with each batch: a loader that repeats or skips instances states the batches so far
    and those to come. Does not raise.

    >>> expected_length([[1, 2], [3]])
    2.0
    >>> expected_length(batch for batch in ())
    """
    found = stated_length(loader)
    if found is not None:
        return found
    try:
        return float(len(loader))
    except Exception:  # a stream, or an error in the host's loader, which must not end its loop
        return None


def next_length(loader: Any) -> float | None:
    """Return the expected number of batches in later epochs; None if unknown.

    That is the ``next_length`` of the loader or of its batch sampler, else its `expected_length`. The two differ
    within an epoch in which the repetition or skipping was changed. Does not raise.

    >>> next_length([[1, 2], [3]])
    2.0
    """
    found = stated_length(loader, "next_length")
    return expected_length(loader) if found is None else found


def stated_length(loader: Any, name: str = "expected_length") -> float | None:
    """Return the length that a loader or its batch sampler states, else None.

    >>> stated_length([[1, 2], [3]])
    """
    for holder in (loader, _attribute(loader, "batch_sampler")):
        found = _attribute(holder, name)
        if found is None:  # as usual, and read at each look at a progress
            continue
        with contextlib.suppress(Exception):  # a whole number may be too large for a float
            if isinstance(found, Real) and not isinstance(found, bool) and 0 <= float(found) < math.inf:
                return float(found)
    return None


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # an error in the host's property
        return None


def _array(values: Any) -> NDArray[Any]:
    """Return values as an array; tensors without gradient or device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if not values.is_complex() and values.is_floating_point():
            values = values.double()  # numpy has no bfloat16
        values = values.numpy()
    given: ArrayLike = values
    return np.asarray(given)


def _is_stream(dataset: Any) -> bool:
    """Return True for an IterableDataset, whose inherited `__getitem__` only raises."""
    data = sys.modules.get("torch.utils.data")  # not loaded without torch
    return data is not None and isinstance(dataset, data.IterableDataset)
