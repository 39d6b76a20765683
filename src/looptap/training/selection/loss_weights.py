"""`SelectionLoss`: the part of a `Selection` that weights the losses of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.training.sampling.per_example import Criterion, ReducedLoss
from looptap.training.sampling.permutation_walk import Ints
from looptap.training.selection import selection_arguments as arguments
from looptap.training.selection.selection_state import SelectionState

NOTHING_ASKED: tuple[Any, Ints] = (None, np.empty(0, np.int64))
"""Before `SelectionLoss.mean` in a step."""


class SelectionLoss(SelectionState):
    """What a loop calls between the forward pass and the backward pass."""

    def __init__(
        self, size: int, shard: Ints, batch_size: int, seed: list[int], criterion: Criterion, clock: Callable[[], float]
    ) -> None:
        super().__init__(size, shard, batch_size, seed)
        self._criterion, self._clock = criterion, clock
        self._reducing = criterion if isinstance(criterion, ReducedLoss) else None
        self._asked = NOTHING_ASKED  # the indices that `mean` got, converted
        self._cost = 0.0  # seconds of selection in this step

    def loss(self, indices: Any, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, the mean over its examples, weighted.

        While all weigh alike it is torch's own, of ``reduction="mean"``, at no further cost.
        """
        reduced = self._reducing
        if reduced is None:  # a function, which leaves the gradient to its losses
            found: Any = self._criterion(outputs, targets)
            return self.mean(indices, found[0] if isinstance(found, tuple) else found)
        if not self.table.weighted:
            return reduced.mean(outputs, targets)
        return self.mean(indices, reduced.each(outputs, targets))

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the weighted mean of ``losses``, a tensor of shape (n,).

        For a loss of one's own; `loss` computes those that are known.
        """
        if not self.table.weighted and losses.ndim == 1:
            return losses.mean()
        begun = self._clock()
        self._asked = NOTHING_ASKED  # the loop may have refilled the same tensor
        try:
            ids = self._ids(indices)
            if tuple(losses.shape) != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            weights = self.table.weight[ids]
        except Exception as error:  # the loop has to train on something
            self._fail(f"mean: {str(error).rstrip('.')}. The plain mean is taken.")
            return losses.mean()
        import torch

        scaled = torch.from_numpy(weights / np.float32(max(1, len(weights)))).to(
            losses.device, losses.dtype, non_blocking=True
        )
        self._cost += self._clock() - begun
        return losses.dot(scaled)

    def _ids(self, indices: Any) -> Ints:
        """Return ``indices`` as an array; those of `mean` once more in `observe`."""
        if indices is not self._asked[0] or indices is None:
            oldest = self._flight.oldest(indices)
            self._asked = indices, arguments.indices_in(indices, self.table.size) if oldest is None else oldest
        return self._asked[1]

    def _fail(self, why: str) -> None:
        self._gate.fail(why)
        self._selecting = self._method.acts(False, self.switch)
        self._say(why)
