"""The size of a loader: batches, instances in each, and batches that its workers have ready."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def length_of(loader: Any, name: str, *, strict: bool = True) -> int | None:
    """Return how many batches ``loader`` has, or the number that it is itself; None if that is unknown.

    Raises TypeError if it is no loader and no number, ValueError for a negative number.
    """
    if loader is None:
        return None
    if isinstance(loader, numbers.Integral) and not isinstance(loader, bool):
        if loader < 0 or (loader == 0 and name == "train"):
            raise ValueError(f"{name}={loader!r} must be a loader, or a number above 0.")
        return int(loader)
    if not isinstance(loader, str | bytes):
        try:
            return len(loader)
        except TypeError:  # a stream of data; PyTorch's loader of an iterable data set raises it, too
            if hasattr(loader, "__iter__") or not strict:
                return None
    raise TypeError(f"{name}={loader!r:.60} must be a loader, or a number.")


class Sizes:
    """How many instances a batch holds: what ``size`` says, else the length of its first tensor.

    `mean` is that of the batches seen, before the first one what the loader says of its batches, else 1.
    """

    def __init__(self, loader: Any, size: Callable[[Any], float] | None) -> None:
        self._size = size
        batch = getattr(loader, "batch_size", None)
        self.mean = float(batch) if isinstance(batch, int) and batch > 0 and size is None else 1.0
        self._count = 0
        workers = getattr(loader, "num_workers", 0) or 0
        self.prefetched = workers * (getattr(loader, "prefetch_factor", None) or 0)
        """Batches that workers have ready before the first is asked for."""

    def of(self, batch: Any) -> float:
        """Return the instances of ``batch``."""
        if self._size is None and type(batch) in (list, tuple):  # as of most loaders, and as short as it can be
            with_shape = getattr(batch[0] if batch else None, "shape", None)
            if with_shape:
                return with_shape[0]  # type: ignore[no-any-return]
        try:
            return float(self._size(batch)) if self._size is not None else _first_length(batch)
        except Exception:  # a size of the host's that fails must not end its loop
            return self.mean

    def seen(self, instances: float, batches: int) -> None:
        """Record that ``batches`` batches held ``instances`` instances."""
        self._count += batches
        self.mean += (instances / batches - self.mean) * min(1.0, batches / min(self._count, 100))

    def known(self, mean: float) -> None:
        """Take over the mean of an earlier process."""
        self.mean, self._count = float(mean), 100


def _first_length(batch: Any) -> float:
    for _ in range(8):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return float(shape[0]) if len(shape) else 1.0
        if isinstance(batch, Mapping) and batch:
            batch = next(iter(batch.values()))
        elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes) and batch:
            if not isinstance(batch[0], Sequence | Mapping) and not hasattr(batch[0], "shape"):
                return float(len(batch))
            batch = batch[0]
        else:
            return 1.0
    return 1.0
