"""`XWatch`: which part of the values of a line counts, so that it is x."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looptap.visualizers.data.numbers import Floats

_MIN_COUNTED_VALUES = 3
"""Values from which on a first part of an unknown name, which counts up, is x."""


class XWatch:
    """Watches the part of values that may be x: ``part``, or else the first.

    A ``part`` whose name counts (step, epoch, time) is x unless it starts again, as the number of a batch does in each
    epoch; a first part of another name is x while it counts up in whole numbers.

    >>> counting = XWatch(None)
    >>> counting.add(np.array([[64.0, 128.0, 192.0], [0.5, 0.4, 0.3]]), np.arange(3), np.zeros(3), [])
    >>> counting.part
    0
    """

    def __init__(self, part: int | None, *, named: bool = True) -> None:
        self._by_name = part
        self._place = part or 0
        self._last: dict[float, float] = {}
        self._seen = 0
        self._holds = named

    @property
    def part(self) -> int | None:
        """The position of the part that is x; None if there is none."""
        known = self._by_name is not None or self._seen >= _MIN_COUNTED_VALUES
        return self._place if self._holds and known else None

    @property
    def starts_again(self) -> bool:
        """True if a part whose name counts has gone back, so that it is not x."""
        return self._by_name is not None and self._seen > 0 and not self._holds

    def add(self, parts: Floats, numbers: NDArray[Any], ranks: NDArray[Any], seams: Sequence[int]) -> None:
        """Watch new values (parts, n); after the number of a seam x may start again."""
        if not self._holds:
            return
        x, numbers = parts[self._place], np.asarray(numbers, np.float64)
        self._seen += len(x)
        if self._by_name is None and not (x == np.floor(x)).all():
            self._holds = False
            return
        for rank in np.unique(ranks).tolist():
            mine = ranks == rank
            steps = np.diff(x[mine], prepend=self._last.get(rank, -np.inf))
            for seam in seams:
                first = int(np.searchsorted(numbers[mine], seam, side="right"))
                steps[first : first + 1] = np.inf
            self._holds &= bool((steps > 0).all()) if self._by_name is None else not (steps < 0).any()
            if len(finite := x[mine][np.isfinite(x[mine])]):
                self._last[rank] = float(finite[-1])
