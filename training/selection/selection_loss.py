"""`SelectionLoss`: the part of a `Selection` that weights the losses of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from looptap.training.sampling.per_example import Criterion, ReducedLoss
from looptap.training.sampling.permutation_walk import Floats, Ints
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
        self._chose = False
        self._cost = 0.0  # seconds of selection in this step

    def loss(self, indices: Any, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, the mean over its examples, weighted.

        While all weigh alike it is torch's own, of ``reduction="mean"``, at no further cost.
        """
        reduced = self._reducing
        if reduced is None:  # a function, which leaves the gradient to its losses
            found: Any = self._criterion(outputs, targets)
            return self.mean(indices, found[0] if isinstance(found, tuple) else found)
        if not self.table.weighted and not self._method.chooses:
            return reduced.mean(outputs, targets)
        return self.mean(indices, reduced.each(outputs, targets))

    def mean(self, indices: Any, losses: Any) -> Any:
        """Return the weighted mean of ``losses``, a tensor of shape (n,).

        For a loss of one's own; `loss` computes those that are known.
        """
        if not self.table.weighted and not self._method.chooses and losses.ndim == 1:
            return losses.mean()
        begun = self._clock()
        self._asked = NOTHING_ASKED  # the loop may have refilled the same tensor
        try:
            ids = self._ids(indices)
            if tuple(losses.shape) != (len(ids),):
                raise ValueError(f"losses of shape {tuple(losses.shape)} for {len(ids)} indices")
            weights = self._weights(ids, losses)
        except Exception as error:  # the loop has to train on something
            self._fail(f"mean: {str(error).rstrip('.')}. The plain mean is taken.")
            return losses.mean()
        import torch

        scaled = torch.from_numpy(weights / np.float32(max(1, len(weights)))).to(
            losses.device, losses.dtype, non_blocking=True
        )
        self._cost += self._clock() - begun
        return losses.dot(scaled)

    def choose(self, indices: Any, losses: Any) -> Any:
        """Return which examples of a batch to train on, as a tensor of booleans.

        For the methods that see the losses first, "selective-backprop" and "rho"; with the others all are. Give only
        those to `mean` and `observe` after it. Does not raise.
        """
        import torch

        begun = self._clock()
        try:
            ids = self._ids(indices)
            if self._method.chooses:
                weights = self._chosen(ids, losses)
                kept = weights > 0
                self.table.weight[ids] = weights * np.float32(np.count_nonzero(kept) / len(ids))
                self.table.plain, self.table.weighted, self._chose = False, True, True
                self.taken -= len(ids) - int(np.count_nonzero(kept))
                return torch.from_numpy(kept)
        except Exception as error:
            self._fail(f"choose: {error}. All are chosen.")
        finally:
            self._cost += self._clock() - begun
            self._asked = NOTHING_ASKED
        return torch.ones(len(losses), dtype=torch.bool)

    def _ids(self, indices: Any) -> Ints:
        """Return ``indices`` as an array; those of `mean` once more in `observe`."""
        if indices is not self._asked[0] or indices is None:
            oldest = self._flight.oldest(indices)
            self._asked = indices, arguments.indices_in(indices, self.table.size) if oldest is None else oldest
        return self._asked[1]

    def _weights(self, ids: Ints, losses: Any) -> Floats:
        weights = self.table.weight[ids]
        if self._chose:  # of a batch of which all were given, those that were not chosen have the weight 0
            return weights * np.float32(len(ids) / max(1, int(np.count_nonzero(weights))))
        if self._method.chooses:
            weights = weights * self._chosen(ids, losses)
            self.taken -= len(ids) - int(np.count_nonzero(weights))
        return weights

    @np.errstate(all="ignore")  # what is not finite is refused
    def _chosen(self, ids: Ints, losses: Any) -> Floats:
        """Return the method's weights; raises ValueError for what would spoil the loss."""
        weights = self._method.choose(ids, arguments.finite_losses(len(ids), losses))
        if not np.isfinite(weights).all():
            raise ValueError(f"the method {self.method!r} gave weights that are not finite")
        return weights

    def _fail(self, why: str) -> None:
        self._gate.fail(why)
        self._selecting = self._method.acts(False, self.switch)
        self._say(why)
