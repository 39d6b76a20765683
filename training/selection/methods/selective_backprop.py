"""`SelectiveBackprop`: goes back through those examples whose loss is high."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.methods.method import Method, Settings


class SelectiveBackprop(Method):
    """Trains on an example with a probability that rises with the rank of its loss.

    After the forward pass an example is chosen with probability ``CDF(loss) ** BETA``, the distribution that of the
    newest `HISTORY` losses; the mean is that over those chosen. If none is chosen, the one of the highest loss is.
    Source: Jiang et al., Selective-Backprop (2019).
    """

    name: ClassVar[str] = "selective-backprop"
    chooses: ClassVar[bool] = True
    BETA = 2.0
    """The selectivity: a share of 1 / (1 + BETA) of the examples is chosen, a third."""
    HISTORY = 1024
    """Losses of which the distribution is taken."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.history = np.empty(0, np.float32)
        """The newest losses, the oldest first."""
        self._rng = np.random.default_rng([*settings.seed, 2])

    def choose(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch, 0 for those not chosen."""
        self.history = np.concatenate([self.history, losses])[-self.HISTORY :]
        below = np.searchsorted(np.sort(self.history), losses, side="right")
        chosen = self._rng.random(len(losses)) < (below / len(self.history)) ** self.BETA
        if not chosen.any():
            chosen[np.argmax(losses)] = True
        return mean_over(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"history": self.history.copy(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self.history, self._rng.bit_generator.state = np.asarray(state["history"]), state["rng"]


def mean_over(chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Return weights with which the mean over all is the mean over the ``chosen``.

    >>> mean_over(np.array([True, False, True, False])).tolist()
    [2.0, 0.0, 2.0, 0.0]
    """
    return chosen.astype(np.float32) * np.float32(len(chosen) / max(1, int(np.count_nonzero(chosen))))
