"""The size of a loader: batches, and instances per batch."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looptap.training.instances import expected_length, stated_length

MOVED_SHARE = 0.05
"""Change of a length or the last validation that takes effect at once; less is noise of the estimates."""


def length_of(loader: Any, name: str) -> float | None:
    """Return the expected batches of a loader, or the number given; None: unknown.

    Raises TypeError if it is neither a loader nor a number, ValueError for a negative number.
    """
    if loader is None:
        return None
    if isinstance(loader, numbers.Real) and not isinstance(loader, bool):
        if not 0 <= float(loader) < math.inf or (loader == 0 and name == "train"):
            raise ValueError(f"{name}={loader!r} must be a loader, or a number above 0.")
        return float(loader)
    if not isinstance(loader, str | bytes):
        if (stated := stated_length(loader)) is not None:
            return stated
        try:
            return len(loader)
        except Exception:  # a stream of data: TypeError of PyTorch's loader, NotImplementedError of others
            if hasattr(loader, "__iter__"):
                return None
    raise TypeError(f"{name}={loader!r:.60} must be a loader, or a number.")


def validated_instances(validation: Any) -> float:
    """Return the instances of a validation, of a loader or a number; 0: unknown.

    Raises ValueError if there are none.
    """
    checks = length_of(validation, "validation")
    if validation is not None and checks == 0:
        raise ValueError("The validation set is empty: there is nothing to validate. Leave validation= out.")
    return (checks or 0.0) * (1.0 if isinstance(validation, numbers.Real) else Sizes(validation, None).mean)


class EpochLength:
    """The expected batches of a loader's epochs: fractions that may change per batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.present = length_of(loader, "train")
        """Batches of the present epoch, those so far and those to come; None: unknown."""
        self.later = self.present
        """Batches of each epoch after it."""
        self.most = math.inf
        """After how many batches the loop has left the last epoch."""
        self.update()
        self._planned = self.present, self.later

    def begin(self, loader: Any, resumed: int) -> None:
        """Begin an epoch, after ``resumed`` batches."""
        length = expected_length(loader)
        known = length is not None and self.present is not None
        if not (resumed and known and length < self.present and stated_length(loader) is None):  # type: ignore[operator]
            self.loader = loader
            self.update()

    def whole_after(self, batches: int, loader: Any) -> bool:
        """Return True if so many batches are an epoch, as far as is known."""
        return self.present is not None and batches >= self.present and stated_length(loader) is None

    def ended(self, batches: int) -> None:
        """Record that the loader has ended an epoch after ``batches``."""
        self.most = math.inf
        self.known(batches)

    def known(self, batches: float | None) -> None:
        """Use the length of an epoch that ended, or that an earlier process began."""
        self.present = self.later = batches
        self.update()

    def update(self) -> None:
        """Ask the loader; keep the last value if it does not know."""
        found = expected_length(self.loader)
        if found is None and self.most < math.inf:
            found = self.most
        if found is not None:
            self.present = min(found, self.most)
            self.later = max(1.0, min(stated_length(self.loader, "next_length") or found, self.most))

    def moved(self) -> bool:
        """Ask the loader; return True if its lengths differ from those of `plan`."""
        self.update()
        lengths = self.present, self.later
        return lengths != self._planned and any(
            (now is None) != (then is None) or (now and then and abs(now - then) > MOVED_SHARE * then)
            for now, then in zip(lengths, self._planned, strict=True)
        )

    def plan(self) -> float | None:
        """Ask the loader; return the batches of a later epoch, on which plans are based."""
        self.update()
        self._planned = self.present, self.later
        return self.later

    def left(self, epochs: int, done: int) -> float | None:
        """Return the batches of ``epochs`` minus ``done`` of the first; None: unknown."""
        if self.present is None or self.later is None:
            return None
        return (epochs - 1) * self.later + (max(0.0, self.present - done) if done else self.later)

    def passed(self, done: int) -> float:
        """Return the part of an epoch that has passed after ``done`` batches.

        The batches to come count as in later epochs.
        """
        if not done or self.present is None or not self.later:
            return 0.0
        return 1.0 - (self.present - done) / self.later


class Sizes:
    """Instances per batch: given by ``size``, else the length of the first tensor.

    `mean` is that of the batches seen; before the first one, the loader's batch size, else 1.
    """

    def __init__(self, loader: Any, size: Callable[[Any], float] | None) -> None:
        self._size = size
        batch = getattr(loader, "batch_size", None) or getattr(
            getattr(loader, "batch_sampler", None), "batch_size", None
        )
        self.mean = float(batch) if isinstance(batch, int) and batch > 0 and size is None else 1.0
        self._count = 0

    def of(self, batch: Any) -> float:
        """Return the instances of ``batch``."""
        if self._size is None and type(batch) in (list, tuple):  # the usual case, kept fast
            with_shape = getattr(batch[0] if batch else None, "shape", None)
            if with_shape:
                return with_shape[0]  # type: ignore[no-any-return]
        try:
            return float(self._size(batch)) if self._size is not None else _first_length(batch)
        except Exception:  # an error in the host's function must not end its loop
            return self.mean

    def seen(self, instances: float, batches: int) -> None:
        """Record that ``batches`` batches held ``instances`` instances."""
        self._count += batches
        self.mean += (instances / batches - self.mean) * min(1.0, batches / min(self._count, 100))

    def known(self, mean: float) -> None:
        """Use the mean of an earlier process."""
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
