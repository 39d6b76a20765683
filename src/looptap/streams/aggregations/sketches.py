"""Two sketches of numbers in bounded memory, each with a proven error bound.

``QuantileSketch`` (for ``median`` and ``quantile``) is exact for up to 4096 numbers. Beyond, full buffers are sorted
and every second number is kept with twice the weight (Manku, Rajagopalan and Lindsay 1998), alternating between the
even and the odd ones. One such step moves the rank of any value by at most its weight, upwards for the even, downwards
for the odd numbers: both sums are kept, and their mean is the bound. It grows like n log2(n/4096) / 8192: 0.1% of n
at a million numbers.

``FineGrid`` (for ``histogram``) counts numbers in 8192 or more cells of one width, a power of two. A number out of
range doubles the width, which joins cells in pairs, so that grids merge exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.aggregations.state import PARTS, ItemSeries, Stateful
from looptap.streams.values.sizing import as_number

MAX_EXACT_NUMBERS = 4096
"""Numbers up to which a quantile is exact; also the size of a buffer. Even."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]


class QuantileSketch(Stateful):
    """An estimate of any quantile of the added numbers, with an error bound."""

    __slots__ = ("_buffer", "_levels", "_nan", "_over", "_steps", "_under", "highest", "lowest", "n")
    kept = ("_buffer", "_levels", "_steps", "_over", "_under", "_nan", "lowest", "highest", "n")
    name: ClassVar[str] = "quantile"
    mergeable = True
    constant = False

    def __init__(self) -> None:
        self._buffer: list[Any] = []
        self._levels: list[list[Floats]] = []  # level i holds sorted numbers of weight 2 ** (i + 1)
        self._steps: list[int] = []  # compactions of each level: their parity says which half is kept
        self._over = self._under = 0
        self._nan = False
        self.lowest, self.highest = math.inf, -math.inf
        self.n = 0

    def add(self, item: Any) -> None:
        """Add a number; raises ``TypeError`` for anything else."""
        if type(item) is not float and type(item) is not int:
            item = as_number(item, self.name)
        buffer = self._buffer
        buffer.append(item)
        if len(buffer) > MAX_EXACT_NUMBERS:
            self._compress()

    def extend(self, items: ItemSeries) -> None:
        """Add numbers, in order."""
        if not isinstance(items, np.ndarray):
            super().extend(items)
            return
        start, numbers = 0, items.tolist()
        while start < len(numbers):
            end = start + MAX_EXACT_NUMBERS + 1 - len(self._buffer)
            self._buffer.extend(numbers[start:end])
            start = end
            if len(self._buffer) > MAX_EXACT_NUMBERS:
                self._compress()

    @property
    def exact(self) -> bool:
        """True while every number is kept."""
        return not self._steps

    def error(self) -> float:
        """Return the bound of the rank error as a fraction of the count; 0.0 while exact."""
        n = self.n + len(self._buffer)
        return ((self._over + self._under) / 2 + 1) / n if self._steps else 0.0

    def nbytes(self) -> int:
        """Return the bytes held."""
        return 32 * len(self._buffer) + sum(8 * part.size for level in self._levels for part in level)

    def merge(self, other: Self) -> None:
        """Join another sketch; the bounds of the error add up."""
        self._buffer.extend(other._buffer)
        for number, parts in enumerate(other._levels):
            self._level(number).extend(parts)
        for number, steps in enumerate(other._steps):
            self._count(number, steps)
        self._over += other._over
        self._under += other._under
        self._nan = self._nan or other._nan
        self.n += other.n
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        if len(self._buffer) > MAX_EXACT_NUMBERS:
            self._compress()
        number = 0
        while number < len(self._levels):
            self._compact(number)
            number += 1

    def _level(self, number: int) -> list[Floats]:
        while len(self._levels) <= number:
            self._levels.append([])
        return self._levels[number]

    def _count(self, number: int, steps: int) -> int:
        while len(self._steps) <= number:
            self._steps.append(0)
        before = self._steps[number]
        self._steps[number] += steps
        return before

    def _compress(self) -> None:
        """Move the buffer, except for its last items, into the first level."""
        numbers = np.array(self._buffer, dtype=np.float64)
        unordered = np.isnan(numbers)
        if unordered.any():
            self._nan = True
            self.n += int(unordered.sum())
            numbers = numbers[~unordered]
        even = (len(numbers) - 1) // 2 * 2
        self._buffer = numbers[even:].tolist()
        if even:
            numbers = np.sort(numbers[:even])
            self.n += even
            self.lowest, self.highest = min(self.lowest, numbers[0]), max(self.highest, numbers[-1])
        self._keep_half(0, numbers[:even])
        self._compact(0)

    def _compact(self, number: int) -> None:
        """Halve a full level of weight 2 ** (number + 1) into the next one."""
        level = self._level(number)
        size = sum(part.size for part in level)
        if size < MAX_EXACT_NUMBERS:
            return
        numbers = np.sort(np.concatenate(level), kind="stable")
        even = size // 2 * 2
        level[:] = [numbers[even:]] if size > even else []
        self._keep_half(number + 1, numbers[:even])
        self._compact(number + 1)

    def _keep_half(self, number: int, numbers: Floats) -> None:
        """Move every second of the sorted numbers to the level of twice the weight."""
        odd = self._count(number, 1) % 2
        if odd:
            self._under += 2**number
        else:
            self._over += 2**number
        self._level(number).append(numbers[odd::2])

    def _any_nan(self) -> bool:
        return self._nan or any(x != x for x in self._buffer)

    def quantile(self, q: float) -> Any:
        """Return the q-quantile: exact like numpy's, else a number of about that rank."""
        if self._any_nan():
            return math.nan
        if self.exact:
            return interpolate(sorted(self._buffer), q)
        values = np.concatenate([np.array(self._buffer, dtype=np.float64), *chain(*self._levels)])
        weights = np.concatenate(
            [np.ones(len(self._buffer), dtype=np.int64)]
            + [np.full(part.size, 2 << i) for i, level in enumerate(self._levels) for part in level]
        )
        lowest, highest = min(self.lowest, *self._buffer), max(self.highest, *self._buffer)
        if q <= 0 or q >= 1:
            return float(lowest if q <= 0 else highest)
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        # An estimated rank is at most `over` too high and `under` too low: aim at the middle.
        rank = q * (self.n + len(self._buffer) - 1) + 1 + (self._over - self._under) / 2
        return float(values[order[min(int(np.searchsorted(ranks, rank)), len(order) - 1)]])


def interpolate(ordered: Sequence[Any], q: float) -> Any:
    """Interpolate at position q (n - 1), like numpy's method "linear"."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    part = position - below
    low = ordered[below]
    if not part:
        return low
    high = ordered[below + 1]
    if low == high:  # includes two equal infinities, whose difference is NaN
        return low
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


class FineGrid:
    """Counts of finite numbers in cells of ``2 ** exponent``, numbered from ``base``."""

    __slots__ = ("base", "counts", "exponent", "highest", "lowest")

    def __init__(self, numbers: Floats, cells: int) -> None:
        self.lowest, self.highest = float(numbers.min()), float(numbers.max())
        self.counts: Counts = np.zeros(cells, dtype=np.int64)
        span = self.highest / 2 - self.lowest / 2
        self.exponent = math.frexp(span)[1] + 2 - cells.bit_length() if span else -1022
        self.base = 0
        self._cover(self.lowest, self.highest, self.exponent)
        self._count(numbers)

    def add(self, numbers: Floats) -> None:
        """Count more numbers."""
        lowest, highest = float(numbers.min()), float(numbers.max())
        self._cover(min(self.lowest, lowest), max(self.highest, highest), self.exponent)
        self._count(numbers)

    def tagged(self) -> list[Any]:
        """Return this grid as part of a state."""
        return ["grid", (self.base, self.counts, self.exponent, self.highest, self.lowest)]

    def merge(self, other: FineGrid) -> None:
        """Add the counts of another grid."""
        self._cover(min(self.lowest, other.lowest), max(self.highest, other.highest), other.exponent)
        filled = np.flatnonzero(other.counts)
        cells = ((other.base + filled) >> (self.exponent - other.exponent)) - self.base
        np.add.at(self.counts, cells, other.counts[filled])

    def _count(self, numbers: Floats) -> None:
        cells = np.floor(np.ldexp(numbers, -self.exponent)).astype(np.int64) - self.base
        self.counts += np.bincount(cells, minlength=self.counts.size)

    def _cover(self, lowest: float, highest: float, exponent: int) -> None:
        """Double the width, to at least ``exponent``, until the cells span the range."""
        self.lowest, self.highest = lowest, highest
        # A cell's number must be an integer that a float represents exactly: at most 2 ** 52.
        exponent = max(exponent, self.exponent, math.frexp(max(abs(lowest), abs(highest)))[1] - 52)
        first, end = (math.floor(math.ldexp(x, -exponent)) for x in (lowest, highest))
        while end - first >= self.counts.size:
            first, end, exponent = first >> 1, end >> 1, exponent + 1
        shift = exponent - self.exponent
        filled = np.flatnonzero(self.counts)
        if not shift and first >= self.base and end < self.base + self.counts.size:
            return
        # Centred, so that a value a little out of range on either side moves nothing.
        base = first - (self.counts.size - 1 - (end - first)) // 2
        counts = np.zeros_like(self.counts)
        if filled.size:
            np.add.at(counts, ((self.base + filled) >> min(shift, 63)) - base, self.counts[filled])
        self.counts, self.base, self.exponent = counts, base, exponent

    def histogram(self, bins: int) -> tuple[Counts, Floats]:
        """Return counts and edges of equal bins from the lowest to the highest number."""
        edges = np.histogram_bin_edges(np.array([self.lowest, self.highest]), bins)
        filled = np.flatnonzero(self.counts)
        middles = np.ldexp(self.base + filled + 0.5, self.exponent).clip(self.lowest, self.highest)
        counts = np.histogram(middles, bins, (edges[0], edges[-1]), weights=self.counts[filled])[0]
        return counts.astype(np.int64), edges

    def error(self, bins: int) -> float:
        """Return the fraction of numbers whose cell crosses an edge between two bins."""
        edges = np.histogram_bin_edges(np.array([self.lowest, self.highest]), bins)[1:-1]
        cells = np.unique(np.floor(np.ldexp(edges, -self.exponent)).astype(np.int64)) - self.base
        return float(self.counts[cells[(cells >= 0) & (cells < self.counts.size)]].sum() / self.counts.sum())


def _grid_of(state: tuple[Any, ...]) -> FineGrid:
    grid = FineGrid.__new__(FineGrid)
    grid.base, grid.counts, grid.exponent, grid.highest, grid.lowest = state
    return grid


PARTS["grid"] = _grid_of
