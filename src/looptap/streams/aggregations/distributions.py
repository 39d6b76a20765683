"""Reducers of distributions: median quantile histogram.

They are exact while there are few numbers, then use a sketch that states its error: ``error()`` is 0.0 while exact.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.aggregations.moments import elements
from looptap.streams.aggregations.sketches import (
    MAX_EXACT_NUMBERS,
    Counts,
    FineGrid,
    Floats,
    QuantileSketch,
    interpolate,
)
from looptap.streams.aggregations.state import Stateful
from looptap.streams.values.sizing import DEFAULT_BOUNDS, Bounds, as_floats

MAX_EXACT_HISTOGRAM_NUMBERS = 65_536
"""Numbers up to which a histogram of unknown range is exact."""


class Median(QuantileSketch):
    """``median``, as ``statistics.median`` while exact."""

    __slots__ = ()
    name: ClassVar[str] = "median"

    def result(self) -> Any:
        """Return the median, NaN with a NaN item; raises ``StatisticsError`` if empty."""
        if self.exact and not self._any_nan():
            return statistics.median(self._buffer)
        return self.quantile(0.5)


class Quantile(QuantileSketch):
    """``quantile(xs, q)`` for q in 0..1; a list of them gives a list."""

    __slots__ = ("_qs", "_several")

    def __init__(self, q: float | Sequence[float]) -> None:
        super().__init__()
        self._several = not isinstance(q, int | float)
        self._qs: list[float] = list(q) if not isinstance(q, int | float) else [q]
        for one in self._qs:
            if not 0 <= one <= 1:
                raise ValueError(f"quantile takes q in 0..1, not {one!r}. Write 0.95 for the 95th percentile.")

    def result(self) -> Any:
        """Return the quantile, NaN with a NaN item; raises ``StatisticsError`` if empty."""
        if not self.n and not self._buffer:
            raise statistics.StatisticsError("quantile requires at least one data point")
        values = [self.quantile(q) for q in self._qs]
        return values if self._several else values[0]


class Histogram(Stateful):
    """``histogram(xs, bins=10, range=None)``: counts and edges like numpy's.

    Array items are flattened. With edges or a range it streams exactly. Without, it is exact for up to 65,536 numbers,
    then uses a ``FineGrid``; ``error()`` is the fraction of numbers that may be in a neighbouring bin.
    """

    __slots__ = ("_bins", "_counts", "_edges", "_grid", "_kept", "_not_finite", "_numbers", "_pending", "_range")
    kept = ("_counts", "_kept", "_numbers", "_grid", "_not_finite")
    mergeable = True
    constant = False

    def __init__(
        self,
        bins: int | Sequence[float] = 10,
        range: tuple[float, float] | None = None,
        *,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        if isinstance(bins, str):
            raise TypeError(f"histogram takes a number of bins or their edges, and bins is {bins!r}.")
        size = bins if isinstance(bins, int) else len(bins)
        if size > bounds.items:
            raise ValueError(f"histogram takes at most {bounds.items:,} bins, and {size:,} were asked for.")
        self._bins, self._range = bins, range
        self._counts: Counts
        self._counts, self._edges = np.histogram(np.empty(0), bins, range)  # numpy checks bins and range
        self._pending: list[float] = []
        self._kept: list[Floats] = []
        self._numbers = 0
        self._grid: FineGrid | None = None
        self._not_finite: float | None = None

    @property
    def _fixed(self) -> bool:
        return self._range is not None or not isinstance(self._bins, int)

    def add(self, item: Any) -> None:
        """Count a number, or all numbers of an array or a tensor."""
        if type(item) is float or type(item) is int:
            self._pending.append(item)
            if len(self._pending) >= MAX_EXACT_NUMBERS:
                self._flush()
        else:
            self._take(as_floats(item))

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self._take(np.array(pending, dtype=np.float64))

    def _take(self, numbers: Floats) -> None:
        if not numbers.size:
            return
        if self._fixed:
            self._counts = self._counts + np.histogram(numbers, self._bins, self._range)[0]
            return
        finite = np.isfinite(numbers)
        if not finite.all():
            self._not_finite = float(numbers[~finite][0])
            self._kept, self._grid = [], None
        if self._not_finite is not None:
            return
        self._numbers += numbers.size
        if self._grid is not None:
            self._grid.add(numbers)
            return
        self._kept.append(numbers)
        if self._numbers > MAX_EXACT_HISTOGRAM_NUMBERS:
            assert isinstance(self._bins, int)
            cells = 1 << max(13, (64 * self._bins - 1).bit_length())
            self._grid = FineGrid(np.concatenate(self._kept), cells)
            self._kept = []

    def result(self) -> tuple[Counts, Floats]:
        """Return ``(counts, edges)``; NaN or inf without a range raise ``ValueError``."""
        self._flush()
        if self._not_finite is not None:
            raise ValueError(
                f"histogram found {self._not_finite} among the items and cannot choose a range. Give it one, as in "
                "histogram(xs, 20, (-1, 1)), or leave such items out with isfinite."
            )
        if self._fixed:
            return self._counts.copy(), self._edges.copy()
        assert isinstance(self._bins, int)
        if self._grid is not None:
            return self._grid.histogram(self._bins)
        counts, edges = np.histogram(np.concatenate([np.empty(0), *self._kept]), self._bins)
        return counts, edges

    def error(self) -> float:
        """Return the fraction of numbers that may be one bin off; 0.0 while exact."""
        self._flush()
        return 0.0 if self._grid is None or not isinstance(self._bins, int) else self._grid.error(self._bins)

    def state(self) -> Any:
        """Return the partial result as plain data."""
        self._flush()
        return super().state()

    def merge(self, other: Self) -> None:
        """Add the counts of the later part, which has the same bins."""
        self._flush()
        other._flush()
        if self._fixed:
            self._counts = self._counts + other._counts
            return
        if other._not_finite is not None:
            self._take(np.array([other._not_finite]))
        for numbers in other._kept:
            self._take(numbers)
        if other._grid is None or self._not_finite is not None:
            return
        kept, self._kept = self._kept, []
        self._numbers += other._numbers
        if self._grid is None:
            assert isinstance(self._bins, int)
            self._grid = FineGrid(np.array([other._grid.lowest]), other._grid.counts.size)
            self._grid.counts[:] = 0
        self._grid.merge(other._grid)
        for numbers in kept:
            self._grid.add(numbers)

    def nbytes(self) -> int:
        """Return the bytes held."""
        grid = 0 if self._grid is None else self._grid.counts.nbytes
        return 32 * len(self._pending) + 8 * self._numbers * (not grid) + grid + self._counts.nbytes


def median(xs: Iterable[Any]) -> Any:
    """Return the median like ``statistics.median``, but NaN if an item is NaN.

    >>> median([3, 1, 2])
    2
    """
    data = list(elements(xs))
    if any(x != x for x in data):
        return math.nan
    return statistics.median(data)


def quantile(xs: Iterable[Any], q: float | Sequence[float]) -> Any:
    """Return the q-quantile, interpolated like ``numpy.quantile``; q is in 0..1.

    A list of q gives a list. A NaN item gives NaN. Raises ``statistics.StatisticsError`` if there are no items and
    ``ValueError`` for q out of range.

    >>> quantile([1, 2, 3, 4], 0.5)
    2.5
    """
    reducer = Quantile(q)
    data = sorted(elements(xs))
    if not data:
        return reducer.result()
    broken = any(x != x for x in data)
    values = [math.nan if broken else interpolate(data, one) for one in ([q] if isinstance(q, int | float) else q)]
    return values[0] if isinstance(q, int | float) else values


def histogram(
    xs: Iterable[Any], bins: int | Sequence[float] = 10, range: tuple[float, float] | None = None
) -> tuple[Counts, Floats]:
    """Return ``(counts, edges)`` as ``numpy.histogram``; array items are flattened.

    >>> histogram([1, 2, 2, 3], bins=2, range=(0, 4))[0].tolist()
    [1, 3]
    """
    parts = [as_floats(xs)] if hasattr(xs, "ndim") else [as_floats(x) for x in xs]
    counts, edges = np.histogram(np.concatenate([np.empty(0), *parts]), bins, range)
    return counts, edges
