"""`LossWeights`: the weighted mean of a step's losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.per_example import Criterion, ReducedLoss
from looptap.training.selection.passes import Passes
from looptap.training.selection.sampler import Sampler


class LossWeights:
    """Weights the losses of a step as its instances were drawn."""

    def __init__(
        self, table: InstanceTable, passes: Passes, sampler: Sampler, criterion: Criterion, clock: Callable[[], float]
    ) -> None:
        self._table, self._passes, self._sampler = table, passes, sampler
        self._criterion, self._clock = criterion, clock
        self._reducing = criterion if isinstance(criterion, ReducedLoss) else None

    def loss(self, indices: Any, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch; see `Selection.loss`."""
        reduced = self._reducing
        if reduced is None:  # a function, which leaves the gradient to its losses
            found: Any = self._criterion(outputs, targets)
            return self.mean(indices, found[0] if isinstance(found, tuple) else found)
        if not self._table.weighted:
            return reduced.mean(outputs, targets)
        return self.mean(indices, reduced.each(outputs, targets))

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the weighted mean of ``losses``, a tensor of shape (n,)."""
        if not self._table.weighted and losses.ndim == 1:
            return losses.mean()
        begun = self._clock()
        self._passes.forget_step()  # the loop may have refilled the same tensor
        try:
            ids = self._passes.ids(indices)
            if tuple(losses.shape) != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            weights = self._table.weight[ids]
        except Exception as error:  # the loop has to train on something
            self._sampler.fail(f"mean: {str(error).rstrip('.')}. The plain mean is taken.")
            return losses.mean()
        import torch

        scaled = torch.from_numpy(weights / np.float32(max(1, len(weights)))).to(
            losses.device, losses.dtype, non_blocking=True
        )
        self._sampler.cost += self._clock() - begun
        return losses.dot(scaled)
