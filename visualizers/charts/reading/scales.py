"""Which lines share an axis: `on_two_axes`, `on_a_log_axis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from looptap.visualizers.drawing.picture import Band, Line, Mark, Points

MAX_SCALE_RATIO = 30.0
"""Lines share an axis while the largest number of one is at most so many times that of another."""
_REJOIN_RATIO = 15.0  # lines that were apart share an axis again below this, so that they do not flicker

Key = TypeVar("Key", int, tuple[str, str])


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


def on_two_axes(marks: Sequence[Mark], apart: bool = False) -> tuple[list[Mark], tuple[str, ...]]:
    """Return the marks, some moved to the right, and the names of the lines there.

    The scale of the first line is on the left. ``apart``: lines were on two axes before.

    >>> small = Line(np.arange(2.0), np.array([0.0, 1.0]), color="blue", name="loss")
    >>> large = Line(np.arange(2.0), np.array([0.0, 64.0]), color="red", name="norm")
    >>> on_two_axes([small, large])[1], on_two_axes([small, small])[1]
    (('norm',), ())
    """
    sizes = _sizes(marks)
    right = set() if on_a_log_axis(marks) else far_from_first(sizes, _REJOIN_RATIO if apart else MAX_SCALE_RATIO)
    if not right:
        return list(marks), ()
    colors = {color for color, _ in right} - {color for color, dash in sizes if (color, dash) not in right}
    moved = [_to_the_right(mark) if _look(mark) in right or _look(mark)[0] in colors else mark for mark in marks]
    names = [mark.name for mark in moved if isinstance(mark, Line) and mark.side == "right" and mark.name]
    return moved, tuple(dict.fromkeys(names))


def on_a_log_axis(marks: Sequence[Mark]) -> bool:
    """Return whether positive lines have more than two scales: two axes are too few."""
    ordered = sorted(_sizes(marks).values())
    low, scales = 0.0, 0
    for size in ordered:
        if size > MAX_SCALE_RATIO * low:
            low, scales = size, scales + 1
    lines = [mark.y for mark in marks if isinstance(mark, Line) and mark.z is None]
    return scales > 2 and all((line[np.isfinite(line)] > 0).all() for line in lines)


def _look(mark: Mark) -> tuple[str, str]:
    """Return colour and dash: those of a band or point are also of its line."""
    return getattr(mark, "color", ""), getattr(mark, "dash", "solid")


def _sizes(marks: Sequence[Mark]) -> dict[tuple[str, str], float]:
    """Return the largest magnitude of each line, its band included, in order."""
    found: dict[tuple[str, str], float] = {}
    for mark in marks:
        if isinstance(mark, Line) and mark.z is None:
            columns = [mark.y]
        elif isinstance(mark, Band):
            columns = [mark.low, mark.high]
        else:
            continue
        known = [np.abs(column[np.isfinite(column)]) for column in columns]
        size = max((float(one.max()) for one in known if one.size), default=0.0)
        if size > 0:
            found[_look(mark)] = max(size, found.get(_look(mark), 0.0))
    return found


def _to_the_right(mark: Mark) -> Mark:
    return replace(mark, side="right") if isinstance(mark, Line | Band | Points) else mark
