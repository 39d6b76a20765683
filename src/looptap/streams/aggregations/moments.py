"""Reducers of sums: sum mean variance stdev.

``sum`` and ``mean`` add integers exactly and floats with compensation; ``variance`` merges by the formula of Chan,
Golub and LeVeque (1979). All work element-wise on arrays and tensors, and on an accelerator with torch's arithmetic
only: nothing waits for the device.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np

from looptap.streams.aggregations.extrema import ScalarReducer
from looptap.streams.aggregations.sketches import Floats
from looptap.streams.aggregations.state import PARTS, ItemSeries
from looptap.streams.values.sizing import as_number, size_of
from looptap.streams.values.torch_interop import is_tensor, on_device


def _wide(item: Any) -> Any:
    """Return a double-precision copy of a floating array or tensor, else the item."""
    if isinstance(item, np.ndarray):
        return item.astype(np.float64) if item.dtype.kind == "f" and item.dtype.itemsize <= 8 else item
    if is_tensor(item):
        item = item.detach()
        return item.to(_double(item), copy=True) if item.is_floating_point() else item
    return item


def _double(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # Apple's devices have no doubles


def _real(item: Any) -> Any:
    """Return an integer or bool array or tensor as floats, else the item itself."""
    if isinstance(item, np.ndarray) and item.dtype.kind in "biu":
        return item.astype(np.float64)
    if is_tensor(item) and not (item.is_floating_point() or item.is_complex()):
        return item.to(_double(item))
    return item


class _Others:
    """The running sum of arrays and other objects; floats are in double precision.

    ``narrow`` is the dtype that all of them had, to which the result is cast back; ``wide`` is True if the sum was
    widened, and so is an array of our own.
    """

    __slots__ = ("narrow", "total", "wide")

    def __init__(self, item: Any, zero: bool) -> None:
        self.narrow = getattr(item, "dtype", None)
        self.total = _wide(item)
        self.wide = self.total is not item and bool(getattr(item, "ndim", 0))
        if zero and not self.wide:
            self.total = 0 + self.total  # like Python's sum: refuses strings and lists

    def add(self, item: Any) -> None:
        dtype = getattr(item, "dtype", None)
        if dtype != self.narrow:
            self.narrow = None
        total = self.total
        if is_tensor(item) and is_tensor(total):
            item = item.detach().to(total.device)
            # The addition promotes tensors of one shape to the wider type, but not always a scalar.
            self.total = total + (item if item.shape == total.shape else _wide(item))
        elif self._fits(item):
            np.add(total, item, out=total)
        else:
            self.total = total + item

    def _fits(self, item: Any) -> bool:
        arrays = isinstance(item, np.ndarray) and isinstance(self.total, np.ndarray)
        return self.wide and arrays and item.dtype.kind == "f" and item.shape == self.total.shape

    def merge(self, other: _Others) -> None:
        narrow = self.narrow if self.narrow == other.narrow else None
        self.add(other.total)
        self.narrow = narrow

    def copy(self) -> _Others:
        new = copy.copy(self)
        if isinstance(new.total, np.ndarray):
            new.total = new.total.copy()  # it is added to in place
        return new

    def tagged(self) -> list[Any]:
        """Return this sum as a part of a state."""
        narrow = None if self.narrow is None else str(self.narrow).removeprefix("torch.")
        return ["others", narrow, self.total, self.wide]

    def value(self, divisor: int = 1) -> Any:
        total = self.total / divisor if divisor > 1 else self.total
        if self.wide and self.narrow is not None and getattr(total, "dtype", None) != self.narrow:
            return total.astype(self.narrow) if isinstance(total, np.ndarray) else total.to(self.narrow)
        return total.copy() if isinstance(total, np.ndarray) else total


def _others_of(narrow: str | None, total: Any, wide: bool) -> _Others:
    others = _Others(total, zero=False)
    others.total, others.wide, others.narrow = total, wide, _dtype(narrow, total)
    return others


def _dtype(name: str | None, total: Any) -> Any:
    if name is None:
        return None
    if isinstance(total, np.ndarray):
        try:
            return np.dtype(name)
        except TypeError:  # bfloat16, without torch
            return None
    return getattr(sys.modules.get("torch"), name, None)


PARTS["others"] = _others_of


MIN_VECTOR_ITEMS = 32
"""Floats from which numpy adds faster than Python."""


class Sum(ScalarReducer):
    """``sum``: exact for integers, compensated for floats, element-wise for arrays.

    An infinity or a NaN gives the result of Python's ``sum``. ``start`` counts once, however many parts merge. Lists
    and tuples are joined if ``start`` is one, up to ``max_items`` elements in all.
    """

    __slots__ = ("_floats", "_lost", "_others", "_start", "_total", "_whole", "max_items")
    kept: ClassVar[tuple[str, ...]] = ("_whole", "_total", "_lost", "_floats", "_others")

    def __init__(self, start: Any = 0, *, max_items: int = 100_000) -> None:
        sum((), start)  # refuses a string, as Python does
        self._start = start
        self.max_items = max_items
        self._whole = 0
        self._total = 0.0
        self._lost = 0.0
        self._floats = False
        self._others: _Others | None = None

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

    def extend(self, items: ItemSeries) -> None:
        """Add the items, in order."""
        if not isinstance(items, np.ndarray) or (items.dtype.kind == "f" and len(items) < MIN_VECTOR_ITEMS):
            super().extend(items)
        elif items.dtype.kind == "f":
            self._add_floats(items)
        else:
            self._whole += sum(items.tolist())

    def _add_floats(self, items: Floats) -> None:
        """Do what `add` does for each float: the same steps, from left to right."""
        with np.errstate(all="ignore"):
            totals = np.add.accumulate(np.concatenate(([self._total], items)))
            before, after = totals[:-1], totals[1:]
            part = after - before
            lost = np.concatenate(([self._lost], (before - (after - part)) + (items - part)))
            self._total, self._lost = float(totals[-1]), float(np.add.accumulate(lost)[-1])
        self._floats = True

    def _add_other(self, item: Any) -> None:
        if isinstance(item, np.generic) or (
            not getattr(item, "ndim", True) and not on_device(item) and hasattr(item, "item")
        ):
            item = item.item()
        if isinstance(item, int):
            self._whole += int(item)
        elif isinstance(item, float):
            Sum.add(self, float(item))
        elif self._others is None:
            self._others = _Others(item, isinstance(self._start, int | float | complex))
        else:
            self._others.add(item)
            joined = self._others.total
            if isinstance(joined, list | tuple) and len(joined) > self.max_items:
                raise ValueError(
                    f"sum joined more than {self.max_items:,} elements of lists in one window. Sum their "
                    "lengths, or use a smaller window."
                )

    def _numbers(self) -> Any:
        if not self._floats:
            return self._whole
        # If the total is not finite, nor is the compensation: then the plain total is right.
        total = self._total + self._lost if math.isfinite(self._lost) else self._total
        return total + self._whole if self._whole else total

    def result(self) -> Any:
        """Return start + the items."""
        total = self._start
        if self._others is not None:
            others = self._others.value()
            total = total + others if type(total) is not int or total else others
        return total + self._numbers() if self._floats or self._whole else total

    def merge(self, other: Self) -> None:
        """Add the later part."""
        if other._floats and not self._floats and type(other._total) is float:  # what `add` gives for the first one
            self._total, self._lost, self._floats = other._total, self._lost + other._lost, True
        elif other._floats:
            Sum.add(self, other._total)
            self._lost += other._lost
        self._whole += other._whole
        if other._others is None:
            return
        if self._others is None:
            self._others = other._others.copy()
        else:
            self._others.merge(other._others)

    def nbytes(self) -> int:
        """Return the bytes of the running sum of arrays, 0 for numbers."""
        return 0 if self._others is None else size_of(self._others.total)


class Mean(Sum):
    """``mean`` of numbers, as a float; element-wise for arrays and tensors."""

    __slots__ = ("_n",)
    kept = (*Sum.kept, "_n")

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def add(self, item: Any) -> None:
        """Add the item."""
        self._n += 1
        if type(item) is float:  # as in Sum.add, whose call would cost 100 ns more: bench_emit_reducing, "mean"
            total = self._total
            self._total = new = total + item
            part = new - total
            self._lost += (total - (new - part)) + (item - part)
            self._floats = True
        elif type(item) is int:
            self._whole += item
        else:
            self._add_other(_real(item))

    def extend(self, items: ItemSeries) -> None:
        """Add the items, in order."""
        before = self._n
        super().extend(items)
        self._n = before + len(items)  # however they were added

    def result(self) -> Any:
        """Return the mean; raises ``StatisticsError`` if there are no items."""
        if not self._n:
            raise statistics.StatisticsError("mean requires at least one data point")
        numbers = self._numbers() / self._n
        if self._others is None:
            return numbers
        value = self._others.value(self._n)
        return value + numbers if self._floats or self._whole else value

    def merge(self, other: Self) -> None:
        """Add the later part."""
        super().merge(other)
        self._n += other._n


class Variance(ScalarReducer):
    """``variance`` of a sample (divisor n - 1); element-wise for arrays and tensors.

    Values are taken relative to the first, so that a large common offset costs no precision.
    """

    __slots__ = ("_m2", "_mean", "_n", "_shift")
    kept = ("_n", "_shift", "_mean", "_m2")
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
        if getattr(item, "ndim", 0) or on_device(item):
            return _wide(_real(item))
        return as_number(item, self.name)

    def result(self) -> Any:
        """Return the variance; raises ``StatisticsError`` for fewer than two items."""
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
        # away - away is 0, or NaN if an item is infinite: then the variance is undefined.
        self._m2 = self._m2 + other._m2 + away * (away * (self._n * other._n / n)) + (away - away)
        self._mean = self._mean + away * (other._n / n)
        self._n = n

    def nbytes(self) -> int:
        """Return the bytes of the running arrays, 0 for numbers."""
        return 0 if isinstance(self._shift, int | float) else 3 * size_of(self._shift)


class Deviation(Variance):
    """``stdev`` of a sample: the square root of the variance."""

    __slots__ = ()
    name: ClassVar[str] = "stdev"

    def result(self) -> Any:
        """Return the deviation; raises ``StatisticsError`` for fewer than two items."""
        variance = super().result()
        return math.sqrt(variance) if isinstance(variance, int | float) else variance**0.5


def elements(xs: Any) -> Iterable[Any]:
    """Return an iterable: a 1-d array or tensor as Python numbers, the rest as it is."""
    if (isinstance(xs, np.ndarray) or is_tensor(xs)) and xs.ndim == 1:
        numbers: list[Any] = xs.tolist()
        return numbers
    if isinstance(xs, int | float) or getattr(xs, "ndim", 1) == 0:
        raise TypeError("this is one value, not several. Over the events of a window: mean(e.loss for e in events)")
    return xs  # type: ignore[no-any-return]


def _reduced(reducer: Mean | Variance, xs: Any) -> Any:
    for x in elements(xs.compressed() if isinstance(xs, np.ma.MaskedArray) and xs.ndim == 1 else xs):
        reducer.add(x)
    return reducer.result()


def mean(xs: Iterable[Any]) -> Any:
    """Return the mean: a float for numbers, element-wise for arrays and tensors.

    Raises ``statistics.StatisticsError`` if there are no items.

    >>> mean([1, 2, 6])
    3.0
    """
    if on_device(xs) and getattr(xs, "ndim", 0) == 1 and len(xs):  # type: ignore[arg-type]
        return _wide(_real(xs)).mean()
    return _reduced(Mean(), xs)


def variance(xs: Iterable[Any]) -> Any:
    """Return the sample variance as ``statistics.variance``; arrays element-wise.

    >>> variance([1, 2, 6])
    7.0
    """
    return _reduced(Variance(), xs)


def stdev(xs: Iterable[Any]) -> Any:
    """Return the sample deviation as ``statistics.stdev``; arrays element-wise.

    >>> stdev([1, 3, 5])
    2.0
    """
    return _reduced(Deviation(), xs)
