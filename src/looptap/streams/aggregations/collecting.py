"""Reducers that keep items: list, set, sorted, nlargest, Counter and others.

A window that exceeds one of its ``Bounds`` releases its items at once; its result is an error that names the bound and
a way out.
"""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.aggregations.state import ItemSeries, Stateful
from looptap.streams.errors import QueryError
from looptap.streams.values.sizing import DEFAULT_BOUNDS, MISSING, Bounds, as_key, size_of, too_much


class Collector(Stateful):
    """Base of the reducers that keep items; gives up when a bound is exceeded."""

    __slots__ = ("_bounds", "_bytes", "_items", "_max_bytes", "_max_items", "_passed")
    name: ClassVar[str] = "list"
    mergeable = True
    constant = False

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._bytes = 0
        self._max_items, self._max_bytes = bounds.items, bounds.bytes
        self._passed: str | None = None
        self._items: Any = []

    def _give_up(self, bound: str) -> None:
        """Drop the items; size -1 makes every later add return here."""
        self._passed = self._passed or bound
        self._max_items = self._max_bytes = -1
        self._items, self._bytes = type(self._items)(), 0

    @property
    def passed(self) -> str | None:
        """The bound that the items exceed; None if they exceed none."""
        return self._passed

    def _checked(self) -> Any:
        if self._passed:
            raise too_much(self.name, self._bounds, self._passed)
        return self._items

    def load_state(self, state: Any) -> None:
        """Load the `state` of a reducer of the same call."""
        super().load_state(state)
        if self._passed:
            self._give_up(self._passed)

    def nbytes(self) -> int:
        """Return the bytes held, estimated."""
        return self._bytes


class Listing(Collector):
    """``list``: every item, in order."""

    __slots__ = ()
    kept = ("_items", "_bytes", "_passed")
    takes_missing = True

    def __init__(self, *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds)

    def add(self, item: Any) -> None:
        """Keep the item."""
        self._bytes += 32 if type(item) is float else size_of(item)
        if self._bytes > self._max_bytes:
            self._give_up("bytes")
        elif len(self._items) >= self._max_items:
            self._give_up("items")
        else:
            self._items.append(item)

    def extend(self, items: ItemSeries) -> None:
        """Keep the items, in order."""
        size = 32 * len(items)
        fits = self._bytes + size <= self._max_bytes and len(self._items) + len(items) <= self._max_items
        if fits and isinstance(items, np.ndarray) and items.dtype.kind == "f":
            self._items += items.tolist()
            self._bytes += size
        else:
            super().extend(items)

    def result(self) -> Any:
        """Return the items; raises ``QueryError`` if there were too many."""
        return list(self._checked())

    def merge(self, other: Self) -> None:
        """Append the items of the later part."""
        if other._passed or self._passed:
            self._give_up(other._passed or "items")
            return
        self._items.extend(other._items)
        self._bytes += other._bytes
        if len(self._items) > self._max_items or self._bytes > self._max_bytes:
            self._give_up("items" if len(self._items) > self._max_items else "bytes")


class TupleListing(Listing):
    """``tuple``: every item, in order."""

    __slots__ = ()
    name: ClassVar[str] = "tuple"

    def result(self) -> Any:
        """Return the items; raises ``QueryError`` if there were too many."""
        return tuple(self._checked())


class Sorting(Listing):
    """``sorted`` with ``key`` and ``reverse``; it sorts once, at the end."""

    __slots__ = ("_key", "_reverse")
    name: ClassVar[str] = "sorted"
    takes_missing = False

    def __init__(
        self,
        *,
        key: Callable[[Any], Any] | None = None,
        reverse: bool = False,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        super().__init__(bounds=bounds)
        self._key, self._reverse = key, reverse

    def result(self) -> Any:
        """Return the sorted items; raises ``QueryError`` if there were too many."""
        return sorted(self._checked(), key=self._key, reverse=self._reverse)


class Applied(Listing):
    """Any function of a list, called with the collected items at the end."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[list[Any]], Any], *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds=bounds)
        self._function = function

    def result(self) -> Any:
        """Return the function's result; raises ``QueryError`` if items were too many."""
        if self._passed:
            raise too_much(getattr(self._function, "__name__", "this function"), self._bounds, self._passed)
        return self._function(list(self._items))


class Distinct(Collector):
    """``set``: the different items; the bounds count only these."""

    __slots__ = ()
    kept = ("_items", "_bytes", "_passed")
    name: ClassVar[str] = "set"

    def __init__(self, *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds)
        self._items = set()

    def add(self, item: Any) -> None:
        """Keep the item if it is new."""
        items = self._items
        before = len(items)
        items.add(item if type(item) is float and item == item else as_key(item, self.name))
        if len(items) > before:
            self._bytes += 96 if type(item) is float else size_of(item) + 64
            if before >= self._max_items or self._bytes > self._max_bytes:
                self._give_up("items" if before >= self._max_items else "bytes")

    def result(self) -> Any:
        """Return the set; raises ``QueryError`` if there were too many items."""
        return set(self._checked())

    def merge(self, other: Self) -> None:
        """Join the items of the later part."""
        if other._passed or self._passed:
            self._give_up(other._passed or "items")
            return
        for item in other._items:
            self.add(item)


class Largest(Collector):
    """``nlargest(n, xs, key=None)`` as in ``heapq``; earlier items win ties.

    ItemSeries are collected until there are as many again as are kept; then the best are selected, and items below the
    worst of them are rejected immediately.
    """

    __slots__ = ("_chunk", "_key", "_n", "_threshold")
    kept = ("_items", "_bytes", "_passed", "_threshold")
    name: ClassVar[str] = "nlargest"
    reverse: ClassVar[bool] = True

    def __init__(self, n: int, key: Callable[[Any], Any] | None = None, *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds)
        if n > bounds.items:
            raise ValueError(f"{self.name} keeps at most {bounds.items:,} items, and n is {n:,}.")
        self._n, self._key = max(int(n), 0), key
        self._chunk = self._n + max(16, self._n)
        self._threshold: Any = MISSING

    def _is_worse(self, value: Any) -> bool:
        return not value > self._threshold

    def add(self, item: Any) -> None:
        """Keep the item if it may be one of the n."""
        value = item if self._key is None else self._key(item)
        if (self._threshold is not MISSING and self._is_worse(value)) or not self._n:
            return
        self._bytes += 64 if type(item) is float else size_of(item)
        self._items.append((value, item))
        if len(self._items) > self._chunk or self._bytes > self._max_bytes:
            self._keep_best()

    def state(self) -> Any:
        """Return the best items, as plain data."""
        if not self._passed:
            self._keep_best()
        return super().state()

    def _keep_best(self) -> None:
        if len(self._items) > self._n:
            self._items.sort(key=itemgetter(0), reverse=self.reverse)  # stable: earlier items stay first
            del self._items[self._n :]
            self._threshold = self._items[-1][0]
        self._bytes = sum(size_of(item) for _, item in self._items)
        if self._bytes > self._max_bytes:
            self._give_up("bytes")

    def result(self) -> list[Any]:
        """Return the n best, best first; raises ``QueryError`` if they are too large."""
        self._checked()
        ordered = sorted(self._items, key=itemgetter(0), reverse=self.reverse)
        return [item for _, item in ordered[: self._n]]

    def merge(self, other: Self) -> None:
        """Join the later part, which keeps as many."""
        if other._passed or self._passed:
            self._give_up(other._passed or "bytes")
            return
        self._items.extend(other._items)
        self._keep_best()


class Smallest(Largest):
    """``nsmallest(n, xs, key=None)`` as in ``heapq``; earlier items win ties."""

    __slots__ = ()
    name: ClassVar[str] = "nsmallest"
    reverse: ClassVar[bool] = False

    def _is_worse(self, value: Any) -> bool:
        return not value < self._threshold


class Counting(Collector):
    """``Counter``: the count of each item, for up to ``Bounds.keys`` distinct ones."""

    __slots__ = ("other",)
    kept = ("_items", "_bytes", "_passed", "other")
    name: ClassVar[str] = "Counter"

    def __init__(self, *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds)
        self._items = collections.Counter()
        self.other = 0

    def add(self, item: Any) -> None:
        """Count the item."""
        if type(item) is not int and type(item) is not str:
            item = as_key(item, self.name)
        self._add(item, 1)

    def load_state(self, state: Any) -> None:
        """Load the `state` of a reducer of the same call, even beyond a bound."""
        Stateful.load_state(self, state)
        self._items = collections.Counter(dict(self._items))

    def _add(self, item: Any, times: int) -> None:
        counts = self._items
        if item in counts:
            counts[item] += times
            return
        self._bytes += size_of(item)
        if len(counts) >= self._bounds.keys or self._bytes > self._max_bytes:
            self._passed = "keys" if len(counts) >= self._bounds.keys else "bytes"
            self._bytes -= size_of(item)
            self.other += times
        else:
            counts[item] = times

    def result(self) -> Any:
        """Return the ``collections.Counter``; raises ``QueryError`` above the bound.

        ``other`` is the number of items that had none of the first keys.
        """
        if self._passed:
            error = too_much(self.name, self._bounds, self._passed)
            share = f" {self.other:,} of {self.other + self._items.total():,} items had other keys."
            raise QueryError(error.reason + share, hint=error.hint)
        return self._items.copy()

    def merge(self, other: Self) -> None:
        """Add the counts of the later part."""
        self._passed = self._passed or other._passed
        self.other += other.other
        for item, times in other._items.items():
            self._add(as_key(item, self.name), times)


_SIZED = (list, tuple, dict, set, str, bytes)


class Fold(Collector):
    """``reduce(f, xs[, initial])`` as in ``functools``. Two folds cannot be merged.

    A mutable ``initial`` is copied, so that each window starts from the same value. The result may have at most
    ``Bounds.items`` elements.
    """

    __slots__ = ("_f",)
    name: ClassVar[str] = "reduce"
    takes_missing = True
    mergeable = False

    def __init__(
        self, f: Callable[[Any, Any], Any], initial: Any = MISSING, *, bounds: Bounds = DEFAULT_BOUNDS
    ) -> None:
        super().__init__(bounds)
        self._f = f
        self._items = initial if initial is MISSING else copy.deepcopy(initial)

    def add(self, item: Any) -> None:
        """Fold the item in."""
        if self._passed:
            return
        self._items = value = item if self._items is MISSING else self._f(self._items, item)
        if type(value) is not float and isinstance(value, _SIZED) and len(value) > self._max_items:
            self._passed, self._items = "items", None

    def result(self) -> Any:
        """Return the fold; raises ``TypeError`` without items and initial value."""
        value = self._checked()
        return functools.reduce(self._f, ()) if value is MISSING else value

    def merge(self, other: Self) -> None:
        """Raise ``TypeError``: there is no way to combine two partial folds."""
        raise TypeError("reduce cannot merge two parts. Use sum, max or another reducer, or window=None.")

    def nbytes(self) -> int:
        """Return the bytes held."""
        return 0 if isinstance(self._items, int | float) else size_of(self._items)
