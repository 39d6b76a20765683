"""`Rho`: chooses what is learnable and not yet learned."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.methods.method import Method, Settings
from looptap.training.selection.methods.selective_backprop import mean_over


class Rho(Method):
    """Trains on the tenth of a larger batch whose reducible loss is highest.

    The batches drawn are `oversampling` times as large. The reducible loss is that of the model minus the
    ``reference``, the loss of a model that was trained on other data: high where something can be learned, low where a
    label is wrong. Source: Mindermann et al., RHO-LOSS (2022).
    """

    name: ClassVar[str] = "rho"
    chooses: ClassVar[bool] = True
    oversampling: ClassVar[int] = 10

    @classmethod
    def require(cls, settings: Settings) -> None:
        """Raise ControlError if there is no reference."""
        if settings.reference is None:
            raise ControlError(
                "the method 'rho' needs the losses of a model that was trained on other data: "
                "Selection(..., reference=losses), one for each instance."
            )

    def choose(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch, 0 for those not chosen."""
        share = self.settings.batch_size / min(self.settings.batch_size * self.oversampling, len(self.settings.shard))
        count = max(1, min(len(losses), round(len(losses) * share)))
        chosen = np.zeros(len(losses), np.bool_)
        chosen[np.argpartition(losses - self._reference[indices], len(losses) - count)[len(losses) - count :]] = True
        return mean_over(chosen)

    def predicted(self, indices: Ints) -> Floats:
        """Return the newest reducible loss of each of ``indices``; NaN: none."""
        found: Floats = self.table.loss[indices] - self._reference[indices]
        return found

    @property
    def cut(self) -> float:
        """The mean of the newest reducible losses."""
        return self.table.mean_loss - float(self._reference[self.settings.shard].mean())

    @property
    def _reference(self) -> Floats:
        assert self.settings.reference is not None
        return self.settings.reference
