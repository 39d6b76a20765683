"""`Screener`: a small net weights the losses by the features of the examples."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Floats, Ints
from looptap.training.selection.methods.method import Method, Settings

_HIGHEST_LOSS = np.float32(1e9)  # that counts: squares of slopes must fit into 32 bits


class Screener(Method):
    """Weights the loss of each example by what a small net says of its features.

    Skips nothing. The net, with one hidden layer, has the output w from 0 to 1. After each step it descends
    ``sum((1 - w)**2 * l + w**2 * max(0, MARGIN - l)) + DECAY * mean |parameters|`` by Adam, with ``learning_rate``.
    Source: Kim & Choi, ScreenerNet (2018), whose net sees images; this one sees the ``features`` that were given.
    """

    name: ClassVar[str] = "screener"
    chooses: ClassVar[bool] = True
    MARGIN = 1.0
    """M: a loss above it is worth a weight of 1."""
    DECAY = 0.01
    """Alpha, of the absolute values of the parameters."""
    HIDDEN = 32
    """Units of the hidden layer."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.require(settings)
        self._start()

    def _start(self) -> None:
        settings = self.settings
        rng, width = np.random.default_rng([*settings.seed, 3]), settings.features.width if settings.features else 0
        self.first = (rng.standard_normal((self.HIDDEN, width + 1)) / np.sqrt(width + 1)).astype(np.float32)
        """Rows: the units; the last column is the constant."""
        self.second = (rng.standard_normal(self.HIDDEN + 1) / np.sqrt(self.HIDDEN)).astype(np.float32)
        self._moments = [np.zeros_like(one) for one in (self.first, self.second) for _ in range(2)]
        self._updates = 0

    @classmethod
    def require(cls, settings: Settings) -> None:
        """Raise ControlError if there are no features."""
        if settings.features is None:
            raise ControlError("the method 'screener' needs features: Selection(..., features=...), as 'autoassist'.")

    def choose(self, indices: Ints, losses: Floats) -> Floats:
        """Return the weight of each example of a batch."""
        return self.predicted(indices)

    def predicted(self, indices: Ints) -> Floats:
        """Return w of each of ``indices``."""
        return self._forward(self._rows(indices))[1]

    @property
    def threshold(self) -> float:
        """The margin: above it a loss is worth the whole weight."""
        return self.MARGIN

    @property
    def cut(self) -> float:
        """One half."""
        return 0.5

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Descend the loss of the net on the batch that was trained on."""
        rows = self._rows(indices)
        hidden, w = self._forward(rows)
        if not np.isfinite(w).all():
            self._start()
            raise ValueError(
                f"the net of 'screener' diverged with learning_rate={self.settings.learning_rate!r}, and was reset. "
                "Set a lower rate, or scale the features."
            )
        losses = np.minimum(losses, _HIGHEST_LOSS)
        slope = (2 * w * np.maximum(0, self.MARGIN - losses) - 2 * (1 - w) * losses) * w * (1 - w)
        back = np.outer(self.second[:-1], slope) * (hidden > 0)
        first = np.stack([np.append(rows.gradient(unit), unit.sum()) for unit in back])
        second = np.append(hidden @ slope, slope.sum())
        decay = np.float32(self.DECAY / (self.first.size + self.second.size))
        self._updates += 1
        for place, (values, slopes) in enumerate(((self.first, first), (self.second, second))):
            self._adam(values, slopes + decay * np.sign(values), *self._moments[2 * place : 2 * place + 2])

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {
            "first": self.first.copy(), "second": self.second.copy(), "updates": self._updates,
            "moments": [one.copy() for one in self._moments],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises ValueError."""
        super().load_state_dict(state)
        if np.shape(state["first"]) != self.first.shape:
            raise ValueError(
                f"The net of the state has {np.shape(state['first'])[1] - 1:,} features; here are "
                f"{self.first.shape[1] - 1:,}."
            )
        self.first, self.second = np.array(state["first"]), np.array(state["second"])
        self._moments, self._updates = [np.array(one) for one in state["moments"]], state["updates"]

    def _rows(self, indices: Ints) -> Any:
        assert self.settings.features is not None
        return self.settings.features.rows(indices)

    def _forward(self, rows: Any) -> tuple[Floats, Floats]:
        """Return the hidden units, of shape (units, n), and the weights."""
        hidden = np.maximum(0, np.stack([rows.dot(unit[:-1]) + unit[-1] for unit in self.first]))
        found = 0.5 + 0.5 * np.tanh(0.5 * (self.second[:-1] @ hidden + self.second[-1]))
        return hidden, found.astype(np.float32)

    def _adam(self, values: Floats, slopes: Floats, mean: Floats, square: Floats) -> None:
        mean += np.float32(0.1) * (slopes - mean)
        square += np.float32(0.001) * (slopes * slopes - square)
        step = self.settings.learning_rate * np.sqrt(1 - 0.999**self._updates) / (1 - 0.9**self._updates)
        values -= np.float32(step) * mean / (np.sqrt(square) + np.float32(1e-8))
