"""Cells of tables of a stream: numbers, texts and times; the rest is JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import chain
from typing import Any

import numpy as np

ABOUT = ("number", "event", "rank", "time", "wall")
"""The columns that say where a value is from."""
_TIMES = date, time, timedelta
_MAX_EXACT_INTEGER = 1 << 53  # of those that are floats, too


def column_names(fields: Sequence[str] | None, value: Any) -> list[str]:
    """Return the names of a value's columns: its fields, those of a dict, or "value"."""
    if fields and isinstance(value, tuple) and len(value) == len(fields):
        return [name if name not in fields[:index] else f"{name}_{index}" for index, name in enumerate(fields)]
    if isinstance(value, Mapping) and value:
        return list(dict.fromkeys(map(str, value)))
    return ["value"]


def table_columns(fields: Sequence[str] | None, values: Iterable[Any]) -> list[str]:
    """Return the names of a table's columns: those of dicts are the keys of all.

    >>> table_columns(None, [{}, {"a": 1}, None, {"b": 2}]), table_columns(("step", "loss"), [])
    (['a', 'b'], ['step', 'loss'])
    """
    given = iter(values)
    first = next((value for value in given if value is not None), None)
    if isinstance(first, Mapping):
        mappings = (value for value in chain((first,), given) if isinstance(value, Mapping))
        return list(dict.fromkeys(str(name) for value in mappings for name in value)) or ["value"]
    return list(fields or ("value",)) if first is None else column_names(fields, first)


def column_elements(value: Any, columns: list[str]) -> list[Any]:
    """Return the element of ``value`` for each column; None where it has none."""
    if columns == ["value"]:
        return [value]
    if isinstance(value, Mapping):
        by_name = {str(name): item for name, item in value.items()}
        return [by_name.get(name) for name in columns]
    if isinstance(value, tuple) and len(value) == len(columns):
        return list(value)
    return [value, *[None] * (len(columns) - 1)]


def about_names(columns: list[str]) -> list[str]:
    """Return the names of the other columns, with underscores on a conflict."""
    found: list[str] = []
    for name in ABOUT:
        while name in columns:
            name += "_"
        found.append(name)
    return found


def as_cell_value(element: Any) -> Any:
    """Return a number or a text as it is, a time as text, anything else as JSON."""
    if element is None or isinstance(element, int | float | str):
        return element
    if isinstance(element, _TIMES):
        return str(element)
    return json.dumps(_plain(element), ensure_ascii=False)


def _plain(element: Any) -> Any:
    if isinstance(element, Mapping):
        return {str(name): _plain(item) for name, item in element.items()}
    if isinstance(element, list | tuple | set | frozenset):
        return [_plain(item) for item in element]
    if hasattr(element, "tolist"):
        try:
            return _plain(element.tolist())
        except (TypeError, RuntimeError):  # a dtype without numbers in Python, such as 8-bit floats
            return _plain(element.float().tolist())
    if isinstance(element, _TIMES):
        return str(element)
    return element if element is None or isinstance(element, bool | int | float | str) else repr(element)


def one_type(column: list[Any]) -> list[Any]:
    """Convert a column to one type: its own, that of all its numbers, else JSON.

    >>> one_type([True, None, 2]), one_type([True, 2, 0.5]), one_type([1, "x"])
    ([1, None, 2], [1.0, 2.0, 0.5], ['1', 'x'])
    """
    column = [element.item() if isinstance(element, np.generic) else element for element in column]
    kinds = {type(element) for element in column if element is not None}
    if len(kinds) <= 1 and kinds <= {bool, float, date, timedelta}:
        return column
    zones = {element.tzinfo for element in column if isinstance(element, datetime | time)}
    if (kinds == {datetime} and len(zones) == 1) or (kinds == {time} and zones == {None}):
        return column
    if kinds <= {bool, int, float} and (float in kinds or _fit(column)):
        as_number = float if float in kinds else int
        with contextlib.suppress(OverflowError):
            found = [None if element is None else as_number(element) for element in column]
            if float not in kinds or not any(map(rounded, column)):
                return found
    return [None if element is None else _text(str(as_cell_value(element))) for element in column]


def rounded(element: Any) -> bool:
    """Return True for an integer that no float equals.

    >>> rounded(2**53), rounded(2**53 + 1), rounded(0.5)
    (False, True, False)
    """
    return type(element) is int and abs(element) > _MAX_EXACT_INTEGER and element != int(float(element))


def _fit(integers: list[int | None]) -> bool:
    """Return True if integers fit in 64 bits, with a sign or all without."""
    found = [element for element in integers if element is not None]
    least, most = min(found, default=0), max(found, default=0)
    return (least >= -(1 << 63) and most < 1 << 63) or (least >= 0 and most < 1 << 64)


def _text(text: str) -> str:
    """Return ``text`` with characters that UTF-8 lacks escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
