"""`SampleBuffer`: the newest columns of numbers; `thinned`: points to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from looptap.visualizers.data.numbers import MISSING, Floats

MAX_KEPT_POINTS = 200_000
"""The most points kept of a line."""
MAX_DRAWN_POINTS = 2_000
"""The most points drawn of a line."""
MAX_BUFFER_BYTES = 64_000_000
"""The most bytes of a buffer, whatever its number of points."""
_MAX_GAPS = 500  # NaN that keep their place in a thinned line


class SampleBuffer:
    """At most ``points`` rows of ``width`` numbers, the newest; grows on demand.

    >>> ring = SampleBuffer(2, points=3)
    >>> ring.append(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    >>> ring.columns.tolist()
    [[2.0, 3.0, 4.0], [6.0, 7.0, 8.0]]
    """

    def __init__(self, width: int, points: int = MAX_KEPT_POINTS) -> None:
        self.points = max(1, min(points, MAX_BUFFER_BYTES // (16 * max(1, width))))
        self._data = np.empty((width, min(256, 2 * self.points)))
        self._start = self._end = 0
        self.given_up = 0
        """The number of dropped rows."""

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def columns(self) -> Floats:
        """The kept rows as columns (width, n): a view that later rows overwrite."""
        return self._data[:, self._start : self._end]

    def append(self, block: NDArray[Any]) -> None:
        """Add rows given as columns (width, n)."""
        count = block.shape[1]
        if count > self.points:
            self.given_up += count - self.points
            block, count = block[:, -self.points :], self.points
        surplus = max(0, len(self) + count - self.points)
        self._start += surplus
        self.given_up += surplus
        if self._end + count > self._data.shape[1]:
            self._make_room(count)
        self._data[:, self._end : self._end + count] = block
        self._end += count

    def widen(self, more: int) -> None:
        """Add columns, of which the rows so far have nothing."""
        width, points = self._data.shape[0] + more, self.points
        held = self.columns
        self.points = max(1, min(points, MAX_BUFFER_BYTES // (16 * width)))
        self._data = np.full((width, max(256, len(self))), MISSING)
        self._data[: held.shape[0], : held.shape[1]] = held
        self._start, self._end = 0, held.shape[1]

    def _make_room(self, count: int) -> None:
        """Move the kept rows to the front; double the array while it is small."""
        held, size = self.columns, len(self)
        room = self._data.shape[1]
        while room < 2 * self.points and room < 2 * (size + count):
            room = min(2 * room, 2 * self.points)
        if room != self._data.shape[1]:
            data = np.empty((self._data.shape[0], room))
            data[:, :size] = held
            self._data = data
        else:
            self._data[:, :size] = held.copy()
        self._start, self._end = 0, size


def thinned(y: Floats, drawn: int = MAX_DRAWN_POINTS) -> NDArray[np.intp]:
    """Return at most about ``drawn`` indices that keep a line's look and gaps.

    Gaps are NaN or inf. By position, not by x: MinMaxLTTB of tsdownsample panics where all x are equal.
    """
    if len(y) <= drawn:
        return np.arange(len(y))
    finite = np.isfinite(y)
    if finite.all():
        return _chosen(y, drawn)
    places = np.flatnonzero(finite)
    kept = places[_chosen(y[places], drawn)] if len(places) > drawn else places
    gaps = np.flatnonzero(~finite & np.r_[True, finite[:-1]])
    if len(gaps) > _MAX_GAPS:
        gaps = gaps[np.linspace(0, len(gaps) - 1, _MAX_GAPS).astype(np.intp)]
    return np.union1d(kept, gaps).astype(np.intp, copy=False)


def _chosen(y: Floats, drawn: int) -> NDArray[np.intp]:
    try:
        from tsdownsample import MinMaxLTTBDownsampler
    except ImportError:  # an install without extras draws in the terminal
        return _extremes(y, drawn)
    found: NDArray[np.intp] = MinMaxLTTBDownsampler().downsample(np.ascontiguousarray(y), n_out=drawn).astype(np.intp)
    return found


def _extremes(y: Floats, drawn: int) -> NDArray[np.intp]:
    """Return both ends, and where each stretch is lowest and highest."""
    width = -(-len(y) // max(1, drawn // 2))
    stretches = np.pad(y, (0, -len(y) % width), mode="edge").reshape(-1, width)
    begin = np.arange(0, stretches.size, width)
    found = np.r_[0, begin + stretches.argmin(1), begin + stretches.argmax(1), len(y) - 1]
    return np.unique(np.minimum(found, len(y) - 1)).astype(np.intp, copy=False)
