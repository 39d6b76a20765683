"""Tuples with names: ``row.loss`` beside ``row[1]``, created without `exec`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

from looptap.streams.text import did_you_mean

_TAG = re.compile(r"[^\W_][\w/.:@%+-]*")
"""Valid field names: identifiers, and tags such as `train/loss`."""


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


@lru_cache(maxsize=256)
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


def rows(fields: Sequence[str]) -> Callable[[list[Any]], list[Any]]:
    """Return a function that names the elements of all matching tuples in a list."""
    count = len(fields)
    make: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, row_type(tuple(fields)))

    def convert(values: list[Any]) -> list[Any]:
        if set(map(type, values)) == {tuple} and set(map(len, values)) == {count}:
            return list(map(make, values))
        return [make(v) if type(v) is tuple and len(v) == count else v for v in values]

    return convert
