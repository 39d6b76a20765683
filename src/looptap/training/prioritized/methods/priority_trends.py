"""`PriorityTrends`: the newest priority of each example, and how it changes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.saved_state import require_state

Doubles: TypeAlias = npt.NDArray[np.float64]
_MAX_SLOPE_FACTOR = 1.0  # the logarithm of a priority changes by no more in a step
_MAX_EXPONENT_FACTOR = 60.0  # so that an old estimate stays a finite number
_SAVED = ("priority", "slope", "at")


class PriorityTrends:
    """Three numbers for each example: priority, slope of its logarithm, and when.

    A priority p, measured at step j, is estimated as ``p * exp(slope * (t - j))`` at step t. Where it is measured
    again, the slope becomes ``decay * slope + (1 - decay) * ln(new / old) / (i - j)``; the logarithm counts as 0 where
    the sign has changed or one of them is 0, since a priority may be negative.

    >>> trends, one = PriorityTrends(1), np.array([0])
    >>> for step, priority in ((0, 1.0), (2, 4.0)):
    ...     trends.learn(one, np.array([priority], np.float32), step, decay=0.5)
    >>> trends.estimate(one, 4).round(3).tolist()  # half of the slope is believed
    [8.0]
    """

    def __init__(self, size: int) -> None:
        self.priority = np.full(size, np.nan, np.float32)
        """The newest measured priority; NaN: never measured."""
        self.slope = np.zeros(size, np.float32)
        """The running average of the change of ln |priority| in a step."""
        self.at = np.zeros(size, np.int64)
        """The step of the measurement."""

    def learn(self, ids: Ints, priorities: Floats, step: int, decay: float) -> None:
        """Take in the measured ``priorities`` of distinct ``ids``."""
        old, elapsed = self.priority[ids], np.maximum(step - self.at[ids], 1)
        with np.errstate(all="ignore"):
            ratio = priorities.astype(np.float64) / old
            change = np.where((ratio > 0) & np.isfinite(ratio), np.log(ratio), 0.0) / elapsed
        change = np.clip(change, -_MAX_SLOPE_FACTOR, _MAX_SLOPE_FACTOR)
        known = old == old
        self.slope[ids] = np.where(known, decay * self.slope[ids] + (1 - decay) * change, 0.0)
        self.priority[ids], self.at[ids] = priorities, step

    def estimate(self, ids: Ints, step: int) -> Doubles:
        """Return the priorities that ``ids`` are expected to have; NaN: unknown."""
        exponent = self.slope[ids] * (step - self.at[ids])
        found: Doubles = self.priority[ids] * np.exp(np.clip(exponent, -_MAX_EXPONENT_FACTOR, _MAX_EXPONENT_FACTOR))
        return found

    def state_dict(self, ids: Ints) -> dict[str, Any]:
        """Return what is known of ``ids``, with the ids, as tensors."""
        import torch

        return {"ids": torch.from_numpy(ids.copy())} | {
            name: torch.from_numpy(getattr(self, name)[ids]) for name in _SAVED
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what is known of the ids in ``state``. Raises ValueError."""
        require_state(state, dict.fromkeys(("ids", *_SAVED)), "a PriorityTrends")
        for name in _SAVED:
            getattr(self, name)[np.asarray(state["ids"])] = np.asarray(state[name])
