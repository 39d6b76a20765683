"""`flattened`: nested numbers or arrays as one dict, as of `step, norms`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from looptap.visualizers.charts.reading.sheets import is_picture
from looptap.visualizers.data.numbers import has_numbers, is_array, is_number

_MAX_DEPTH = 4
_MAX_TUPLE_ITEMS = 8


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
    if isinstance(value, Mapping):
        parts = [(str(name), part) for name, part in value.items()]
    elif isinstance(value, tuple) and len(names) == len(value):
        parts = list(zip(names, value, strict=True))
    else:
        return None
    nested = [part for _, part in parts if _named(part)]
    if any(is_number(part) for _, part in parts):  # `step, lr(optimizer)` of several groups
        parts = [(name, dict(enumerate(part)) if _few_numbers(part) else part) for name, part in parts]
    if not any(_named(part) for _, part in parts):
        return None
    alone = isinstance(value, tuple) and len(nested) == 1
    found: dict[str, Any] = {}
    for name, part in parts:
        for inner, number in _numbers(part, 0):
            key = inner if alone and inner and part is nested[0] else f"{name}.{inner}" if inner else name
            found[key if key not in found else f"{name}.{inner}"] = number
    if all(part is None or is_number(part) for part in found.values()):
        return found
    plain = all(isinstance(part, Mapping) for part in nested)  # a tuple of arrays may be a histogram
    return found if plain and all(map(_is_array, found.values())) else None


def named_arrays(value: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return a tuple of arrays with names as a dict; None for any other value."""
    if not isinstance(value, tuple) or not value or len(names) != len(value):
        return None
    found = dict(zip(names, value, strict=True))
    return found if len(found) == len(value) and all(map(_is_array, value)) else None


def _is_array(part: Any) -> bool:
    return is_array(part) and len(part.shape) > 0 and has_numbers(part)


def _few_numbers(value: Any) -> bool:
    """Return whether a part is a plain tuple of a few numbers."""
    return type(value) is tuple and 1 < len(value) <= _MAX_TUPLE_ITEMS and all(map(is_number, value))


def _named(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, tuple) and bool(getattr(value, "_fields", ())))


def _numbers(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a value by their path; "" for a number itself."""
    if not _named(value) or depth == _MAX_DEPTH:
        yield "", value
        return
    items = value.items() if isinstance(value, Mapping) else zip(value._fields, value, strict=True)
    for name, part in items:
        for inner, number in _numbers(part, depth + 1):
            yield f"{name}.{inner}" if inner else str(name), number


def dataclass_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass; None for any other value, and for pictures."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value) or is_picture(value):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
