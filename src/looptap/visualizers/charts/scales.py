"""Which lines share an axis: `on_two_axes`, `on_a_log_axis`.

Lines of one quantity share an axis whatever their scales, so that they can be compared: those of several runs or ranks.
``quantities`` names that of each mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from looptap.visualizers.data.numbers import Floats
from looptap.visualizers.drawing.picture import Band, Line, Mark, Points

MAX_SCALE_RATIO = 30.0
"""Lines share an axis while the largest number of one is at most so many times that of another."""
_REJOIN_RATIO = 15.0  # lines that were apart share an axis again below this, so that they do not flicker

Key = TypeVar("Key", int, str)


def far_from_first(sizes: Mapping[Key, float], ratio: float = MAX_SCALE_RATIO) -> set[Key]:
    """Return the keys whose size is of another scale than that of the first.

    >>> far_from_first({1: 0.5, 2: 64.0, 3: 0.7}), far_from_first({1: 64.0, 2: 0.5, 3: 0.7})
    ({2}, {2, 3})
    """
    sizes = {key: size for key, size in sizes.items() if size > 0}
    ordered = sorted(sizes, key=sizes.__getitem__)
    if len(ordered) < 2 or sizes[ordered[-1]] / sizes[ordered[0]] <= ratio:
        return set()
    cut = int(np.argmax([sizes[above] / sizes[below] for below, above in pairwise(ordered)])) + 1
    first = next(iter(sizes))
    return set(ordered[cut:]) if first in ordered[:cut] else set(ordered[:cut])


def on_two_axes(
    marks: Sequence[Mark], quantities: Sequence[str], apart: bool = False
) -> tuple[list[Mark], tuple[str, ...]]:
    """Return the marks, some moved to the right, and the names of the lines there.

    The scale of the first line is on the left. ``apart``: lines were on two axes before.

    >>> small = Line(np.arange(2.0), np.array([0.0, 1.0]), color="blue", name="loss")
    >>> large = Line(np.arange(2.0), np.array([0.0, 64.0]), color="red", name="norm")
    >>> on_two_axes([small, large], ["loss", "norm"])[1], on_two_axes([small, large], ["loss", "loss"])[1]
    (('norm',), ())
    """
    sizes: dict[str, float] = {}
    for (quantity, *_), size in _sizes(marks, quantities).items():
        sizes[quantity] = max(size, sizes.get(quantity, 0.0))
    right = far_from_first(sizes, _REJOIN_RATIO if apart else MAX_SCALE_RATIO)
    moved = [_to_the_right(mark) if of in right else mark for mark, of in zip(marks, quantities, strict=True)]
    names = [mark.name for mark in moved if isinstance(mark, Line) and mark.side == "right" and mark.name]
    return moved, tuple(dict.fromkeys(names))


def on_a_log_axis(marks: Sequence[Mark], quantities: Sequence[str], held: bool = False) -> bool:
    """Return whether two linear axes are too few for the scales of positive lines.

    They are for more than two scales, and for two of one quantity. ``held``: the axis was logarithmic before.

    >>> small, large = Line(np.arange(2.0), np.full(2, 0.1)), Line(np.arange(2.0), np.full(2, 80.0), color="red")
    >>> on_a_log_axis([small, large], ["lr", "lr"]), on_a_log_axis([small, large], ["lr", "loss"])
    (True, False)
    """
    sizes = _sizes(marks, quantities)
    lines = [mark.y for mark in marks if isinstance(mark, Line) and mark.z is None]
    if not all((line[np.isfinite(line)] > 0).all() for line in lines):
        return False
    ratio = _REJOIN_RATIO if held else MAX_SCALE_RATIO
    each = [[size for (of, *_), size in sizes.items() if of == quantity] for quantity in dict.fromkeys(quantities)]
    return _scales(sizes.values(), MAX_SCALE_RATIO) > 2 or any(_scales(one, ratio) > 1 for one in each)


def _scales(sizes: Iterable[float], ratio: float) -> int:
    """Return how many scales there are."""
    low, found = 0.0, 0
    for size in sorted(sizes):
        if size > ratio * low:
            low, found = size, found + 1
    return found


def _sizes(marks: Sequence[Mark], quantities: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """Return the largest magnitude of each line, by quantity and look, in order."""
    found: dict[tuple[str, str, str], float] = {}
    for mark, quantity in zip(marks, quantities, strict=True):
        if isinstance(mark, Line | Band) and mark.panel == "plane":
            size, key = magnitude(mark.ys), (quantity, mark.color, getattr(mark, "dash", "solid"))
            found[key] = max(size, found.get(key, 0.0))
    return {key: size for key, size in found.items() if size > 0}


def magnitude(columns: Iterable[Floats]) -> float:
    """Return the largest finite magnitude of all columns; 0 if there is none."""
    known = [np.abs(column[np.isfinite(column)]) for column in columns]
    return max((float(one.max()) for one in known if one.size), default=0.0)


def _to_the_right(mark: Mark) -> Mark:
    return replace(mark, side="right") if isinstance(mark, Line | Band | Points) else mark
