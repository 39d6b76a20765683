"""Reducers of constant memory: len any all min max sum mean variance stdev first last.

Each gives what the plain function gives over the list of the items. ``sum`` and ``mean`` add integers exactly
and floats with compensation; ``variance`` merges by the formula of Chan, Golub and LeVeque (1979). Tensors of
an accelerator are combined by torch's own arithmetic in ``min max sum mean variance stdev first last``: no
Python comparison, no ``float()``, hence no wait for the device.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.items import MISSING, as_number, is_tensor, on_device, size_of


class Scalar:
    """What the reducers of this module share: they merge, and hold nothing but one value."""

    __slots__ = ()
    mergeable = True
    constant = True

    def held(self) -> int:
        """Return the bytes held for items, 0 for plain numbers."""
        return 0


class Length(Scalar):
    """``len``: counts the items and looks at none."""

    __slots__ = ("_n",)

    def __init__(self) -> None:
        self._n = 0

    def add(self, item: Any) -> None:
        """Count the item."""
        self._n += 1

    def result(self) -> int:
        """Return the count."""
        return self._n

    def merge(self, other: Self) -> None:
        """Add the count of the later part."""
        self._n += other._n


class AnyTrue(Scalar):
    """``any``: an item's truth is asked for until one is true."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found = False

    def add(self, item: Any) -> None:
        """Look at the item."""
        if not self._found and item:
            self._found = True

    def result(self) -> bool:
        """Return whether an item was true."""
        return self._found

    def merge(self, other: Self) -> None:
        """Join the later part."""
        self._found = self._found or other._found


class AllTrue(Scalar):
    """``all``: an item's truth is asked for until one is false."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = True

    def add(self, item: Any) -> None:
        """Look at the item."""
        if self._kept and not item:
            self._kept = False

    def result(self) -> bool:
        """Return whether every item was true."""
        return self._kept

    def merge(self, other: Self) -> None:
        """Join the later part."""
        self._kept = self._kept and other._kept


def _unordered(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


class Maximum(Scalar):
    """``max`` with ``key`` and ``default``; the first of equal items wins.

    Tensors of an accelerator must be scalars; among them a NaN wins, as in ``torch.maximum``.
    """

    __slots__ = ("_best", "_default", "_device", "_item", "_key", "_nan")
    plain: ClassVar[Callable[..., Any]] = max

    def __init__(self, *, key: Callable[[Any], Any] | None = None, default: Any = MISSING) -> None:
        self._key, self._default = key, default
        self._best: Any = MISSING
        self._item: Any = MISSING
        # Python's max returns a NaN that comes first and skips one that comes later, so that the value is not
        # associative. A leading NaN is kept apart, and `_best` goes on without it: then parts can be merged.
        self._nan: Any = MISSING
        self._device: Any = MISSING

    def _beats(self, value: Any) -> bool:
        return bool(value > self._best)

    def add(self, item: Any) -> None:
        """Compare the item with the best so far."""
        if self._key is not None:
            self._take(self._key(item), item)
        elif type(item) is float and type(self._best) is float:
            if item > self._best:
                self._best = self._item = item
        elif on_device(item):
            self._take_device(item)
        else:
            self._take(item, item)

    def _take(self, value: Any, item: Any) -> None:
        if self._best is MISSING:
            if not _unordered(value):
                self._best, self._item = value, item
            elif self._nan is MISSING and self._device is MISSING:
                self._nan = item
        elif self._beats(value):
            self._best, self._item = value, item

    def _take_device(self, item: Any) -> None:
        if item.numel() != 1:
            name = self.plain.__name__
            raise TypeError(
                f"{name} compares scalars, and an item is a tensor of shape {tuple(item.shape)}. "
                f"Reduce it first, as in: {name}(e.x.{name}() for e in events)"
            )
        item = item.detach()
        held = self._device
        self._device = item.clone() if held is MISSING else self._pick(held, item.to(held.device))

    def _pick(self, held: Any, item: Any) -> Any:
        return sys.modules["torch"].maximum(held, item)

    def _clamp(self, tensor: Any, number: Any) -> Any:
        return tensor.clamp(min=number)

    def result(self) -> Any:
        """Return the best item, else the default; raises ``ValueError`` where there is neither."""
        if self._nan is not MISSING:
            return self._nan
        if self._device is not MISSING:
            return self._device if self._item is MISSING else self._clamp(self._device, self._item)
        if self._item is not MISSING:
            return self._item
        return self.plain(()) if self._default is MISSING else self._default

    def merge(self, other: Self) -> None:
        """Join the later part: an equal item of this part wins."""
        if self._best is MISSING and self._device is MISSING and self._nan is MISSING:
            self._nan = other._nan
        if other._best is not MISSING:
            self._take(other._best, other._item)
        if other._device is not MISSING:
            self._take_device(other._device)

    def held(self) -> int:
        """Return the bytes of the best item."""
        return sum(size_of(kept) for kept in (self._item, self._device) if kept is not MISSING)


class Minimum(Maximum):
    """``min`` with ``key`` and ``default``; the first of equal items wins."""

    __slots__ = ()
    plain: ClassVar[Callable[..., Any]] = min

    def _beats(self, value: Any) -> bool:
        return bool(value < self._best)

    def add(self, item: Any) -> None:
        """Compare the item with the best so far."""
        if self._key is not None:
            self._take(self._key(item), item)
        elif type(item) is float and type(self._best) is float:
            if item < self._best:
                self._best = self._item = item
        elif on_device(item):
            self._take_device(item)
        else:
            self._take(item, item)

    def _pick(self, held: Any, item: Any) -> Any:
        return sys.modules["torch"].minimum(held, item)

    def _clamp(self, tensor: Any, number: Any) -> Any:
        return tensor.clamp(max=number)


def _wide(item: Any) -> Any:
    """A real floating array or tensor as a new one of double precision, else the item itself."""
    if isinstance(item, np.ndarray):
        return item.astype(np.float64) if item.dtype.kind == "f" and item.dtype.itemsize <= 8 else item
    if is_tensor(item):
        torch = sys.modules["torch"]
        item = item.detach()
        if item.is_floating_point():  # Apple's devices have no double precision
            return item.to(torch.float32 if item.device.type == "mps" else torch.float64, copy=True)
    return item


class _Arrays:
    """The running sum of items that are no Python numbers; floating arrays add up in double precision."""

    __slots__ = ("_narrow", "_owned", "total")

    def __init__(self, zero: bool, item: Any) -> None:
        self._narrow = getattr(item, "dtype", None)
        self.total = _wide(item)
        self._owned = self.total is not item
        if zero and not self._owned:
            self.total = 0 + self.total  # what sum does; it refuses strings and lists, and makes a new array

    def add(self, item: Any) -> None:
        dtype = getattr(item, "dtype", None)
        if dtype != self._narrow:
            self._narrow = None
        if isinstance(item, np.ndarray) and self._owned and isinstance(self.total, np.ndarray):
            if dtype is not None and dtype.kind == "f" and item.shape == self.total.shape:
                np.add(self.total, item, out=self.total)
                return
        elif is_tensor(item) and is_tensor(self.total):
            item = item.detach().to(self.total.device)
            # Two tensors of one shape promote to the wider type in one kernel; a scalar would not.
            self.total = self.total + (item if item.shape == self.total.shape else _wide(item))
            return
        self.total = self.total + item

    def value(self, divisor: int = 1) -> Any:
        total = self.total if divisor == 1 else self.total / divisor
        if self._narrow is None or not self._owned or not getattr(total, "ndim", 0):
            return total.copy() if isinstance(total, np.ndarray) and total is self.total else total
        return total.astype(self._narrow) if isinstance(total, np.ndarray) else total.to(self._narrow)


class Sum(Scalar):
    """``sum``: integers exactly, floats compensated, arrays and tensors element by element.

    An infinity or a NaN gives what Python's ``sum`` gives. ``start`` counts once, however many parts merge.
    Lists and tuples are joined if ``start`` is one, up to ``max_items`` elements in all.
    """

    __slots__ = ("_arrays", "_floats", "_lost", "_start", "_total", "_whole", "max_items")

    def __init__(self, start: Any = 0, *, max_items: int = 100_000) -> None:
        sum((), start)  # refuses a string, as Python does
        self._start = start
        self.max_items = max_items
        self._whole = 0
        self._total = 0.0
        self._lost = 0.0
        self._floats = False
        self._arrays: _Arrays | None = None

    def add(self, item: Any) -> None:
        """Add the item."""
        if type(item) is float:
            # TwoSum (Knuth 1969): total + lost is exact for this step; no branch, no call of abs.
            total = self._total
            self._total = new = total + item
            part = new - total
            self._lost += (total - (new - part)) + (item - part)
            self._floats = True
        elif type(item) is int:
            self._whole += item
        else:
            self._add_other(item)

    def _add_other(self, item: Any) -> None:
        if isinstance(item, np.generic) or (
            not getattr(item, "ndim", True) and not on_device(item) and hasattr(item, "item")
        ):
            item = item.item()
        if isinstance(item, int):
            self._whole += int(item)
        elif isinstance(item, float):
            Sum.add(self, float(item))
        elif self._arrays is None:
            self._arrays = _Arrays(isinstance(self._start, int | float | complex), item)
        else:
            self._arrays.add(item)
            total = self._arrays.total
            if isinstance(total, list | tuple) and len(total) > self.max_items:
                self._arrays = None
                raise ValueError(
                    f"sum joined more than {self.max_items:,} elements of lists in one window. Sum their "
                    "lengths, or use a smaller window."
                )

    def _numbers(self) -> Any:
        if not self._floats:
            return self._whole
        # The compensation is not finite as soon as the total is not: then the plain total is right.
        total = self._total + self._lost if math.isfinite(self._lost) else self._total
        return total + self._whole if self._whole else total

    def result(self) -> Any:
        """Return start + the items."""
        numbers = self._numbers()
        if self._arrays is None:
            return self._start + numbers if self._floats or isinstance(self._start, int) else (
                self._start + numbers if numbers else self._start
            )
        value = self._arrays.value()
        if self._floats or self._whole:
            value = value + numbers
        return value if type(self._start) is int and self._start == 0 else self._start + value

    def merge(self, other: Self) -> None:
        """Add the later part."""
        Sum.add(self, other._total)
        self._lost += other._lost
        self._whole += other._whole
        self._floats = other._floats or self._floats
        if other._arrays is None:
            return
        if self._arrays is None:
            self._arrays = other._arrays
        else:
            self._arrays.add(other._arrays.total)

    def held(self) -> int:
        """Return the bytes of the running sum of arrays, 0 for numbers."""
        return 0 if self._arrays is None else size_of(self._arrays.total)


class Mean(Sum):
    """``mean`` of numbers, as a float; of arrays and tensors, element by element."""

    __slots__ = ("_n",)

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def add(self, item: Any) -> None:
        """Add the item."""
        self._n += 1
        if type(item) is float:
            total = self._total
            self._total = new = total + item
            part = new - total
            self._lost += (total - (new - part)) + (item - part)
            self._floats = True
        elif type(item) is int:
            self._whole += item
        else:
            self._add_other(item)

    def result(self) -> Any:
        """Return the mean; raises ``StatisticsError`` where there is no item."""
        if not self._n:
            raise statistics.StatisticsError("mean requires at least one data point")
        numbers = self._numbers() / self._n
        if self._arrays is None:
            return numbers
        value = self._arrays.value(self._n)
        return value + numbers if self._floats or self._whole else value

    def merge(self, other: Self) -> None:
        """Add the later part."""
        super().merge(other)
        self._n += other._n


class Variance(Scalar):
    """``variance`` of a sample (divisor n - 1); of arrays and tensors, element by element.

    Values are taken relative to the first, so that a large common offset costs no digits.
    """

    __slots__ = ("_m2", "_mean", "_n", "_shift")
    name: ClassVar[str] = "variance"

    def __init__(self) -> None:
        self._n = 0
        self._shift: Any = 0.0
        self._mean: Any = 0.0
        self._m2: Any = 0.0

    def add(self, item: Any) -> None:
        """Add the item (Welford 1962)."""
        if type(item) is not float:
            item = self._convert(item)
        self._n = n = self._n + 1
        if n == 1:
            self._shift = item
            return
        value = item - self._shift
        away = value - self._mean
        self._mean = mean = self._mean + away / n
        self._m2 = self._m2 + away * (value - mean)

    def _convert(self, item: Any) -> Any:
        if (isinstance(item, np.ndarray) and item.ndim) or (is_tensor(item) and (item.ndim or on_device(item))):
            wide = _wide(item)
            if wide is item or (is_tensor(item) and not item.is_floating_point()):
                wide = item * 1.0  # integers and bools; also makes the array our own
            return wide
        return as_number(item, self.name)

    def result(self) -> Any:
        """Return the variance; raises ``StatisticsError`` where there are fewer than two items."""
        if self._n < 2:
            raise statistics.StatisticsError(f"{self.name} requires at least two data points")
        return self._m2 / (self._n - 1)

    def merge(self, other: Self) -> None:
        """Join the later part."""
        if not other._n:
            return
        if not self._n:
            self._n, self._shift, self._mean, self._m2 = other._n, other._shift, other._mean, other._m2
            return
        n = self._n + other._n
        away = (other._shift - self._shift) + (other._mean - self._mean)
        # away - away is 0, or NaN where an infinity is among the items: the variance has no value then.
        self._m2 = self._m2 + other._m2 + away * (away * (self._n * other._n / n)) + (away - away)
        self._mean = self._mean + away * (other._n / n)
        self._n = n

    def held(self) -> int:
        """Return the bytes of the running arrays, 0 for numbers."""
        return 0 if isinstance(self._shift, int | float) else 3 * size_of(self._shift)


class Deviation(Variance):
    """``stdev`` of a sample: the square root of the variance."""

    __slots__ = ()
    name: ClassVar[str] = "stdev"

    def result(self) -> Any:
        """Return the standard deviation; raises ``StatisticsError`` where there are fewer than two items."""
        variance = super().result()
        return math.sqrt(variance) if isinstance(variance, int | float) else variance**0.5


class First(Scalar):
    """``first``: keeps the first item."""

    __slots__ = ("_default", "_item")
    name: ClassVar[str] = "first"

    def __init__(self, default: Any = MISSING) -> None:
        self._default = default
        self._item: Any = MISSING

    def add(self, item: Any) -> None:
        """Keep the item if it is the first."""
        if self._item is MISSING:
            self._item = item

    def result(self) -> Any:
        """Return the item, else the default; raises ``ValueError`` where there is neither."""
        if self._item is not MISSING:
            return self._item
        if self._default is MISSING:
            raise ValueError(f"{self.name} of an empty sequence. Give it a default: {self.name}(xs, default=None)")
        return self._default

    def merge(self, other: Self) -> None:
        """Join the later part."""
        if self._item is MISSING:
            self._item = other._item

    def held(self) -> int:
        """Return the bytes of the kept item."""
        return 0 if self._item is MISSING else size_of(self._item)


class Last(First):
    """``last``: keeps the newest item."""

    __slots__ = ()
    name: ClassVar[str] = "last"

    def add(self, item: Any) -> None:
        """Keep the item."""
        self._item = item

    def merge(self, other: Self) -> None:
        """Join the later part."""
        if other._item is not MISSING:
            self._item = other._item


def elements(xs: Any) -> Iterable[Any]:
    """Return what to loop over: the elements of a one-dimensional array or tensor as Python numbers at once."""
    if (isinstance(xs, np.ndarray) or is_tensor(xs)) and xs.ndim == 1:
        numbers: list[Any] = xs.tolist()
        return numbers
    return xs  # type: ignore[no-any-return]


def mean(xs: Iterable[Any]) -> Any:
    """Return the mean: a float for numbers, element by element for arrays and tensors.

    Raises ``statistics.StatisticsError`` where there is no item.

    >>> mean([1, 2, 6])
    3.0
    """
    if on_device(xs) and getattr(xs, "ndim", 0) == 1 and len(xs):  # type: ignore[arg-type]
        return _wide(xs * 1.0).mean()  # type: ignore[operator]
    reducer = Mean()
    for x in elements(xs):
        reducer.add(x)
    return reducer.result()


def variance(xs: Iterable[Any]) -> Any:
    """Return the variance of a sample, as ``statistics.variance``; arrays element by element.

    >>> variance([1, 2, 6])
    7.0
    """
    reducer = Variance()
    for x in elements(xs):
        reducer.add(x)
    return reducer.result()


def stdev(xs: Iterable[Any]) -> Any:
    """Return the standard deviation of a sample, as ``statistics.stdev``; arrays element by element.

    >>> stdev([1, 3, 5])
    2.0
    """
    reducer = Deviation()
    for x in elements(xs):
        reducer.add(x)
    return reducer.result()


def first(xs: Iterable[Any], default: Any = MISSING) -> Any:
    """Return the first item, else the default; raises ``ValueError`` where there is neither.

    >>> first([3, 1, 2])
    3
    """
    reducer = First(default)
    for x in xs:
        reducer.add(x)
        break
    return reducer.result()


def last(xs: Iterable[Any], default: Any = MISSING) -> Any:
    """Return the last item, else the default; raises ``ValueError`` where there is neither.

    >>> last([3, 1, 2])
    2
    """
    reducer = Last(default)
    for x in xs:
        reducer.add(x)
    return reducer.result()
