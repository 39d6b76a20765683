"""`View`: how a chart is looked at: scales, smoothing, limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from looptap.visualizers.data.numbers import Floats
from looptap.visualizers.data.smoothing import inliers, spans_decades
from looptap.visualizers.drawing.axis_limits import PADDING_SHARE
from looptap.visualizers.drawing.picture import Axis, Bars, Mark

MIN_LOG_DECADES = 3.0
"""A positive series that spans more gets a logarithmic axis, unless the user says otherwise."""
_MIN_HELD_DECADES = 2.5  # a logarithmic axis is kept until the series spans less: it would flicker
Ends = tuple[float | None, float | None]


@dataclass
class View:
    """The look of a chart; may be changed at any time.

    ``log`` names the logarithmic axes: "x", "y", "xy" or "" for none; None has them chosen by the values. ``smooth``
    is the weight of the average so far, 0 to 1. ``clip`` leaves outliers out of the limits. ``xlim`` and ``ylim`` are
    (low, high), None for an end that follows the data. Raises ValueError for anything else.
    """

    log: str | None = None
    smooth: float = 0.0
    clip: bool = False
    xlim: Ends = (None, None)
    ylim: Ends = (None, None)
    _chosen: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.log is not None and self.log not in ("", "x", "y", "xy"):
            raise ValueError(f"log={self.log!r:.80} must be 'x', 'y', 'xy', or '' for no logarithmic axis.")
        if not (isinstance(self.smooth, int | float) and 0 <= self.smooth < 1):
            raise ValueError(f"smooth={self.smooth!r:.80} must be at least 0 and less than 1, as in smooth=0.9.")
        self.xlim, self.ylim = _ends("xlim", self.xlim), _ends("ylim", self.ylim)

    @property
    def state(self) -> tuple[Any, ...]:
        """All that the picture depends on."""
        return self.log, self.smooth, self.clip, self.xlim, self.ylim

    def axes(self, x: Axis, y: Axis, right: Axis | None, marks: Sequence[Mark]) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes as they are looked at, for these marks."""
        if all(mark.panel != "plane" for mark in marks):
            return x, y, right
        low, high = self.xlim
        x = replace(x, log=x.log or "x" in (self.log or ""), low=_first(low, x.low), high=_first(high, x.high))
        y = self._upright("left", y, marks, self.ylim)
        return x, y, right if right is None else self._upright("right", right, marks, (None, None))

    def unplaced(self, marks: Sequence[Mark], y: Axis, right: Axis | None) -> list[str]:
        """Return a badge that counts the numbers that logarithmic axes have no place for."""
        heights = _heights(marks)
        if "y" in (self.log or "") and not y.log and heights.size and not (heights > 0).any():
            return ["no number is positive, so the axis is not logarithmic (log='')"]
        logs = {"left": y.log, "right": right is not None and right.log}
        count = int((_heights([mark for mark in marks if logs[mark.side]]) <= 0).sum())
        drawn = f"{count:,} of the drawn numbers {'is' if count == 1 else 'are'} not positive"
        return [f"{drawn}: a logarithmic axis has no place for them (log='')"] if count else []

    def _upright(self, side: str, axis: Axis, marks: Sequence[Mark], ends: Ends) -> Axis:
        mine = [mark for mark in marks if mark.side == side]
        numbers = _heights(mine)
        log = axis.log or "y" in (self.log or "")
        plain = not any(isinstance(mark, Bars) or getattr(mark, "filled", None) is not None for mark in mine)
        if self.log is None and not axis.log and numbers.size and plain:
            log = spans_decades(numbers, _MIN_HELD_DECADES if self._chosen.get(side) else MIN_LOG_DECADES)
            self._chosen[side] = log
        if log and numbers.size and not (numbers > 0).any():
            log = False
        low, high = ends
        if self.clip and low is None and high is None and numbers.size:
            low, high = _padded(numbers, log)
        return replace(axis, log=log, low=_first(low, axis.low), high=_first(high, axis.high))


def _heights(marks: Iterable[Mark]) -> Floats:
    """Return all numbers along y of the marks on one side."""
    columns = [column for mark in marks for column in mark.ys]
    return np.concatenate([np.empty(0), *(np.asarray(column, np.float64).ravel() for column in columns)])


def _padded(numbers: Floats, log: bool) -> Ends:
    """Return limits without the outliers, with some room."""
    if log:
        numbers = np.log10(numbers[numbers > 0])
    found = inliers(numbers)
    if found is None or not found[0] < found[1]:
        return None, None
    room = PADDING_SHARE * (found[1] - found[0])
    low, high = found[0] - room, found[1] + room
    return (10.0**low, 10.0**high) if log else (low, high)


def _first(end: float | None, other: float | None) -> float | None:
    return other if end is None else end


def _ends(name: str, ends: Any) -> Ends:
    """Return (low, high) of a limit that the user gave. Raises ValueError."""
    if ends is None:
        return None, None
    try:
        low, high = (None if end is None else float(end) for end in ends)
    except (TypeError, ValueError):
        low = high = np.nan
    if any(end is not None and not np.isfinite(end) for end in (low, high)):
        raise ValueError(f"{name}={ends!r:.80} must be (low, high), each a number or None.")
    if low is not None and high is not None and not low < high:
        raise ValueError(f"{name}={ends!r:.80} must have its lower end first.")
    return low, high
