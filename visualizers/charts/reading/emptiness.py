"""`nothing_seen`: whether a picture is empty, so that words replace it."""

from __future__ import annotations

from collections.abc import Iterable

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
