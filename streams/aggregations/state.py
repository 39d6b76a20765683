"""Partial results as plain data: what a reducer has come to in one process, to be merged in another.

`state_of` gives numbers, text, arrays, lists and tuples, which the wire carries as it does any value; `restore` puts
them into a reducer that the same call has made. Nothing of a state is code, so that it may come from anybody: what is
no state of that reducer raises an exception there, or when it is merged.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

import numpy as np

from looptap.streams.aggregations.collecting import Collector, Counting, Distinct, Largest, Listing, Sampling
from looptap.streams.aggregations.distributions import Histogram
from looptap.streams.aggregations.extrema import AllTrue, AnyTrue, First, Length, Maximum
from looptap.streams.aggregations.moments import Mean, Sum, Variance, _Others
from looptap.streams.aggregations.registry import GroupBy, Reducer
from looptap.streams.aggregations.sketches import FineGrid, QuantileSketch
from looptap.streams.values.sizing import MISSING

_KEPT: dict[type, tuple[str, ...]] = {
    Length: ("_n",),
    AnyTrue: ("_found",),
    AllTrue: ("_kept",),
    Maximum: ("_best", "_item", "_nan", "_device"),
    First: ("_item",),
    Mean: ("_whole", "_total", "_lost", "_floats", "_others", "_n"),
    Sum: ("_whole", "_total", "_lost", "_floats", "_others"),
    Variance: ("_n", "_shift", "_mean", "_m2"),
    QuantileSketch: ("_buffer", "_levels", "_steps", "_over", "_under", "_nan", "lowest", "highest", "n"),
    Histogram: ("_counts", "_kept", "_numbers", "_grid", "_bad"),
    FineGrid: ("base", "counts", "exponent", "highest", "lowest"),
    Listing: ("_items", "_bytes", "_passed"),
    Distinct: ("_items", "_bytes", "_passed"),
    Largest: ("_items", "_bytes", "_passed", "_bar"),
    Sampling: ("_heap", "_bytes", "_passed", "_seen"),
    Counting: ("_items", "_bytes", "_passed", "other"),
}
"""Of each kind of reducer what its items have come to; the rest of it is how it was made."""


def can_travel(reducer: Reducer) -> bool:
    """Whether parts of this reducer can be merged in another process.

    >>> from looptap.streams.aggregations.registry import REDUCERS
    >>> can_travel(REDUCERS["mean"].create()), can_travel(REDUCERS["reduce"].create(max))
    (True, False)
    """
    if isinstance(reducer, GroupBy):
        return reducer.mergeable and can_travel(reducer._make())
    return reducer.mergeable and _kept(reducer) is not None


def state_of(reducer: Any) -> tuple[Any, ...]:
    """What the items of ``reducer`` have come to, as plain data; raises TypeError where that cannot travel.

    >>> from looptap.streams.aggregations.registry import REDUCERS
    >>> ours, theirs = REDUCERS["mean"].create(), REDUCERS["mean"].create()
    >>> ours.add(1.0); theirs.add(2.0); theirs.add(6.0)
    >>> received = REDUCERS["mean"].create()
    >>> restore(received, state_of(theirs))
    >>> ours.merge(received)
    >>> ours.result()
    3.0
    """
    if isinstance(reducer, GroupBy):
        return [(key, state_of(group)) for key, group in reducer._groups.items()], reducer._bytes, reducer._passed
    if isinstance(reducer, Histogram):
        reducer._flush()
    if isinstance(reducer, Largest) and not reducer._passed:
        reducer._choose()
    names = _kept(reducer)
    if names is None:
        raise TypeError(f"what {type(reducer).__name__} has come to cannot be sent.")
    return tuple(_plain(getattr(reducer, name)) for name in names)


def restore(reducer: Any, state: Any) -> None:
    """Put what `state_of` gave into a fresh ``reducer`` of the same call; raises an exception for anything else."""
    if isinstance(reducer, GroupBy):
        pairs, reducer._bytes, reducer._passed = state
        for key, inner in pairs:
            reducer._groups[key] = group = reducer._make()
            restore(group, inner)
        return
    names = _kept(reducer)
    if names is None:
        raise TypeError(f"there is no state of {type(reducer).__name__}.")
    for name, kept in zip(names, state, strict=True):
        setattr(reducer, name, _lively(kept))
    if isinstance(reducer, Collector) and reducer._passed:
        if not isinstance(reducer, Counting):
            reducer._give_up(reducer._passed)
    elif isinstance(reducer, Counting):
        reducer._items = collections.Counter(dict(reducer._items))


def _kept(reducer: Any) -> tuple[str, ...] | None:
    for kind in type(reducer).__mro__:
        if kind in _KEPT:
            return _KEPT[kind]
    return None


def _plain(kept: Any) -> Any:
    """A part of a state; what is not there, a sum of arrays and a grid are told apart from items by a list around."""
    if kept is MISSING:
        return ["missing"]
    if type(kept) is FineGrid:
        return ["grid", state_of(kept)]
    if type(kept) is _Others:
        narrow = None if kept.narrow is None else str(kept.narrow).removeprefix("torch.")
        return ["others", narrow, kept.total, kept.wide]
    if isinstance(kept, collections.Counter):
        return ["kept", list(kept.items())]
    return ["kept", kept] if isinstance(kept, list) else kept


def _lively(kept: Any) -> Any:
    if type(kept) is not list:
        return kept
    match kept:
        case ["missing"]:
            return MISSING
        case ["kept", value]:
            return value
        case ["grid", state]:
            grid = FineGrid.__new__(FineGrid)
            for name, value in zip(_KEPT[FineGrid], state, strict=True):
                setattr(grid, name, value)
            return grid
        case ["others", narrow, total, wide]:
            others = _Others(total, zero=False)
            others.total, others.wide, others.narrow = total, wide, _dtype(narrow, total)
            return others
    raise TypeError(f"{kept!r:.80} is no part of a state.")


def _dtype(name: str | None, total: Any) -> Any:
    if name is None:
        return None
    if isinstance(total, np.ndarray):
        try:
            return np.dtype(name)
        except TypeError:  # bfloat16, without torch
            return None
    return getattr(sys.modules.get("torch"), name, None)
