"""`scattered`: points with their labels, of rows with x, y, label and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from looptap.visualizers.data.numbers import Floats, floats, is_array, is_number

LABELS = ("label", "labels", "target", "targets", "class", "classes", "cls", "category", "color", "kind", "group")
"""Names of what colours the points of a scatter."""
IMAGES = ("image", "images", "img", "thumbnail", "picture")
"""Names of the samples that points stand for."""
_MAX_ROWS, _MIN_ROW_RATIO = 8, 64  # of an array whose rows are lines, and of its columns to its rows
_TITLES = (("x", "y"), ("x", "y", "z"))


class Scattered(NamedTuple):
    """Points (n, 2 or 3), and a label and a sample for each, or ()."""

    points: Floats
    labels: tuple[str, ...] = ()
    images: tuple[Any, ...] = ()
    titles: tuple[str, ...] = ("x", "y", "z")


def scattered(value: Any, names: Sequence[str] = ()) -> Scattered | None:
    """Return the points in a value, or None.

    Rows with x, y and perhaps z, a label and an image; columns of the same names; points (n, 2 or 3) with n labels.

    >>> scattered([{"x": 1, "y": 2, "label": "cat"}, {"x": 2, "y": 3, "label": "dog"}]).labels
    ('cat', 'dog')
    >>> scattered((np.zeros((2, 2)), [7, 3])).labels
    ('7', '3')
    """
    if isinstance(value, list):
        rows = [fields for row in value if (fields := _fields(row))]
        if not rows or len(rows) < len(value) or any(row.keys() != rows[0].keys() for row in rows):
            return None
        return _of_columns({name: [row[name] for row in rows] for name in rows[0]})
    if (fields := _fields(value)) is None and isinstance(value, tuple) and len(names) == len(value):
        fields = {name.lower(): part for name, part in zip(names, value, strict=True)}
    if fields and (found := _of_columns(fields)):
        return found
    if isinstance(value, tuple) and 2 <= len(value) <= 3:
        return _of_parts(value, names)
    return _of_parts(tuple(fields.values()), tuple(fields)) if fields and len(fields) in (2, 3) else None


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
    plain = tuple(name.lower() for name in names)
    if plain[:2] != ("x", "y") or len(plain) != 3 or plain[2] not in LABELS:
        return False
    parts = tuple(value.values()) if isinstance(value, Mapping) else value
    return isinstance(parts, tuple) and is_number(parts[0]) and is_number(parts[1])


def _fields(row: Any) -> dict[str, Any] | None:
    """Return the parts of a dict or a row with names, by the names in lower case."""
    if isinstance(row, Mapping):
        return {str(name).lower(): part for name, part in row.items()}
    names = getattr(row, "_fields", ()) if isinstance(row, tuple) else ()
    return {name.lower(): part for name, part in zip(names, row, strict=True)} if names else None


def _of_columns(columns: Mapping[str, Any]) -> Scattered | None:
    titles = tuple(name for name in ("x", "y", "z") if name in columns)
    if titles not in _TITLES:
        return None
    parts = [_column(columns[name]) for name in titles]
    if any(part is None or part.shape != parts[0].shape for part in parts):  # type: ignore[union-attr]  # not None
        return None
    points = np.stack([part for part in parts if part is not None], axis=1)
    return _with(points, [(name, columns[name]) for name in columns if name not in titles], titles)


def _of_parts(parts: Sequence[Any], names: Sequence[str]) -> Scattered | None:
    """Return points (n, 2 or 3) and n labels, images, or both."""
    points, *more = parts
    if not is_array(points) or len(points.shape) != 2 or points.shape[1] not in (2, 3):
        return None
    known = list(names) if len(names) == len(parts) else [""] * len(parts)
    if not all(_per_point(part, points.shape[0]) for part in more):
        return None
    return _with(floats(points), list(zip(known[1:], more, strict=True)), ("x", "y", "z")[: points.shape[1]])


def _with(points: Floats, more: Sequence[tuple[str, Any]], titles: tuple[str, ...]) -> Scattered | None:
    labels: tuple[str, ...] = ()
    images: tuple[Any, ...] = ()
    for name, part in more:
        if not _per_point(part, len(points)):
            return None
        flat = len(part.shape) == 1 if is_array(part) else not any(map(is_array, part[:1]))
        if flat and (not labels or name in LABELS):
            labels = tuple(map(_text, part.tolist() if is_array(part) else part))
        elif not flat and not images:
            images = tuple(part)
    return Scattered(points, labels, images, titles)


def _per_point(part: Any, count: int) -> bool:
    return (is_array(part) and len(part.shape) > 0 and part.shape[0] == count) or (
        isinstance(part, list | tuple) and len(part) == count
    )


def _column(part: Any) -> Floats | None:
    if is_array(part) and len(part.shape) == 1 and str(part.dtype)[:1] not in "<SUO":
        return floats(part)
    if isinstance(part, list) and part and all(one is None or is_number(one) for one in part):
        return np.array([np.nan if one is None else float(one) for one in part])
    return None


def _text(label: Any) -> str:
    return f"{label:.4g}" if isinstance(label, float) else str(label)
