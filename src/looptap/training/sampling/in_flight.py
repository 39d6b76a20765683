"""`BatchesInFlight`: batches that were drawn, and on which no step was observed."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from looptap.training.sampling.permutation_walk import Ints

_MAX_BATCHES = 4096  # what a loop that never observes makes this object hold


class BatchesInFlight:
    """Batches between the draw and the step, the oldest first; at most 4,096.

    >>> flight = BatchesInFlight(8)
    >>> for first in (0, 2, 4):
    ...     flight.add(np.array([first, first + 1]))
    >>> flight.arrived(np.array([3]))
    2
    >>> [batch.tolist() for batch in flight.batches]
    [[4, 5]]
    """

    def __init__(self, size: int) -> None:
        self.batches = deque[Ints](maxlen=_MAX_BATCHES)
        """The batches."""
        self.most = 1
        """The most that one step has removed."""
        self._drawn = self._numbered = 0  # batches so far, and those of them that `_batch_of` is as new as
        self._batch_of = np.zeros(size, np.int64)  # the newest of each instance, but for what arrived as it was drawn

    def add(self, indices: Ints) -> None:
        """Add a batch that was drawn."""
        self._drawn += 1
        self.batches.append(indices)

    def oldest(self, indices: Any) -> Ints | None:
        """Return the oldest batch if ``indices`` are just that one, which is usual.

        They need no check then, and no conversion.
        """
        if not self.batches:
            return None
        oldest = self.batches[0]
        if isinstance(indices, list):
            return oldest if indices == oldest.tolist() else None
        if getattr(indices, "is_cpu", False) and not indices.is_floating_point():
            found = indices.numpy()
            if found.dtype == oldest.dtype and found.tobytes() == oldest.tobytes():
                return oldest
        return None

    def arrived(self, ids: Ints) -> int:
        """Remove the batches up to the one of ``ids``; return how many they were.

        ``ids`` may be a part of a batch, or copies of one that arrived before. Of several batches, mixed by a buffer,
        the oldest counts.
        """
        batches = self.batches
        if not batches or not len(ids):
            return 0
        if ids[0] == batches[0][0]:  # as it was drawn, which is usual
            batches.popleft()
            return 1
        self._number()
        count = max(0, min(int(self._batch_of[ids].min()) - self._drawn + len(batches), len(batches)))
        self.most = max(self.most, count)
        for _ in range(count):
            batches.popleft()
        return count

    def clear(self) -> None:
        """Forget all batches."""
        self.batches.clear()

    def _number(self) -> None:
        """Note the batch of each instance in flight."""
        first = self._drawn - len(self.batches) + 1
        for number, batch in enumerate(self.batches, first):
            if number > self._numbered:
                self._batch_of[batch] = number
        self._numbered = self._drawn
