"""The reducers of the query language by name, and ``group_by``.

A reducer takes the items of one window, one at a time. Its result equals that of the plain function of the same name
over a list of them: integers exactly, floats to 1e-12 of the sum of their magnitudes, and an empty window gives what
Python gives for an empty sequence. ItemSeries are snapshots: a reducer keeps references and modifies none.
"""

from __future__ import annotations

import collections
import functools
import heapq
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from looptap.streams.aggregations import collecting, distributions, extrema, moments
from looptap.streams.aggregations.distributions import histogram, median, quantile
from looptap.streams.aggregations.extrema import first, last
from looptap.streams.aggregations.moments import mean, stdev, variance
from looptap.streams.aggregations.sampling import Sampling, sample
from looptap.streams.aggregations.state import ItemSeries
from looptap.streams.columns.arithmetic import all_equal_themselves, are_numbers
from looptap.streams.columns.value_columns import Column, ValueColumns
from looptap.streams.values.sizing import DEFAULT_BOUNDS, Bounds, as_key, size_of, too_much
from looptap.streams.values.snapshots import MISSING_NUMBER

__all__ = [
    "REDUCERS",
    "Bounds",
    "Reducer",
    "ReducerSpec",
    "first",
    "group_by",
    "histogram",
    "last",
    "maker_for",
    "mean",
    "median",
    "quantile",
    "sample",
    "stdev",
    "variance",
]


class Reducer(Protocol):
    """An aggregation of the items of a window, in one pass."""

    mergeable: bool
    """True if ``merge`` works."""
    constant: bool
    """True if memory does not grow with the number of items (plain numbers)."""

    takes_missing: bool
    """True if a masked number is an item; numbers are computed without them."""

    def add(self, item: Any) -> None:
        """Add the next item."""

    def extend(self, items: ItemSeries) -> None:
        """Add several items, in order."""

    def result(self) -> Any:
        """Return the value of the items so far; may be called more than once."""

    def merge(self, other: Self) -> None:
        """Merge the reducer of a later part of the window, which stays unchanged."""

    def nbytes(self) -> int:
        """Return the approximate bytes held for items."""

    @property
    def sendable(self) -> bool:
        """True if `state` can be merged in another process."""

    def state(self) -> Any:
        """Return the partial result as plain data; raises TypeError if impossible."""

    def load_state(self, state: Any) -> None:
        """Load the `state` of a reducer of the same call; raises for anything else."""


ColumnTest: TypeAlias = "Callable[[Sequence[Column | list[Any]]], bool]"


def _any(columns: Sequence[Column | list[Any]]) -> bool:
    return True


def _numbers(columns: Sequence[Column | list[Any]]) -> bool:
    return len(columns) == 1 and are_numbers(columns[0])


def _kept(columns: Sequence[Column | list[Any]]) -> bool:
    """Return True without a NaN: Python finds one among others by its identity."""
    return all(all_equal_themselves(column) for column in columns)


def _kept_numbers(columns: Sequence[Column | list[Any]]) -> bool:
    return _numbers(columns) and _kept(columns)


def _pairs(columns: Sequence[Column | list[Any]]) -> bool:
    return len(columns) == 2 and _kept(columns) and are_numbers(columns[1])


class ReducerSpec(msgspec.Struct, frozen=True):
    """A reducer's name, its factory, and the plain function with the same result.

    ``sequence`` is the position of the sequence among the arguments; ``factory`` takes the other ones, with
    Python's keywords, and ``bounds=`` where ``bounded``.
    """

    name: str
    factory: Callable[..., Reducer]
    plain: Callable[..., Any]
    sequence: int = 0
    bounded: bool = False
    takes: ColumnTest | None = None
    """Whether columns of items may stand for the items; None: never."""

    def maker(self, *args: Any, bounds: Bounds = DEFAULT_BOUNDS, **kwargs: Any) -> Callable[[], Reducer]:
        """Return a factory of reducers for the call's arguments except the sequence.

        Raises ``TypeError`` for arguments that the function does not take, and whatever the factory raises for invalid
        values.
        """
        if self.bounded:
            kwargs["bounds"] = bounds
        try:
            inspect.signature(self.factory).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): besides the sequence, {error}.") from None
        make = functools.partial(self.factory, *args, **kwargs)
        make()
        return make

    def create(self, *args: Any, bounds: Bounds = DEFAULT_BOUNDS, **kwargs: Any) -> Reducer:
        """Return a new reducer for the call's arguments except the sequence.

        Raises like ``maker``.

        >>> total = REDUCERS["sum"].create(start=1)
        >>> total.add(2)
        >>> total.result()
        3
        """
        return self.maker(*args, bounds=bounds, **kwargs)()


class GroupBy:
    """``group_by(pairs, reducer)``: a dict with a reducer for each key of the pairs."""

    __slots__ = ("_bounds", "_bytes", "_groups", "_make", "_passed", "_shared", "_takes_missing", "mergeable")
    constant, takes_missing = False, True

    def __init__(self, reducer: Callable[..., Any], *, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self._bounds = bounds
        self._make = maker_for(reducer, bounds)
        self.mergeable, self._takes_missing = self._make().mergeable, self._make().takes_missing
        self._groups: dict[Any, Reducer] = {}
        self._bytes = 0
        self._passed: str | None = None

    def add(self, item: Any) -> None:
        """Add the value to its key's reducer; raises ``TypeError`` if not a pair."""
        if self._passed:
            return
        try:
            key, value = item
        except (TypeError, ValueError):
            raise TypeError(
                f"group_by takes (key, value) pairs, and an item is {item!r:.60}. "
                "Write group_by(((e.key, e.value) for e in events), mean)."
            ) from None
        if value is MISSING_NUMBER and not self._takes_missing:
            return
        if type(key) is not int and type(key) is not str:
            key = as_key(key, "group_by")
        group = self._groups.get(key)
        if group is None:
            group = self._open(key)
            if group is None:
                return
        if group.constant and (type(value) is float or type(value) is int):
            group.add(value)
            return
        before = group.nbytes()
        group.add(value)
        self._hold(group.nbytes() - before)

    def extend(self, items: ItemSeries) -> None:
        """Add pairs, in order."""
        if isinstance(items, ValueColumns) and self._make().constant and items.types[1] != "bool":
            self._add_numbers(items)
        else:
            for item in items if isinstance(items, list) else items.tolist():
                self.add(item)

    def _add_numbers(self, pairs: ValueColumns) -> None:
        """Add the numbers of each key together, the keys in the order of their arrival."""
        by_key: dict[Any, list[Any]] = {}
        for key, value in pairs.tolist():
            values = by_key.get(key)
            if values is None:
                by_key[key] = values = []
            values.append(value)
        for key, values in by_key.items():
            group = None if self._passed else self._groups.get(key) or self._open(key)
            if group is None:
                return
            group.extend(values)

    def _open(self, key: Any) -> Reducer | None:
        if len(self._groups) >= self._bounds.keys:
            self._give_up("keys")
            return None
        group = self._groups[key] = self._make()
        self._hold(size_of(key))
        return None if self._passed else group

    def _hold(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._bounds.bytes:
            self._give_up("bytes")

    def _give_up(self, bound: str) -> None:
        self._passed, self._groups, self._bytes = self._passed or bound, {}, 0

    def result(self) -> dict[Any, Any]:
        """Return the value of each key, in the order of the keys' arrival.

        Raises ``QueryError`` if there were too many keys or bytes.
        """
        if self._passed:
            raise too_much("group_by", self._bounds, self._passed)
        return {key: group.result() for key, group in self._groups.items()}

    def merge(self, other: Self) -> None:
        """Join the groups of the later part."""
        if other._passed or self._passed:
            self._give_up(other._passed or "keys")
            return
        for key, group in other._groups.items():
            key = as_key(key, "group_by")
            mine = self._groups.get(key) or self._open(key)
            if mine is None:
                return
            before = mine.nbytes()
            mine.merge(group)
            self._hold(mine.nbytes() - before)
            if self._passed:
                return

    @property
    def sendable(self) -> bool:
        """True if the groups can be merged in another process."""
        return self.mergeable and self._make().sendable

    def state(self) -> Any:
        """Return the states of the groups as plain data."""
        return [(key, group.state()) for key, group in self._groups.items()], self._bytes, self._passed

    def load_state(self, state: Any) -> None:
        """Load the `state` of a reducer of the same call."""
        pairs, self._bytes, self._passed = state
        for key, inner in pairs:
            self._groups[key] = group = self._make()
            group.load_state(inner)

    def nbytes(self) -> int:
        """Return the bytes held."""
        return self._bytes


def group_by(pairs: Iterable[tuple[Any, Any]], reducer: Callable[..., Any]) -> dict[Any, Any]:
    """Return a dict with the reducer's value over the values of each key.

    ``reducer`` is a function of a sequence: ``mean``, ``max``, ``functools.partial(quantile, q=0.9)``, ...

    >>> group_by([("a", 1), ("b", 5), ("a", 3)], max)
    {'a': 3, 'b': 5}
    """
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(as_key(key, "group_by"), []).append(value)
    return {key: reducer(values) for key, values in groups.items()}


REDUCERS: dict[str, ReducerSpec] = {
    spec.name: spec
    for spec in (
        ReducerSpec("len", extrema.Length, len, takes=_any),
        ReducerSpec("any", extrema.AnyTrue, any, takes=_numbers),
        ReducerSpec("all", extrema.AllTrue, all, takes=_numbers),
        ReducerSpec("min", extrema.Minimum, min, takes=_numbers),
        ReducerSpec("max", extrema.Maximum, max, takes=_numbers),
        ReducerSpec("sum", moments.Sum, sum, takes=_numbers),
        ReducerSpec("mean", moments.Mean, mean, takes=_numbers),
        ReducerSpec("variance", moments.Variance, variance, takes=_numbers),
        ReducerSpec("stdev", moments.Deviation, stdev, takes=_numbers),
        ReducerSpec("median", distributions.Median, median, takes=_numbers),
        ReducerSpec("quantile", distributions.Quantile, quantile, takes=_numbers),
        ReducerSpec("histogram", distributions.Histogram, histogram, bounded=True, takes=_numbers),
        ReducerSpec("first", extrema.First, first, takes=_numbers),
        ReducerSpec("last", extrema.Last, last, takes=_numbers),
        ReducerSpec("list", collecting.Listing, list, bounded=True, takes=_kept),
        ReducerSpec("tuple", collecting.TupleListing, tuple, bounded=True, takes=_kept),
        ReducerSpec("set", collecting.Distinct, set, bounded=True, takes=_kept),
        ReducerSpec("sorted", collecting.Sorting, sorted, bounded=True, takes=_kept),
        ReducerSpec("nlargest", collecting.Largest, heapq.nlargest, 1, bounded=True, takes=_kept_numbers),
        ReducerSpec("nsmallest", collecting.Smallest, heapq.nsmallest, 1, bounded=True, takes=_kept_numbers),
        ReducerSpec("sample", Sampling, sample, bounded=True, takes=_kept),
        ReducerSpec("Counter", collecting.Counting, collections.Counter, bounded=True, takes=_kept),
        ReducerSpec("reduce", collecting.Fold, functools.reduce, 1, bounded=True),
        ReducerSpec("group_by", GroupBy, group_by, bounded=True, takes=_pairs),
    )
}

_BY_FUNCTION = {spec.plain: spec for spec in REDUCERS.values()}


def maker_for(function: Callable[..., Any], bounds: Bounds = DEFAULT_BOUNDS) -> Callable[[], Reducer]:
    """Return a factory of reducers with the result of the function over a list.

    A plain function of ``REDUCERS`` or a ``functools.partial`` of one streams; for any other callable the list is
    collected, bounded. Raises ``TypeError`` if it is not callable.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    spec = _BY_FUNCTION.get(inner) if getattr(inner, "__hash__", None) else None
    if spec is not None:
        args = function.args if isinstance(function, functools.partial) else ()
        if len(args) <= spec.sequence and (args or not spec.sequence):
            keywords = function.keywords if isinstance(function, functools.partial) else {}
            return spec.maker(*args, bounds=bounds, **keywords)
        raise TypeError(
            f"{spec.name} needs other arguments than the sequence. Write partial(quantile, q=0.9) or "
            "partial(nlargest, 3)."
        )
    if not callable(function):
        raise TypeError(f"A reducer is a function of a sequence, such as mean, and {function!r:.60} is not one.")
    return functools.partial(collecting.Applied, function, bounds=bounds)
