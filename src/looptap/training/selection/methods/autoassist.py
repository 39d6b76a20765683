"""`AutoAssist`: an assistant learns from the features which losses are high."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Acceptance, Floats, Ints
from looptap.training.selection.features.features import Rows
from looptap.training.selection.methods.method import Method, Settings

_LOSS_DECAY_FACTOR = 0.75  # of the sums whose ratio is T, a step
_ACCURACY_DECAY_FACTOR = 0.95
_MAX_FRESH_RATINGS = 4096  # of more instances the newest ratings are returned, so that a query does not hold a step up
_MAX_ROWS_PER_ERROR = 4  # above which it is quicker to read rows again than to compute with all that were read last


class AutoAssist(Method):
    """Draws by a logistic model of the features, the assistant, as published.

    ``P = 1 - gamma + gamma * g``: g is the assistant's probability that the loss of the instance is above T, the ratio
    of the moving averages of the sum and of the number of losses; gamma is the moving average of its accuracy, 0 at
    the start. After each step: ``phi = (1 - decay) * phi - rate * mean gradient``, on the batch of that step. Source:
    Zhang, Yu & Dhillon, AutoAssist (2019), Algorithm 1.
    """

    name: ClassVar[str] = "autoassist"
    draws: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        super().__init__(table, settings)
        self.require(settings)
        assert settings.features is not None
        self.features = features = settings.features
        self.phi = np.zeros(self.features.width + 1, np.float32)
        """The weights of the assistant; the last is the constant."""
        self.averages = np.zeros(4)
        """Moving averages: of the sum and of the number of losses in a step, and of the accuracy; then the updates."""
        self.beside = False
        """Whether an assistant beside the loop rates the instances, so that this need not."""
        self._rated = np.full(features.size, np.nan, np.float32)
        self._rated_at = np.full(features.size, -1, np.int64)  # after how many updates
        self._read: tuple[Ints, Rows] = np.empty(0, np.int64), features.rows(np.empty(0, np.int64))
        self._place_of = np.zeros(features.size, np.int32)  # of an instance in what was read last

    @classmethod
    def require(cls, settings: Settings) -> None:
        """Raise ControlError if there are no features."""
        if settings.features is None:
            raise ControlError(
                "the method 'autoassist' needs features: Selection(..., features=pixels(images)), "
                "pixels_and_class(images, labels), tfidf(texts), an array (n, d) or a function of indices."
            )

    @property
    def gamma(self) -> float:
        """The moving average of the assistant's accuracy: the share of draws it decides."""
        return float(self.averages[2])

    @property
    def threshold(self) -> float:
        """T, the loss above which an instance is important; NaN before the first step."""
        total, count = self.averages[:2].tolist()
        return total / count if count else float("nan")

    @property
    def cut(self) -> float:
        """One half: above it an instance is judged important."""
        return 0.5

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return the probability with which each of ``indices`` is drawn."""
        gamma = self.gamma
        rating = self.predicted(indices)
        if self._stored(indices):  # some were never rated, it may be
            rating = np.where(rating == rating, rating, np.float32(0.5))
        return Acceptance(np.float32(1 - gamma) + np.float32(gamma) * rating, 1 - gamma)

    def predicted(self, indices: Ints) -> Floats:
        """Return g of each of ``indices``, the probability that it is important.

        For more than 4,096, and with an assistant beside the loop, that of when each was rated last; NaN: never.
        """
        return self._rated[indices] if self._stored(indices) else self._rating(indices)

    def rated(self, indices: Ints, rating: Floats) -> None:
        """Note g of ``indices``, as an assistant beside the loop found it."""
        self._rated[indices], self._rated_at[indices] = rating, self.averages[3]

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Learn from the batch that was trained on."""
        total, count, gamma, updates = self.averages.tolist()
        total += (1 - _LOSS_DECAY_FACTOR) * (float(np.add.reduce(losses, dtype=np.float64)) - total)
        count += (1 - _LOSS_DECAY_FACTOR) * (len(losses) - count)
        important = losses > total / count
        rating = self._rating(indices)
        accuracy = np.count_nonzero((rating > self.cut) == important) / len(losses)
        errors = (rating - important) * np.float32(self.settings.learning_rate / len(losses))
        phi = self.phi
        phi *= np.float32(1 - self.features.decay)
        phi[:-1] -= self._gradient(indices, errors)
        phi[-1] -= np.add.reduce(errors)
        if not math.isfinite(float(phi.dot(phi))):
            phi[:], self._rated_at[:] = 0, -1
            raise ValueError(
                f"the assistant diverged with learning_rate={self.settings.learning_rate!r}, and was reset. Set a "
                "lower rate, or scale the features."
            )
        self.averages[:] = total, count, gamma + (1 - _ACCURACY_DECAY_FACTOR) * (accuracy - gamma), updates + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {"phi": self.phi.copy(), "averages": self.averages.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Raises ValueError for that of other features."""
        super().load_state_dict(state)
        if len(state["phi"]) != len(self.phi):
            raise ValueError(
                f"The assistant of the state has {len(state['phi']) - 1:,} features; here are {len(self.phi) - 1:,}."
            )
        self.phi[:], self.averages[:] = state["phi"], state["averages"]
        self._rated_at[:] = -1

    def _stored(self, indices: Ints) -> bool:
        """Return whether `predicted` takes the ratings that are stored."""
        return self.beside or len(indices) > _MAX_FRESH_RATINGS

    def _rating(self, indices: Ints) -> Floats:
        """Return g of each of ``indices`` with the present weights."""
        if not np.count_nonzero(self._rated_at[indices] != self.averages[3]):
            return self._rated[indices]
        rows = self.features.rows(indices)
        self._read = indices, rows
        self._place_of[indices] = np.arange(len(indices), dtype=np.int32)
        half = np.float32(0.5)
        rating: Floats = half + half * np.tanh(half * (rows.dot(self.phi[:-1]) + self.phi[-1]))
        self.rated(indices, rating)
        return rating

    def _gradient(self, indices: Ints, errors: Floats) -> Floats:
        """Return the sum of the rows of distinct ``indices``, each times its error.

        Those that were offered last, for a draw, need not be read again.
        """
        read, rows = self._read
        places = self._place_of[indices]
        near = 0 < len(read) <= _MAX_ROWS_PER_ERROR * len(indices)
        if near and not np.count_nonzero(read.take(places, mode="clip") != indices):
            every = np.zeros(len(read), np.float32)
            every[places] = errors
            return rows.gradient(every)
        return self.features.rows(indices).gradient(errors)
