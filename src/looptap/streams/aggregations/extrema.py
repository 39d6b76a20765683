"""Reducers that keep one value: len any all min max first last.

Scalars of an accelerator are compared by torch itself in ``min`` and ``max``: no Python comparison, hence no
wait for the device.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.aggregations.state import ItemSeries, Stateful
from looptap.streams.values.sizing import MISSING, size_of
from looptap.streams.values.torch_interop import on_device


class ScalarReducer(Stateful):
    """Base of the reducers that hold one value and can be merged."""

    __slots__ = ()
    mergeable = True
    constant = True

    def nbytes(self) -> int:
        """Return the bytes held for items, 0 for plain numbers."""
        return 0


class Length(ScalarReducer):
    """``len``: counts the items without reading them."""

    __slots__ = ("_n",)
    kept = ("_n",)
    takes_missing = True

    def __init__(self) -> None:
        self._n = 0

    def add(self, item: Any) -> None:
        """Count the item."""
        self._n += 1

    def extend(self, items: ItemSeries) -> None:
        """Count the items."""
        self._n += len(items)

    def result(self) -> int:
        """Return the count."""
        return self._n

    def merge(self, other: Self) -> None:
        """Add the count of the later part."""
        self._n += other._n


class AnyTrue(ScalarReducer):
    """``any``: tests items until one is true."""

    __slots__ = ("_found",)
    kept = ("_found",)

    def __init__(self) -> None:
        self._found = False

    def add(self, item: Any) -> None:
        """Test the item."""
        if not self._found and item:
            self._found = True

    def extend(self, items: ItemSeries) -> None:
        """Test the items."""
        if isinstance(items, np.ndarray):
            self._found = self._found or bool(items.any())
        else:
            super().extend(items)

    def result(self) -> bool:
        """Return True if an item was true."""
        return self._found

    def merge(self, other: Self) -> None:
        """Join the later part."""
        self._found = self._found or other._found


class AllTrue(ScalarReducer):
    """``all``: tests items until one is false."""

    __slots__ = ("_kept",)
    kept = ("_kept",)

    def __init__(self) -> None:
        self._kept = True

    def add(self, item: Any) -> None:
        """Test the item."""
        if self._kept and not item:
            self._kept = False

    def extend(self, items: ItemSeries) -> None:
        """Test the items."""
        if isinstance(items, np.ndarray):
            self._kept = self._kept and bool(items.all())
        else:
            super().extend(items)

    def result(self) -> bool:
        """Return True if every item was true."""
        return self._kept

    def merge(self, other: Self) -> None:
        """Join the later part."""
        self._kept = self._kept and other._kept


def _unordered(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


class Maximum(ScalarReducer):
    """``max`` with ``key`` and ``default``; the first of equal items wins.

    Tensors of an accelerator must be scalars; among them a NaN wins, as in ``torch.maximum``.
    """

    __slots__ = ("_best", "_default", "_device", "_item", "_key", "_nan")
    kept = ("_best", "_item", "_nan", "_device")
    plain: ClassVar[Callable[..., Any]] = max
    _is_better = staticmethod(operator.gt)
    _best_of: ClassVar[np.ufunc] = np.maximum
    _of_torch: ClassVar[tuple[str, str]] = "maximum", "min"
    """The function of two tensors, and the bound of `clamp` that does the same with a number."""

    def __init__(self, *, key: Callable[[Any], Any] | None = None, default: Any = MISSING) -> None:
        self._key, self._default = key, default
        self._best: Any = MISSING
        self._item: Any = MISSING
        # Python's max returns a NaN that comes first and skips one that comes later, so that the value is not
        # associative. A leading NaN is kept apart, and `_best` does without it: then parts can be merged.
        self._nan: Any = MISSING
        self._device: Any = MISSING

    def add(self, item: Any) -> None:
        """Compare the item with the best so far."""
        if self._key is not None:
            self._take(self._key(item), item)
        elif type(item) is float and type(self._best) is float:
            if self._is_better(item, self._best):
                self._best = self._item = item
        elif on_device(item):
            self._take_device(item)
        else:
            self._take(item, item)

    def extend(self, items: ItemSeries) -> None:
        """Compare the items with the best so far."""
        if self._key is not None or not isinstance(items, np.ndarray):
            super().extend(items)
            return
        self.add(items[0].item())  # which may be a NaN, and counts as one only in this place
        if items.dtype.kind == "f":
            items = items[items == items]
        if len(items):
            best = items == self._best_of.reduce(items)
            self.add(items[int(best.argmax())].item())  # the first of equal ones: 0.0 equals -0.0

    def _take(self, value: Any, item: Any) -> None:
        if self._best is MISSING:
            if not _unordered(value):
                self._best, self._item = value, item
            elif self._nan is MISSING and self._device is MISSING:
                self._nan = item
        elif self._is_better(value, self._best):
            self._best, self._item = value, item

    def _take_device(self, item: Any) -> None:
        if item.numel() != 1:
            name = self.plain.__name__
            raise TypeError(
                f"{name} compares scalars, and an item is a tensor of shape {tuple(item.shape)}. "
                f"Reduce it first, as in: {name}(e.x.{name}() for e in events)"
            )
        item = item.detach()
        held = self._device
        self._device = item.clone() if held is MISSING else self._pick(held, item.to(held.device))

    def _pick(self, held: Any, item: Any) -> Any:
        if isinstance(held, float | int):  # merged from another process, which fetched it from its device
            return self.plain(held, float(item)) if held == held and item == item else math.nan
        return getattr(sys.modules["torch"], self._of_torch[0])(held, item)

    def _clamp(self, tensor: Any, number: Any) -> Any:
        plain = isinstance(tensor, float | int)
        return self._pick(tensor, number) if plain else tensor.clamp(**{self._of_torch[1]: number})

    def result(self) -> Any:
        """Return the best item or the default; raises ``ValueError`` without either."""
        if self._nan is not MISSING:
            return self._nan
        if self._device is not MISSING:
            return self._device if self._item is MISSING else self._clamp(self._device, self._item)
        if self._item is not MISSING:
            return self._item
        return self.plain(()) if self._default is MISSING else self._default

    def merge(self, other: Self) -> None:
        """Join the later part; of equal items the one in this part wins."""
        if self._best is MISSING and self._device is MISSING and self._nan is MISSING:
            self._nan = other._nan
        if other._best is not MISSING:
            self._take(other._best, other._item)
        held, theirs = self._device, other._device
        if isinstance(theirs, float | int):
            self._device = theirs if held is MISSING else self._pick(held, theirs)
        elif theirs is not MISSING:
            self._take_device(theirs)

    def nbytes(self) -> int:
        """Return the bytes of the best item."""
        return sum(size_of(kept) for kept in (self._item, self._device) if kept is not MISSING)


class Minimum(Maximum):
    """``min`` with ``key`` and ``default``; the first of equal items wins."""

    __slots__ = ()
    plain: ClassVar[Callable[..., Any]] = min
    _is_better = staticmethod(operator.lt)
    _best_of = np.minimum
    _of_torch = "minimum", "max"


class First(ScalarReducer):
    """``first``: keeps the first item."""

    __slots__ = ("_default", "_item")
    kept = ("_item",)
    name: ClassVar[str] = "first"

    def __init__(self, default: Any = MISSING) -> None:
        self._default = default
        self._item: Any = MISSING

    def add(self, item: Any) -> None:
        """Keep the item if it is the first."""
        if self._item is MISSING:
            self._item = item

    def extend(self, items: ItemSeries) -> None:
        """Keep the first of the items if there was none."""
        self.add(items[0] if isinstance(items, list) else items[:1].tolist()[0])

    def result(self) -> Any:
        """Return the item or the default; raises ``ValueError`` without either."""
        if self._item is not MISSING:
            return self._item
        if self._default is MISSING:
            raise ValueError(f"{self.name} of an empty sequence. Give it a default: {self.name}(xs, default=None).")
        return self._default

    def merge(self, other: Self) -> None:
        """Join the later part."""
        if self._item is MISSING:
            self._item = other._item

    def nbytes(self) -> int:
        """Return the bytes of the kept item."""
        return 0 if self._item is MISSING else size_of(self._item)


class Last(First):
    """``last``: keeps the newest item."""

    __slots__ = ()
    name: ClassVar[str] = "last"

    def add(self, item: Any) -> None:
        """Keep the item."""
        self._item = item

    def extend(self, items: ItemSeries) -> None:
        """Keep the last of the items."""
        self.add(items[-1] if isinstance(items, list) else items[-1:].tolist()[0])

    def merge(self, other: Self) -> None:
        """Join the later part."""
        if other._item is not MISSING:
            self._item = other._item


def first(xs: Iterable[Any], default: Any = MISSING) -> Any:
    """Return the first item or the default; raises ``ValueError`` without either.

    >>> first([3, 1, 2])
    3
    """
    reducer = First(default)
    for x in xs:
        reducer.add(x)
        break
    return reducer.result()


def last(xs: Iterable[Any], default: Any = MISSING) -> Any:
    """Return the last item or the default; raises ``ValueError`` without either.

    >>> last([3, 1, 2])
    2
    """
    reducer = Last(default)
    for x in xs:
        reducer.add(x)
    return reducer.result()
