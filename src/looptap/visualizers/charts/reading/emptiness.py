"""What has no finite number: `nothing_seen` of a picture, and marks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from looptap.visualizers.drawing.picture import Line, Mark, Points

ODD = "NaN or ±inf"
"""How the name ends of the points that mark what is no number."""


def nothing_seen(marks: Iterable[Mark]) -> bool:
    """Return whether there is nothing to see of any mark.

    >>> nothing_seen([Line(np.arange(2.0), np.full(2, np.nan))]), nothing_seen([Line(np.ones(1), np.ones(1))])
    (True, False)
    """
    return not any(mark.seen and not _is_odd(mark) for mark in marks)


def grounded(marks: Sequence[Mark], log: bool = False) -> list[Mark]:
    """Return the marks; those of lines without a number at the lowest of the others.

    So they can be seen, and change no scale. ``log``: numbers that are not positive have no place.
    """
    return [
        _at_the_lowest(mark, marks, log) if _is_odd(mark) and not np.isfinite(mark.y).any() else mark for mark in marks
    ]


def _is_odd(mark: Mark) -> TypeGuard[Points]:
    """Return whether a mark only marks what is no number."""
    return isinstance(mark, Points) and mark.name.endswith(ODD)


def _at_the_lowest(odd: Points, marks: Sequence[Mark], log: bool) -> Mark:
    beside = [mark.y for mark in marks if isinstance(mark, Line | Points) and mark.side == odd.side]
    lows = [known.min() for y in beside if (known := y[np.isfinite(y) & ((y > 0) | (not log))]).size]
    return replace(odd, y=np.full(len(odd.x), min(lows, default=1.0 if log else 0.0)))
