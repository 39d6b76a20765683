"""`scattered`: points with their labels, of rows with x, y, label and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from looptap.visualizers.charts.reading.forms import is_numeric_array, named_parts
from looptap.visualizers.data.numbers import Floats, floats, is_array, is_number, number

LABELS = frozenset(
    (
        "label",
        "labels",
        "target",
        "targets",
        "class",
        "classes",
        "cls",
        "category",
        "color",
        "kind",
        "group",
    )
)
"""Names of what colours the points of a scatter."""
_MAX_ROWS, _MIN_ROW_RATIO = 8, 64  # of an array whose rows are lines, and of its columns to its rows


class Scattered(NamedTuple):
    """Points (n, 2 or 3), and a label and a sample for each, or ()."""

    points: Floats
    labels: tuple[str, ...] = ()
    images: tuple[Any, ...] = ()


def scattered(value: Any, names: Sequence[str] = ()) -> Scattered | None:
    """Return the points in a value, or None.

    Rows with x, y and perhaps z, a label and an image; columns of the same names; points (n, 2 or 3) with n labels.

    >>> scattered([{"x": 1, "y": 2, "label": "cat"}, {"x": 2, "y": 3, "label": "dog"}]).labels
    ('cat', 'dog')
    >>> scattered((np.zeros((2, 2)), [7, 3])).labels
    ('7', '3')
    """
    if not isinstance(value, list):
        parts = [(name.lower(), part) for name, part in named_parts(value, names)]
        return _of_columns(dict(parts)) or _of_parts(parts)
    rows = [{name.lower(): part for name, part in named_parts(row)} for row in value]
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        return None
    return _of_columns({name: [row[name] for row in rows] for name in rows[0]})


def paired(value: Any) -> Floats | None:
    """Return a tuple of two arrays of the same length as an array (2, n); or None.

    >>> paired((np.arange(3), [0.5, 1.0, 1.5])).shape, paired((np.arange(3), np.arange(4)))
    ((2, 3), None)
    """
    if not isinstance(value, tuple) or len(value) != 2:
        return None
    x, y = map(_column, value)
    return None if x is None or y is None or x.shape != y.shape or len(x) < 2 else np.stack([x, y])


def is_few_rows(array: Any) -> bool:
    """Return whether an array is a few long rows, such as the channels of a sound."""
    shape = tuple(array.shape)
    return len(shape) == 2 and 1 < shape[0] <= _MAX_ROWS and shape[1] > _MIN_ROW_RATIO * shape[0]


def is_row(value: Any, names: Sequence[str]) -> bool:
    """Return whether one value is a point with x, y and a label, by its names."""
    known, parts = [name.lower() for name in names], named_parts(value)
    if known[:2] != ["x", "y"] or len(known) != 3 or len(parts) != 3:
        return False
    return known[2] in LABELS and is_number(parts[0][1]) and is_number(parts[1][1])


def _of_columns(columns: Mapping[str, Any]) -> Scattered | None:
    titles = tuple(name for name in ("x", "y", "z") if name in columns)
    parts = [_column(columns[name]) for name in titles]
    known = [part for part in parts if part is not None and part.shape == getattr(parts[0], "shape", None)]
    if titles[:2] != ("x", "y") or len(known) < len(titles):
        return None
    more = [(name, part) for name, part in columns.items() if name not in titles]
    return _with(np.stack(known, axis=1), more)


def _of_parts(parts: Sequence[tuple[str, Any]]) -> Scattered | None:
    """Return points (n, 2 or 3) and n labels, images, or both."""
    if len(parts) not in (2, 3) or not is_numeric_array(parts[0][1]):
        return None
    points = floats(parts[0][1])
    return _with(points, parts[1:]) if points.ndim == 2 and points.shape[1] in (2, 3) else None


def _with(points: Floats, more: Sequence[tuple[str, Any]]) -> Scattered | None:
    """Return points with their labels and images; None if some have neither."""
    if not all(_counts(part, len(points)) for _, part in more):
        return None
    flat = [(name, part) for name, part in more if _is_flat(part)]
    labels: Any = next((part for name, part in flat if name in LABELS), flat[0][1] if flat else ())
    images: Any = next((part for _, part in more if not _is_flat(part)), ())
    texts = map(_text, labels.tolist() if is_array(labels) else labels)
    return Scattered(points, tuple(texts), tuple(images))


def _counts(part: Any, count: int) -> bool:
    """Return whether a part has something for each of ``count`` points."""
    return (isinstance(part, list | tuple) or (is_array(part) and len(part.shape) > 0)) and len(part) == count


def _is_flat(part: Any) -> bool:
    """Return whether a part has a number or text for each point, no picture."""
    return len(part.shape) == 1 if is_array(part) else not any(map(is_array, part[:1]))


def _column(part: Any) -> Floats | None:
    """Return an array, or a list of numbers and None, as numbers; None for the rest."""
    if is_numeric_array(part) and len(part.shape) == 1:
        return floats(part)
    numbers = isinstance(part, list) and bool(part) and all(one is None or is_number(one) for one in part)
    return np.array(list(map(number, part))) if numbers else None


def _text(label: Any) -> str:
    return f"{label:.4g}" if isinstance(label, float) else str(label)
