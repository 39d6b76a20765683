"""What ends a run if nothing stops it early: epochs, steps, a budget or a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from looptap.training.progress.estimate import Estimate


class RunEnd(NamedTuple):
    """The bounds of a run; None: unbounded. Whichever comes first ends it."""

    by_epochs: bool
    max_batches: int | None
    budget: float | None
    """Instances."""
    max_time: float | None
    """Seconds."""

    def left(self, epoch_batches: float | None, steps: int, trained: float, size: float) -> float | None:
        """Return the instances left to train; infinite if only time ends the run.

        ``epoch_batches`` are those that the epochs have left; None, as the result: unknown. ``trained`` are the
        instances of ``steps`` steps, and ``size`` those of a batch to come.
        """
        bounds = []
        if self.by_epochs:
            if epoch_batches is None:
                return None
            bounds.append(epoch_batches * size)
        if self.max_batches is not None:
            bounds.append((self.max_batches - steps) * size)
        if self.budget is not None:
            bounds.append(self.budget - trained)
        return max(0.0, min(bounds)) if bounds else math.inf

    def in_time(self, found: Estimate, left: float, elapsed: float) -> Estimate:
        """Return the estimate for a run that ends at its time at the latest."""
        if self.max_time is None:
            return found
        rest = max(0.0, self.max_time - elapsed)
        if math.isinf(left):
            found = found._replace(remaining=rest, low=rest, high=rest)
        return found.at_most(rest)
