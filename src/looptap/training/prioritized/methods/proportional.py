"""`ProportionalLoss`: draws in proportion to the newest loss."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from looptap.training.prioritized.methods.sum_tree import SumTree
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import (
    Acceptance,
    Accepted,
    Floats,
    Ints,
    PermutationWalk,
    everything,
)
from looptap.training.selection.methods.method import Method, Settings


class ProportionalLoss(Method):
    """Draws in proportion to the newest loss; weights take the bias away.

    An example is drawn, with replacement, with ``q = (1 - floor) * loss / sum of losses + floor / n`` and weighs ``1 /
    (n q)``, so the
    expected gradient is that of plain sampling. Draws are stratified, from a sum tree. Until every example has a loss,
    they come in random order.
    """

    name: ClassVar[str] = "loss"
    draws: ClassVar[bool] = True

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self._rng = np.random.default_rng([*settings.seed, 5])
        self._shard = np.unique(settings.shard)
        self._tree = SumTree(len(self._shard))
        self._unknown = len(self._shard)
        self._fill()

    def begin(self, epoch: int) -> None:
        """Take over losses that were observed while another method drew."""
        self._fill()

    def draw(self, walk: PermutationWalk, count: int) -> Accepted:
        """Return the next batch: ``count`` draws from the tree."""
        if self._unknown or not self._tree.total > 0:
            return walk.take(count, everything)
        chance = (np.arange(count) + self._rng.random(count)) / count
        floor, n = self.settings.floor, len(self._shard)
        alike = chance < floor
        places = np.empty(count, np.int64)
        places[alike] = np.minimum((chance[alike] / max(floor, 1e-300) * n).astype(np.int64), n - 1)
        rest = (chance[~alike] - floor) / max(1 - floor, 1e-300) * self._tree.total
        if len(rest):
            places[~alike] = self._tree.at(np.minimum(rest, np.nextafter(self._tree.total, 0)))
        ids = self._shard[places]
        walk.walked += count
        return Accepted(ids, self._relative(places), alike)

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return how often each of ``indices`` is drawn, relative to plain sampling."""
        if self._unknown or not self._tree.total > 0:
            return everything(indices)
        return Acceptance(self._relative(np.searchsorted(self._shard, indices)), self.settings.floor)

    def correction(self, indices: Ints, probability: Floats) -> Floats:
        """Return ``1 / probability``."""
        return np.float32(1) / probability

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Put the losses of a step into the tree."""
        own = np.isin(indices, self._shard)
        if own.any():
            self._unknown -= int(np.count_nonzero(np.isnan(self.table.loss[indices[own]])))
            places = np.searchsorted(self._shard, indices[own])
            self._tree.put(places, np.maximum(losses[own], 0).astype(np.float64))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self._rng.bit_generator.state = state["rng"]
        self._fill()

    def _relative(self, places: Ints) -> Floats:
        """Return n q of ``places``."""
        floor, n = self.settings.floor, len(self._shard)
        return ((1 - floor) * n * self._tree.weights[places] / self._tree.total + floor).astype(np.float32)

    def _fill(self) -> None:
        losses = self.table.loss[self._shard].astype(np.float64)
        self._unknown = int(np.count_nonzero(np.isnan(losses)))
        self._tree.put(np.arange(len(losses)), np.maximum(np.nan_to_num(losses), 0.0))
