"""Two summaries of many numbers in bounded memory, each with a proven bound of its error, and their reducers.

``QuantileSketch`` (for ``median`` and ``quantile``) is exact for up to 4096 numbers. Beyond, full buffers are
sorted and every second number is kept with twice the weight (Manku, Rajagopalan and Lindsay 1998), alternating
between the even and the odd ones. One such step moves the rank of any value by at most its weight, upwards for
the even, downwards for the odd numbers: the two sums are kept, and their larger one is the bound. It grows like
n log2(n/4096) / 8192: 0.1 % of n at a million numbers.

``FineGrid`` (for ``histogram``) counts numbers in 8192 or more cells of one width, a power of two. A number out
of range doubles the width, which joins cells in pairs, so that grids merge exactly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.items import DEFAULT_BOUNDS, Bounds, as_floats, as_number
from looptap.streams.scalars import elements

EXACT = 4096
"""Numbers up to which a quantile is exact; also the size of a buffer. Even."""

EXACT_HISTOGRAM = 65_536
"""Numbers up to which a histogram of unknown range is exact."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]


class QuantileSketch:
    """Numbers, of which it can tell any quantile and by how much that may be wrong."""

    __slots__ = ("_buffer", "_levels", "_nan", "_over", "_steps", "_under", "highest", "lowest", "n")
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
        """Add a number; raises ``TypeError`` for what is none."""
        if type(item) is not float and type(item) is not int:
            item = as_number(item, self.name)
        buffer = self._buffer
        buffer.append(item)
        if len(buffer) > EXACT:
            self._compress()

    @property
    def exact(self) -> bool:
        """Whether every number is still there."""
        return not self._steps

    def error(self) -> float:
        """Return the bound of the rank error as a fraction of the count; 0.0 while exact."""
        n = self.n + len(self._buffer)
        return (max(self._over, self._under) + 1) / n if self._steps else 0.0

    def held(self) -> int:
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
        if len(self._buffer) > EXACT:
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
        if size < EXACT:
            return
        numbers = np.sort(np.concatenate(level), kind="stable")
        even = size // 2 * 2
        level[:] = [numbers[even:]] if size > even else []
        self._keep_half(number + 1, numbers[:even])
        self._compact(number + 1)

    def _keep_half(self, number: int, numbers: Floats) -> None:
        """Put every second of the sorted numbers of weight 2 ** number into the level of twice the weight."""
        odd = self._count(number, 1) % 2
        if odd:
            self._under += 2**number
        else:
            self._over += 2**number
        self._level(number).append(numbers[odd::2])

    def _any_nan(self) -> bool:
        return self._nan or any(x != x for x in self._buffer)

    def quantile(self, q: float) -> Any:
        """Return the q-quantile: exact and interpolated like numpy's, else a number of about that rank."""
        if self._any_nan():
            return math.nan
        if self.exact:
            return _interpolate(sorted(self._buffer), q)
        values = np.concatenate([np.array(self._buffer, dtype=np.float64), *sum(self._levels, [])])
        weights = np.concatenate(
            [np.ones(len(self._buffer), dtype=np.int64)]
            + [np.full(part.size, 2 << i) for i, level in enumerate(self._levels) for part in level]
        )
        lowest, highest = min(self.lowest, *self._buffer), max(self.highest, *self._buffer)
        if q <= 0 or q >= 1:
            return float(lowest if q <= 0 else highest)
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        rank = q * (self.n + len(self._buffer) - 1) + 1
        return float(values[order[min(int(np.searchsorted(ranks, rank)), len(order) - 1)]])


def _interpolate(ordered: Sequence[Any], q: float) -> Any:
    """Between the two neighbours of position q (n - 1), as numpy's method "linear"."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    part = position - below
    low = ordered[below]
    if not part:
        return low
    high = ordered[below + 1]
    if low == high:  # also two equal infinities, whose difference is no number
        return low
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


class Median(QuantileSketch):
    """``median``, as ``statistics.median`` while exact."""

    __slots__ = ()
    name: ClassVar[str] = "median"

    def result(self) -> Any:
        """Return the median, NaN where a NaN is among the items; raises ``StatisticsError`` for no item."""
        if not self.n and not self._buffer:
            raise statistics.StatisticsError("no median for empty data")
        if self.exact and not self._any_nan():
            return statistics.median(self._buffer)
        return self.quantile(0.5)


class Quantile(QuantileSketch):
    """``quantile(xs, q)`` for q in 0..1; a list of them gives a list."""

    __slots__ = ("_q",)

    def __init__(self, q: float | Sequence[float]) -> None:
        super().__init__()
        self._q: float | list[float] = list(q) if isinstance(q, list | tuple | np.ndarray) else q  # type: ignore[assignment]
        for one in self._q if isinstance(self._q, list) else [self._q]:
            if not 0 <= one <= 1:
                raise ValueError(f"quantile takes q in 0..1, and q is {one!r}. Write 0.95 for the 95th percentile.")

    def result(self) -> Any:
        """Return the quantile, NaN where a NaN is among the items; raises ``StatisticsError`` for no item."""
        if not self.n and not self._buffer:
            raise statistics.StatisticsError("quantile requires at least one data point")
        return [self.quantile(q) for q in self._q] if isinstance(self._q, list) else self.quantile(self._q)


class FineGrid:
    """Counts of finite numbers in cells of the width ``2 ** exponent``; ``base`` numbers the first cell."""

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
        self._cover(min(self.lowest, float(numbers.min())), max(self.highest, float(numbers.max())), self.exponent)
        self._count(numbers)

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
        """Double the width until the cells reach from lowest to highest, and at least to the exponent."""
        self.lowest, self.highest = lowest, highest
        # A cell's number must be an integer that a float can tell from the next one: at most 2 ** 52.
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
        """Return the fraction of the numbers whose cell lies across an edge between two bins."""
        edges = np.histogram_bin_edges(np.array([self.lowest, self.highest]), bins)[1:-1]
        cells = np.unique(np.floor(np.ldexp(edges, -self.exponent)).astype(np.int64)) - self.base
        return float(self.counts[cells[(cells >= 0) & (cells < self.counts.size)]].sum() / self.counts.sum())


class Histogram:
    """``histogram(xs, bins=10, range=None)``: counts and edges as numpy's; array items are flattened.

    With edges or a range it streams exactly. Of an unknown range it is exact for up to 65,536 numbers, then a
    ``FineGrid``; ``error()`` tells the fraction of the numbers that may count in the bin next to theirs.
    """

    __slots__ = ("_bad", "_bins", "_counts", "_edges", "_grid", "_kept", "_numbers", "_pending", "_range")
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
        self._counts, self._edges = np.histogram(np.empty(0), bins, range)  # checks both as numpy does
        self._pending: list[float] = []
        self._kept: list[Floats] = []
        self._numbers = 0
        self._grid: FineGrid | None = None
        self._bad: float | None = None

    @property
    def _fixed(self) -> bool:
        return self._range is not None or not isinstance(self._bins, int)

    def add(self, item: Any) -> None:
        """Count a number, or all numbers of an array or a tensor."""
        if type(item) is float or type(item) is int:
            self._pending.append(item)
            if len(self._pending) >= EXACT:
                self._flush()
        else:
            self._take(as_floats(item).copy())

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
            self._bad = float(numbers[~finite][0])
            self._kept, self._grid = [], None
        if self._bad is not None:
            return
        self._numbers += numbers.size
        if self._grid is not None:
            self._grid.add(numbers)
            return
        self._kept.append(numbers)
        if self._numbers > EXACT_HISTOGRAM:
            assert isinstance(self._bins, int)
            self._grid = FineGrid(np.concatenate(self._kept), 1 << max(13, (64 * self._bins - 1).bit_length()))
            self._kept = []

    def result(self) -> tuple[Counts, Floats]:
        """Return ``(counts, edges)``; raises ``ValueError`` for an infinity or a NaN without a range."""
        self._flush()
        if self._bad is not None:
            raise ValueError(
                f"histogram found {self._bad} among the items and cannot choose a range. Give it one, as in "
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
        """Return the fraction of the numbers that may count in the bin next to theirs; 0.0 while exact."""
        self._flush()
        return 0.0 if self._grid is None or not isinstance(self._bins, int) else self._grid.error(self._bins)

    def merge(self, other: Self) -> None:
        """Add the counts of the later part, which has the same bins."""
        self._flush()
        other._flush()
        if self._fixed:
            self._counts = self._counts + other._counts
            return
        if other._bad is not None:
            self._take(np.array([other._bad]))
        for numbers in other._kept:
            self._take(numbers)
        if other._grid is None or self._bad is not None:
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

    def held(self) -> int:
        """Return the bytes held."""
        grid = 0 if self._grid is None else self._grid.counts.nbytes
        return 32 * len(self._pending) + 8 * self._numbers * (not grid) + grid + self._counts.nbytes


def median(xs: Iterable[Any]) -> Any:
    """Return the median as ``statistics.median``, but NaN where a NaN is among the items.

    >>> median([3, 1, 2])
    2
    """
    data = list(elements(xs))
    if any(x != x for x in data):
        return math.nan
    return statistics.median(data)


def quantile(xs: Iterable[Any], q: float | Sequence[float]) -> Any:
    """Return the q-quantile, q in 0..1, interpolated as ``numpy.quantile`` does; a list of q gives a list.

    A NaN among the items gives NaN. Raises ``statistics.StatisticsError`` where there is no item and
    ``ValueError`` for q out of range.

    >>> quantile([1, 2, 3, 4], 0.5)
    2.5
    """
    reducer = Quantile(q)
    data = sorted(elements(xs))
    if not data:
        return reducer.result()
    broken = any(x != x for x in data)
    qs = [q] if not isinstance(q, list | tuple | np.ndarray) else list(q)
    values = [math.nan if broken else _interpolate(data, one) for one in qs]
    return values if isinstance(q, list | tuple | np.ndarray) else values[0]


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
