"""Combines the values of several ranks for one number: `combine=`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from looptap.streams.aggregations.distributions import median
from looptap.streams.aggregations.moments import mean
from looptap.streams.errors import QueryError
from looptap.streams.values.torch_interop import is_tensor

Combine: TypeAlias = Callable[[list[Any]], Any]

MERGE = "merge"
"""The partial results of a reducing query become one, as if all events had been of one rank."""


def _sum(values: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, values)


def _arrays(values: Sequence[Any]) -> bool:
    return any(isinstance(value, np.ndarray) or is_tensor(value) for value in values)


def _extreme(of_numbers: Callable[[Sequence[Any]], Any], of_arrays: Any) -> Combine:
    def extreme(values: Sequence[Any]) -> Any:
        if _arrays(values):
            return functools.reduce(of_arrays, map(np.asarray, values))
        # One rank's NaN is news; Python's max shows it only where it comes first.
        return math.nan if any(value != value for value in values) else of_numbers(values)

    return extreme


def _median(values: Sequence[Any]) -> Any:
    return np.median(np.stack([np.asarray(v) for v in values]), axis=0) if _arrays(values) else median(values)


_BY_NAME: dict[str, Combine] = {
    "mean": mean,
    "sum": _sum,
    "max": _extreme(max, np.maximum),
    "min": _extreme(min, np.minimum),
    "median": _median,
}


def combination(combine: str | Callable[..., Any]) -> Combine:
    """Return the function that combines the ranks' values. Raises QueryError.

    Rows and dicts are combined field by field, arrays element by element; a Python function gets the list as it is.

    >>> combination("mean")([(1, 2.0), (3, 4.0)])
    (2.0, 3.0)
    >>> combination("list")([1, 2])
    [1, 2]
    """
    if callable(combine):
        return combine
    if combine == "list":
        return list
    f = _BY_NAME.get(combine) if isinstance(combine, str) else None
    if f is None:
        known = ", ".join(map(repr, [*_BY_NAME, "list", MERGE]))
        raise QueryError(f"combine={combine!r} must be one of {known}, or a function of the list of values.")
    return functools.partial(_by_field, f)


def _by_field(f: Combine, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        return tuple(_by_field(f, list(column)) for column in zip(*values, strict=True))
    if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
        return {name: _by_field(f, [v[name] for v in values]) for name in first}
    return f(values)
