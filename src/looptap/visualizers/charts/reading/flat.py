"""`flattened`: nested numbers or arrays as one dict, as of `step, norms`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from looptap.visualizers.charts.reading.forms import is_numeric_array, is_picture, named_parts
from looptap.visualizers.data.numbers import is_number

_MAX_DEPTH = 4
_MAX_TUPLE_ITEMS = 8

Path: TypeAlias = tuple[str, ...]
"""The names under which a number is found in a nested value."""


def flattened(value: Any, names: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return a dict of the numbers, or arrays, in a nested tuple or dict.

    The numbers of a dict inside a dict, or of one of several inside a tuple, have both names: ``train.loss``. Returns
    None for a value that is flat already, and for one that has something else in it, or both.

    >>> flattened((3, {"fc": 0.5, "out": 0.25}), ("step", "v1"))
    {'step': 3, 'fc': 0.5, 'out': 0.25}
    >>> flattened({"train": {"loss": 1}, "val": {"loss": 2}}), flattened({"loss": 1})
    ({'train.loss': 1, 'val.loss': 2}, None)
    >>> flattened((7, (0.1, 0.01)), ("step", "lr"))
    {'step': 7, 'lr.0': 0.1, 'lr.1': 0.01}
    """
    parts = named_parts(value, names)
    dicts = [name for name, part in parts if _is_named(part)]
    if any(is_number(part) for _, part in parts):  # `step, lr(optimizer)` of several groups
        parts = [(name, dict(enumerate(part)) if _is_few_numbers(part) else part) for name, part in parts]
    if not any(_is_named(part) for _, part in parts) or (isinstance(value, tuple) and "" in dict(parts)):
        return None
    found = {path: part for name, part in parts for path, part in _leaves(part, (name,))}
    only = dicts[0] if isinstance(value, tuple) and len(dicts) == 1 else None
    short = {path: path[1:] if path[0] == only else path for path in found}
    uses = Counter(short.values())
    names = [".".join(filter(None, path if uses[brief] > 1 else brief)) for path, brief in short.items()]
    plain = dict(zip(names, found.values(), strict=True))
    if all(part is None or is_number(part) for part in found.values()):
        return plain
    arrays = all(map(_is_array, found.values()))
    rows = any(isinstance(part, tuple) for _, part in parts)  # of which one may be a histogram
    return plain if arrays and not rows else None


def named_arrays(value: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return a tuple of arrays with names as a dict; None for any other value."""
    if not isinstance(value, tuple) or not 0 < len(value) == len(names) == len(set(names)):
        return None
    return dict(zip(names, value, strict=True)) if all(map(_is_array, value)) else None


def dataclass_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass; None for any other value, and for pictures."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value) or is_picture(value):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _is_array(part: Any) -> bool:
    return is_numeric_array(part) and len(part.shape) > 0


def _is_few_numbers(value: Any) -> bool:
    """Return whether a part is a plain tuple of a few numbers."""
    return type(value) is tuple and 1 < len(value) <= _MAX_TUPLE_ITEMS and all(map(is_number, value))


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, tuple) and bool(getattr(value, "_fields", ())))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the parts of a nested value with their paths."""
    if not _is_named(value) or len(path) > _MAX_DEPTH:
        yield path, value
        return
    for name, part in named_parts(value):
        yield from _leaves(part, (*path, name))
