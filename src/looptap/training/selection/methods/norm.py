"""`Norm`, the default, and `InfoBatch`: draw by an instance's last step."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Acceptance, Floats, Ints
from looptap.training.selection.methods.method import Method, Settings

_EMA_DECAY_FACTOR = 0.95  # of the mean weight of a batch
_HALF_UNTIL_SHARE, _WHOLE_FROM_SHARE = 0.5, 0.85  # of the plan: between them the exponent rises


class Norm(Method):
    """Draws by the norm of the gradient at the model's output.

    Weights take the bias away towards the end.

    ``P = clip(s / mean(s), floor, 1)`` with the newest score s, 1 for an instance without one; weights ``P**-b``,
    divided by their running mean, b half of ``exponent`` in the first half of the plan, then rising to ``exponent`` at
    85% of it. Where only losses are known, s is the loss, at most ``cap`` mean losses, and b is ``exponent``.
    """

    name: ClassVar[str] = "norm"
    draws: ClassVar[bool] = True
    switched: ClassVar[bool] = True

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self._mean_weight = math.nan

    def resume(self) -> None:
        """Begin with the mean weight of the next batch.

        Else its step would be longer than those before it.
        """
        self._mean_weight = math.nan

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return the probability with which each of ``indices`` is drawn."""
        floor, mean = self.settings.floor, self._mean()
        if not mean > 0:
            return Acceptance(np.ones(len(indices), np.float32), 1.0)
        probability = np.fmin(self.predicted(indices) / mean, 1.0)  # 1 for NaN
        return Acceptance(np.maximum(probability, floor, out=probability), floor)

    def correction(self, indices: Ints, probability: Floats) -> Floats:
        """Return ``P**-b``."""
        found: Floats = probability ** np.float32(-self.bias_correction)
        return found

    def weights(self, indices: Ints, probability: Floats) -> Floats:
        """Return the weights of losses that were drawn with ``probability``."""
        found = self.correction(indices, probability)
        mean = float(found.sum()) / len(found)
        if math.isnan(self._mean_weight):
            self._mean_weight = mean
        self._mean_weight += (1 - _EMA_DECAY_FACTOR) * (mean - self._mean_weight)
        weights: Floats = found / np.float32(self._mean_weight)
        return weights

    @property
    def bias_correction(self) -> float:
        """The exponent b of the weights at this point of the plan."""
        most = self.settings.exponent
        if not self._scored:
            return most
        elapsed = self.settings.elapsed
        if elapsed is None or elapsed <= _HALF_UNTIL_SHARE:
            return most / 2
        return most * min(1.0, 0.5 + 0.5 * (elapsed - _HALF_UNTIL_SHARE) / (_WHOLE_FROM_SHARE - _HALF_UNTIL_SHARE))

    def predicted(self, indices: Ints) -> Floats:
        """Return the newest score of each of ``indices``; NaN: none."""
        if self._scored:
            return self.table.score[indices]
        most = self.settings.cap * self.table.mean_loss
        return np.minimum(self.table.loss[indices], np.float32(most))

    @property
    def cut(self) -> float:
        """The mean score: above it an instance is drawn each time."""
        return self._mean()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"mean_weight": self._mean_weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self._mean_weight = state["mean_weight"]

    @property
    def _scored(self) -> bool:
        return self.table.mean_score == self.table.mean_score

    def _mean(self) -> float:
        return self.table.mean_score if self._scored else self.table.mean_loss


class InfoBatch(Method):
    """Leaves out half of the instances whose loss is below the mean.

    The weight of the other half is doubled.

    Source: Qin et al., InfoBatch (2024), with r = 0.5 and the whole data in the last eighth of the plan. Thresholds
    are those of the beginning of an epoch.
    """

    name: ClassVar[str] = "infobatch"
    draws: ClassVar[bool] = True
    DROPPED = 0.5
    """r: the share of the easy instances that is left out."""
    WHOLE_FROM = 0.875
    """The share of the plan from which on nothing is left out."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self._threshold = float("nan")

    def begin(self, epoch: int) -> None:
        """Fix the mean loss of this epoch."""
        elapsed = self.settings.elapsed
        self._threshold = float("nan") if (elapsed or 0.0) >= self.WHOLE_FROM else self.table.mean_loss

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return the probability with which each of ``indices`` is drawn."""
        kept = 1 - self.DROPPED
        easy = self.table.loss[indices] < self._threshold  # False where one of them is unknown
        return Acceptance(np.where(easy, kept, 1.0).astype(np.float32), kept)

    def correction(self, indices: Ints, probability: Floats) -> Floats:
        """Return ``1 / probability``."""
        return np.float32(1) / probability

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"threshold": self._threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self._threshold = state["threshold"]
