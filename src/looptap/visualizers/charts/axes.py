"""The x axis of a line: step, epoch, event, time, or a part of the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.streams.counts import clock_seconds, count_of
from looptap.visualizers.data.numbers import Floats

NUMBER, EVENT, TIME, WALL, RANK = range(5)
"""The leading columns of a line's buffer; the parts of the values follow."""
MAX_LEADING_COLUMNS = 5
"""The number of columns before the parts of the values."""
_MIN_REPEATED_VALUES = 3  # of one epoch, from which on they are spread over it


class Over(NamedTuple):
    """The x axis: numbers, title, the part of the values it is, whether a clock."""

    x: NDArray[np.float64]
    title: str
    part: int | None = None
    clock: bool = False
    remark: str = ""
    spread: bool = False
    """True if values of the same epoch stand one after the other within it."""


def over(
    columns: Floats,
    names: Sequence[str],
    wanted: str,
    on: str,
    start: float,
    part: int | None,
    clock: int | None = None,
) -> Over:
    """Return the x axis ``wanted``; "" is the ``part`` that counts, or the event.

    ``start`` is the monotonic time at which relative time begins; ``clock`` is a part of dates. If the values lack what
    is wanted, x is the event number, and a badge says so.
    """
    event = Over(columns[EVENT], on or "event")
    match wanted:
        case "":
            return event if part is None else _of_part(columns, names, part, clock)
        case "event":
            return event
        case "time":
            return Over(columns[TIME] - start, "seconds")
        case "wall":
            return Over(columns[WALL], "time", clock=True)
    exact = [place for place, name in enumerate(names) if name.lower() == wanted.lower()]
    alike = [place for place, name in enumerate(names) if count_of(name) == wanted]
    if exact or alike:
        return _of_part(columns, names, (exact or alike)[0], clock)
    if wanted in ("step", on):
        return event
    return event._replace(remark=f"has no {wanted!r}: it is drawn over the number of its {on or 'event'}")


def _of_part(columns: Floats, names: Sequence[str], part: int, clock: int | None) -> Over:
    """Return the axis that a part of the values is."""
    x, name = columns[MAX_LEADING_COLUMNS + part], names[part]
    wide, unit = spread(x) if count_of(name) == "epoch" else x, clock_seconds(name, x)
    unit = 1.0 if unit is None and part == clock else unit
    return Over(wide if unit in (None, 1.0) else x * unit, name, part, unit is not None, spread=wide is not x)


def spread(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x in which many values of the same number stand one after the other.

    The first and the last number may have fewer values than the others: it begins, or ends, within them.

    >>> spread(np.array([2.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0])).tolist()
    [2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25]
    """
    starts = np.flatnonzero(np.r_[True, x[1:] != x[:-1]]) if len(x) else np.empty(0, np.intp)
    counts = np.diff(np.r_[starts, len(x)])
    if not len(counts) or counts.max() < _MIN_REPEATED_VALUES:
        return x
    steps = np.diff(x[starts])
    widths = np.r_[steps, steps[-1:]] if len(steps) else np.ones(1)
    lengths = counts.copy()
    if len(counts) > 1:
        lengths[0], lengths[-1] = max(counts[0], counts[1]), max(counts[-1], counts[-2])
    within = np.arange(len(x)) - np.repeat(starts, counts)
    within[: counts[0]] += lengths[0] - counts[0]
    found: NDArray[np.float64] = x + np.repeat(np.where(widths > 0, widths, 1.0) / lengths, counts) * within
    return found
