"""`SelfPaced`: from easy to hard."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.methods.method import Method, Settings


class SelfPaced(Method):
    """Weights the losses of a batch by how easy its examples are.

    Skips nothing. An epoch begins with the loss ``L`` that a share of all newest losses is not above: a quarter in the
    first epoch, all after `GENERATIONS`. An example of loss l weighs ``max(0, 1 - l / L) ** (1 / (Q - 1)) + REST``,
    scaled so that the mean weight of a batch is 1. Source: Kumar et al. (2010), with the polynomial weights of Li &
    Gong (2017), as the baseline of AutoAssist has them.
    """

    name: ClassVar[str] = "spl"
    chooses: ClassVar[bool] = True
    Q = 4.0
    """The order of the polynomial."""
    GENERATIONS = 20
    """Epochs after which no example is too hard (maxgen)."""
    FIRST_SHARE = 0.25
    """The share of the examples that is easy enough in the first epoch."""
    REST = 0.01
    """The weight of what is too hard."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.limit = math.inf
        """L: the loss from which on an example is too hard; infinite in the first epoch."""

    def begin(self, epoch: int) -> None:
        """Raise the limit for another epoch."""
        pace = min(1.0, epoch / (self.GENERATIONS - 1))
        losses = np.sort(self.table.loss[self.settings.shard])  # those unknown come last
        found = float(losses[max(1, int(len(losses) * (self.FIRST_SHARE + (1 - self.FIRST_SHARE) * pace))) - 1])
        self.limit = math.inf if math.isnan(found) else found + 1e-6

    def choose(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch."""
        easy = np.maximum(0, 1 - losses / np.float32(self.limit)) ** np.float32(1 / (self.Q - 1)) + np.float32(
            self.REST
        )
        scaled: Floats = easy * np.float32(len(losses) / easy.sum(dtype=np.float64))
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"limit": self.limit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self.limit = state["limit"]
