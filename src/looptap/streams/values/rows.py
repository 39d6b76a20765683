"""Tuples with names: ``row.loss`` beside ``row[1]``, created without `exec`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

from looptap.streams.text import did_you_mean

MAX_NAMED_ROWS, MAX_ROW_NAMES = 1_000, 100
"""Types of rows that a process keeps, and the most names of a row that comes from elsewhere."""
_TAG = re.compile(r"[^\W_][\w/.:@%+-]*")
"""Valid field names: identifiers, and tags such as `train/loss`."""
_NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")


class Row(tuple[Any, ...]):
    """A tuple whose elements have names; `row_type` creates the type."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle and friends probe for these
            raise AttributeError(name)
        hint = did_you_mean(name, self._fields)
        raise AttributeError(f"no field {name!r} in this row; there are: {', '.join(self._fields)}.{hint}")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)  # its type exists in this process only


class TaggedRow(Row):
    """A row with names like ``row["train/loss"]``; slower to read by number."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        return getattr(self, place) if isinstance(place, str) else tuple.__getitem__(self, place)


@lru_cache(maxsize=MAX_NAMED_ROWS)
def row_type(fields: tuple[str, ...]) -> type[Row]:
    """Return the type of rows with these names; invalid or repeated become ``_n``.

    >>> row_type(("step", "loss"))((3, 0.5)).loss
    0.5
    >>> row_type(("a", "a", "class"))((1, 2, 3))
    (a=1, _1=2, _2=3)
    >>> row_type(("step", "train/loss"))((3, 0.5))["train/loss"]
    0.5
    """
    names: list[str] = []
    for position, name in enumerate(fields):
        usable = _TAG.fullmatch(name) and not keyword.iskeyword(name)
        names.append(name if usable and name not in names else f"_{position}")
    getters = {name: property(itemgetter(position)) for position, name in enumerate(names)}
    kind = Row if all(map(str.isidentifier, names)) else TaggedRow
    return type("Row", (kind,), {**getters, "__slots__": (), "_fields": tuple(names)})


def row_like(kind: type, items: list[Any]) -> tuple[Any, ...]:
    """Return the items as a row with the names of a named tuple, if any.

    >>> import time
    >>> row_like(time.struct_time, list(range(9))).tm_mon, row_like(tuple, [1, 2])
    (1, (1, 2))
    """
    if kind is tuple:
        return tuple(items)
    if issubclass(kind, Row) and len(kind._fields) == len(items):  # of this process: no further type
        return tuple.__new__(kind, items)
    names = getattr(kind, "_fields", ()) or kind.__dict__.get("__match_args__", ())
    return row_of([list(names), *items]) if len(names) == len(items) else tuple(items)


def row_of(items: list[Any]) -> tuple[Any, ...]:
    """Return a row of a list of its names and then its elements. Raises ValueError.

    One with more than `MAX_ROW_NAMES` names is a plain tuple. A process keeps `MAX_NAMED_ROWS` types of rows, those
    that came last, so that a peer cannot fill its memory with names.
    """
    (names, *values) = items
    if not isinstance(names, list) or len(names) != len(values) or not all(isinstance(name, str) for name in names):
        raise ValueError("a row whose names do not match its elements")
    return row_type(tuple(names))(values) if 0 < len(names) <= MAX_ROW_NAMES else tuple(values)


def rows(fields: Sequence[str]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that names the elements of all matching tuples in a list."""
    from looptap.streams.columns.value_columns import ValueColumns  # not at the top: other uses of rows need no numpy

    count, kind = len(fields), row_type(tuple(fields))
    make: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, kind)

    def convert(values: Sequence[Any]) -> Sequence[Any]:
        if isinstance(values, ValueColumns):
            return values.named(kind) if values.rows and len(values.columns) == count else values
        if set(map(type, values)) == {tuple} and set(map(len, values)) == {count}:
            return list(map(make, values))
        return [make(v) if type(v) is tuple and len(v) == count else v for v in values]

    return convert


def explain_missing_field(error: str, kind: type) -> str:
    """Return an error's text, with a hint if it read a field of a plain value.

    ``kind`` is the type of the value.
    """
    wanted = _NO_ATTRIBUTE.search(error) if kind in (bool, int, float, str) else None
    if wanted is None or "have no fields" in error:
        return error
    return (
        f"{error.rstrip()}\nThe values of this stream are plain ({kind.__name__}) and have no fields: write v, not "
        f"v.{wanted[1]}."
    )
