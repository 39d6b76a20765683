"""`Features`: one row of numbers an instance, as an array, sparse, or computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from looptap.training.sampling.permutation_walk import Floats, Ints

_MAX_ROWS_PER_PART = 4096  # of a table that is checked


class Rows(Protocol):
    """The rows of some instances."""

    def dot(self, weights: Floats) -> Floats:
        """Return the product of each row with ``weights``."""

    def gradient(self, errors: Floats) -> Floats:
        """Return the sum of the rows, each times its error."""


class Features:
    """Base class of features: ``size`` rows of ``width`` numbers."""

    learning_rate: float = 0.01
    """The step of an assistant with these features: that of the authors for pixels."""
    decay: float = 1e-3
    """By which share its weights shrink in each step."""

    def __init__(self, size: int, width: int) -> None:
        self.size, self.width = size, width

    def rows(self, indices: Ints) -> Rows:
        """Return the rows of ``indices``."""
        raise NotImplementedError

    @property
    def arrays(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        return {}

    @property
    def nbytes(self) -> int:
        """The memory that they take, in bytes."""
        return sum(one.nbytes for one in self.arrays.values() if isinstance(one, np.ndarray))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._shape}, {_readable(self.nbytes)}>"

    @property
    def _shape(self) -> str:
        return f"{self.size:,} rows of {self.width:,} numbers"


class DenseFeatures(Features):
    """An array of shape (n, d); ``labels`` adds one column a class.

    >>> DenseFeatures(np.zeros((1000, 64)))
    <DenseFeatures: 1,000 rows of 64 numbers, 256.0 KB>
    """

    def __init__(self, table: Any, labels: Any = None, classes: int | None = None) -> None:
        self.table = np.ascontiguousarray(_numbers("features", table), np.float32)
        if self.table.ndim != 2:
            raise ValueError(f"features of shape {self.table.shape} must be (n, d): one row for each instance.")
        _check_finite(self.table)
        self.labels, self.classes = None, 0
        if labels is not None:
            self.labels = _classes(labels, len(self.table), classes)
            self.classes = int(self.labels.max(initial=-1)) + 1 if classes is None else classes
        super().__init__(len(self.table), self.table.shape[1] + self.classes)

    def rows(self, indices: Ints) -> Rows:
        """Return the rows of ``indices``."""
        dense = DenseRows(self.table.take(indices, 0))
        return dense if self.labels is None else ClassRows(dense, self.labels[indices], self.classes)

    @property
    def arrays(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        if self.labels is None:
            return {"table": self.table}
        return {"table": self.table, "labels": self.labels, "classes": self.classes}

    @property
    def _shape(self) -> str:
        besides = f" and {self.classes} classes" if self.classes else ""
        return f"{self.size:,} rows of {self.table.shape[1]:,} numbers{besides}"


class SparseFeatures(Features):
    """Rows of mostly zeros: ``columns`` and ``values`` of all rows, concatenated.

    Row i is from ``starts[i]`` to ``starts[i + 1]``: the parts of a compressed sparse row matrix of scipy are
    ``SparseFeatures(m.indptr, m.indices, m.data, m.shape[1])``.

    >>> rows = SparseFeatures([0, 2, 2], [0, 5], [1.0, 2.0], 8).rows(np.array([1, 0]))
    >>> rows.dot(np.arange(8, dtype=np.float32)).tolist()
    [0.0, 10.0]
    """

    learning_rate = 0.5  # that of the authors for TF/IDF
    decay = 1e-3  # their code says 0.1, times the step and divided by the size of a batch: 0.0008 for 64

    def __init__(self, starts: Any, columns: Any, values: Any, width: int) -> None:
        self.starts = np.ascontiguousarray(_numbers("starts", starts), np.int64)
        self.columns = np.ascontiguousarray(_numbers("columns", columns), np.int32)
        self.values = np.ascontiguousarray(_numbers("values", values), np.float32)
        if self.starts.ndim != 1 or not len(self.starts) or self.columns.shape != self.values.shape:
            raise ValueError(
                f"starts of shape {self.starts.shape}, columns of {self.columns.shape} and values of "
                f"{self.values.shape}: starts has one element more than there are rows, and each value has a column."
            )
        if self.starts[0] != 0 or self.starts[-1] != len(self.columns) or (np.diff(self.starts) < 0).any():
            raise ValueError(f"starts must rise from 0 to {len(self.columns)}, the number of values.")
        if len(self.columns) and not 0 <= int(self.columns.min()) <= int(self.columns.max()) < width:
            raise ValueError(
                f"columns from {self.columns.min()} to {self.columns.max()} must be from 0 to {width - 1}."
            )
        _check_finite(self.values)
        super().__init__(len(self.starts) - 1, int(width))

    def rows(self, indices: Ints) -> Rows:
        """Return the rows of ``indices``."""
        begins = self.starts[indices]
        lengths = self.starts[indices + 1] - begins
        ends = np.cumsum(lengths)
        row = np.repeat(np.arange(len(indices)), lengths)
        places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - ends + lengths, lengths)
        return SparseRows(row, self.columns[places], self.values[places], len(indices), self.width)

    @property
    def arrays(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        return {"starts": self.starts, "columns": self.columns, "values": self.values, "width": self.width}


class ComputedFeatures(Features):
    """A function from an array of indices to an array (len(indices), d).

    It is called at each draw.

    >>> ComputedFeatures(lambda indices: np.ones((len(indices), 3)), 10)
    <ComputedFeatures: 10 rows of 3 numbers, 0.0 KB>
    """

    def __init__(self, function: Callable[[Ints], Any], size: int) -> None:
        self.function = function
        first = _numbers("features", function(np.arange(min(2, size))))
        if first.ndim != 2 or len(first) != min(2, size):
            raise ValueError(
                f"features=... returned shape {first.shape} for {min(2, size)} indices: one row for each is needed."
            )
        super().__init__(size, first.shape[1])

    def rows(self, indices: Ints) -> Rows:
        """Return the rows of ``indices``. Raises ValueError if their shape changes."""
        if not len(indices):  # np.stack of no rows, as a function may be written, raises
            return DenseRows(np.empty((0, self.width), np.float32))
        found = np.asarray(_numbers("features", self.function(indices)), np.float32)
        if found.shape != (len(indices), self.width):
            raise ValueError(f"features=... returned shape {found.shape}, not ({len(indices)}, {self.width}).")
        return DenseRows(found)

    @property
    def arrays(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        return {"function": self.function, "size": self.size}


class DenseRows:
    """Rows of an array."""

    def __init__(self, values: Floats) -> None:
        self.values = values

    def dot(self, weights: Floats) -> Floats:
        """Return the product of each row with ``weights``."""
        found: Floats = self.values @ weights
        return found

    def gradient(self, errors: Floats) -> Floats:
        """Return the sum of the rows, each times its error."""
        found: Floats = errors @ self.values
        return found


class ClassRows:
    """Rows of an array, followed by one column a class."""

    def __init__(self, dense: DenseRows, labels: Any, classes: int) -> None:
        self.dense, self.labels, self.classes = dense, labels, classes

    def dot(self, weights: Floats) -> Floats:
        """Return the product of each row with ``weights``."""
        width = len(weights) - self.classes
        of_class: Floats = weights[width:][self.labels]
        return self.dense.dot(weights[:width]) + of_class

    def gradient(self, errors: Floats) -> Floats:
        """Return the sum of the rows, each times its error."""
        by_class = np.bincount(self.labels, errors, self.classes).astype(np.float32)
        return np.concatenate([self.dense.gradient(errors), by_class])


class SparseRows:
    """Values with their rows and columns."""

    def __init__(self, row: Ints, columns: Any, values: Floats, count: int, width: int) -> None:
        self.row, self.columns, self.values, self.count, self.width = row, columns, values, count, width

    def dot(self, weights: Floats) -> Floats:
        """Return the product of each row with ``weights``."""
        return np.bincount(self.row, self.values * weights[self.columns], self.count).astype(np.float32)

    def gradient(self, errors: Floats) -> Floats:
        """Return the sum of the rows, each times its error."""
        return np.bincount(self.columns, self.values * errors[self.row], self.width).astype(np.float32)


def features_of(given: Any, size: int) -> Features:
    """Return features of ``size`` instances: as given, or of an array or function.

    Raises ValueError, TypeError.
    """
    if isinstance(given, Features):
        found = given
    elif callable(given):
        found = ComputedFeatures(given, size)
    elif hasattr(given, "__array__") or isinstance(given, list | tuple):
        found = DenseFeatures(given)
    else:
        raise TypeError(
            f"features={given!r:.60} must be an array (n, d), a function of indices that returns one, or one of "
            "pixels(), pixels_and_class(), tfidf() and SparseFeatures() of looptap.training.selection.features."
        )
    if found.size != size:
        raise ValueError(f"features have {found.size:,} rows for {size:,} instances: one row for each is needed.")
    if not found.width:
        raise ValueError("features have rows of no numbers.")
    return found


def feature_array(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a tensor, array or list as an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _numbers(name: str, values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    found = feature_array(values)
    if found.dtype.kind not in "fiub":
        raise TypeError(f"{name}={values!r:.60} must be numbers, all rows of the same length.")
    return found


def _classes(labels: Any, size: int, classes: int | None) -> Any:
    found = feature_array(labels)
    if found.dtype.kind not in "iu" or found.shape != (size,):
        raise ValueError(f"labels of shape {found.shape} must be one whole number for each of {size:,} instances.")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < (classes or 2**31):
        most = "0 or more" if classes is None else f"from 0 to {classes - 1}"
        raise ValueError(f"labels from {found.min()} to {found.max()} must be {most}.")
    return found.astype(np.int32)


def _check_finite(values: Any) -> None:
    for begin in range(0, len(values), _MAX_ROWS_PER_PART):
        good = np.isfinite(values[begin : begin + _MAX_ROWS_PER_PART])
        if not good.all():
            where = begin + int(np.argwhere(~good)[0][0])
            raise ValueError(f"features have a value that is not finite: {values[where]!r:.60} at {where}.")


def _readable(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} KB"
