"""What has no finite number: `nothing_seen` of a picture, and marks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from looptap.visualizers.drawing.picture import Bars, Grid, Images, Line, Mark, Points, Text

ODD = "NaN or ±inf"
"""How the name ends of the points that mark what is no number."""


def nothing_seen(marks: Iterable[Mark]) -> bool:
    """Return whether there is nothing to see of any mark.

    >>> nothing_seen([Line(np.arange(2.0), np.full(2, np.nan))]), nothing_seen([Line(np.ones(1), np.ones(1))])
    (True, False)
    """
    return not any(map(_seen, marks))


def grounded(marks: Sequence[Mark], log: bool = False) -> list[Mark]:
    """Return the marks; those of lines without a number at the lowest of the others.

    So they can be seen, and change no scale. ``log``: numbers that are not positive have no place.
    """
    odd = [isinstance(mark, Points) and mark.name.endswith(ODD) and not np.isfinite(mark.y).any() for mark in marks]
    return [_at_the_lowest(mark, marks, log) if bad else mark for mark, bad in zip(marks, odd, strict=True)]


def _at_the_lowest(odd: Mark, marks: Sequence[Mark], log: bool) -> Mark:
    assert isinstance(odd, Points)
    beside = [mark.y for mark in marks if isinstance(mark, Line | Points) and mark.side == odd.side]
    lows = [known.min() for y in beside if (known := y[np.isfinite(y) & ((y > 0) | (not log))]).size]
    return replace(odd, y=np.full(len(odd.x), min(lows, default=1.0 if log else 0.0)))


def _seen(mark: Mark) -> bool:
    match mark:
        case Line():
            return bool((np.isfinite(mark.x) & np.isfinite(mark.y)).any())
        case Points():
            return bool(len(mark.x)) and not mark.name.endswith(ODD)
        case Bars():
            return bool(np.isfinite(mark.heights).any())
        case Grid():
            return bool(np.isfinite(mark.cells).any())
        case Images():
            return bool(mark.images)
        case Text():
            return bool(mark.lines)
    return True
