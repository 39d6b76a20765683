"""`form_of`: the type of a value and of its parts as a short text, such as (nns)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from looptap.streams.values.described import Image
from looptap.visualizers.charts.reading.dates import moment
from looptap.visualizers.data.numbers import has_numbers, is_array, is_number

POINT = r"[ns]|\([ns-]+\)"
"""The form of one point: a number, a text, or a tuple of them."""
_MAX_DEPTH = 2  # containers inside of deeper ones are of no particular form


def form_of(value: Any, depth: int = 0) -> str:
    """Return the form of a value: a letter, or the letters of its parts in brackets.

    n is a number, - None, s a text, d a date, p a picture, a an array of numbers, x any other array, h counts and edges
    of a histogram, o anything else. A tuple has a letter for each part; a list and a dict one for each form in them.

    >>> form_of(0.5), form_of((1, 0.5, "spike")), form_of([("cat", 3), ("dog", 5)]), form_of({"loss": 1, "note": ""})
    ('n', '(nns)', '[(sn)]', '{ns}')
    """
    if value is None:
        return "-"
    letter = next((letter for letter, fits in _LETTERS.items() if fits(value)), "o")
    if letter not in _BRACKETS or depth > _MAX_DEPTH:
        return letter
    parts = [form_of(part, depth + 1) for part in (value.values() if letter == "{" else value)]
    return letter + "".join(parts if letter == "(" else sorted(set(parts))) + _BRACKETS[letter]


def named_parts(value: Any, names: Sequence[str] = ()) -> list[tuple[str, Any]]:
    """Return the parts of a dict or tuple with their names, "" if they have none.

    ``names`` are those of a tuple without its own. Returns [] for any other value.

    >>> named_parts({"a": 1}), named_parts((1, 2), ("x", "y")), named_parts((1,)), named_parts([1])
    ([('a', 1)], [('x', 1), ('y', 2)], [('', 1)], [])
    """
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if not isinstance(value, tuple):
        return []
    known = getattr(value, "_fields", ()) or names
    return list(zip(known if len(known) == len(value) else [""] * len(value), value, strict=True))


def is_picture(value: Any) -> bool:
    """Return whether a value is an image: from a job, of PIL, or a matplotlib figure."""
    names = {f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__}
    return isinstance(value, Image) or bool(names & {"PIL.Image.Image", "matplotlib.figure.Figure"})


def is_histogram(value: Any) -> bool:
    """Return whether a value is (counts, edges), with one edge more than counts."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    lengths = list(map(_length, value))
    return None not in lengths and lengths[1] == lengths[0] + 1 > 1


def _length(part: Any) -> Any:
    """Return the length of a list of numbers or of a 1-D array; None for the rest."""
    if isinstance(part, list):
        return len(part) if all(map(is_number, part)) else None
    return int(part.shape[0]) if is_array(part) and len(part.shape) == 1 else None


def is_numeric_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor of numbers."""
    return is_array(value) and has_numbers(value)


_LETTERS = {
    "n": is_number,
    "s": lambda value: isinstance(value, str),
    "d": lambda value: moment(value) is not None,
    "a": is_numeric_array,
    "x": is_array,
    "h": is_histogram,
    "(": lambda value: isinstance(value, tuple),
    "[": lambda value: isinstance(value, list),
    "{": lambda value: isinstance(value, Mapping),
    "p": is_picture,
}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
