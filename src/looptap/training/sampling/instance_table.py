"""`InstanceTable`: the loss, score and draws of each instance of a data set."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints
from looptap.training.saved_state import require_state

Ints32: TypeAlias = npt.NDArray[np.int32]

_MAX_UNCOUNTED_STEPS = 64  # whose instances are counted together: single steps find no part of the table in a cache
_SAVED = ("loss", "score", "label", "seen", "last", "scored_at", "probability", "weight", "uniform", "prediction")


class InstanceTable:
    """Arrays with one element per instance, about 50 bytes in all.

    >>> table = InstanceTable(3)
    >>> table.observed(np.array([2]), np.array([0.5]), np.array([0.25]))
    >>> table.loss.tolist(), float(table.mean_score)
    ([nan, nan, 0.5], 0.25)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.loss = np.full(size, np.nan, np.float32)
        """The newest loss; NaN if there is none."""
        self.score = np.full(size, np.nan, np.float32)
        """The newest gradient norm; NaN if there is none."""
        self.label = np.full(size, -1, np.int32)
        """Its class in the targets; -1 if unknown."""
        self.probability = np.ones(size, np.float32)
        """The probability with which it was accepted when last drawn."""
        self.weight = np.ones(size, np.float32)
        """The weight of its loss since then."""
        self.uniform = np.ones(size, np.bool_)
        """True if it would have been accepted with any score: such instances are a uniform sample."""
        self.prediction = np.full(size, np.nan, np.float32)
        """Its predicted importance when last drawn; NaN if unknown."""
        self.scored_at = np.full(size, -1, np.int64)
        """How many instances had been trained on, copies too, when its newest loss came; -1: never."""
        self.steps = 0
        """Steps that were counted."""
        self.trained_instances = 0
        """How many were trained on so far, copies too."""
        self.plain = True
        """Whether all instances were drawn alike so far."""
        self.weighted = False
        """Whether an instance may have a weight other than 1."""
        self.sums = [0.0, 0, 0.0, 0]
        """The sum and the number of the losses that are known, and of the scores."""
        self._seen, self._last = np.zeros(size, np.int32), np.full(size, -1, np.int64)
        self._predicted = False  # whether there are predictions
        self._uncounted: list[tuple[Ints, int]] = []

    @property
    def seen(self) -> Ints32:
        """Number of times each was trained on."""
        self._count()
        return self._seen

    @property
    def last(self) -> Ints:
        """The step at which each was trained last; -1: never."""
        self._count()
        return self._last

    @property
    def mean_loss(self) -> float:
        """The mean of the newest losses; NaN before the first."""
        return self.sums[0] / self.sums[1] if self.sums[1] else float("nan")

    @property
    def mean_score(self) -> float:
        """The mean of the newest scores; NaN before the first."""
        return self.sums[2] / self.sums[3] if self.sums[3] else float("nan")

    def drawn(self, found: Accepted, weights: Floats | None, prediction: Floats | None) -> None:
        """Note how instances were drawn, and their weights; None: all weigh 1."""
        self.probability[found.indices], self.uniform[found.indices] = found.probability, found.uniform
        if weights is not None or self.weighted:
            self.weight[found.indices] = 1.0 if weights is None else weights
            self.weighted = True
        if prediction is not None or self._predicted:
            self.prediction[found.indices] = np.nan if prediction is None else prediction
            self._predicted = True
        self.plain = False

    def drawn_alike(self, indices: Ints) -> None:
        """Note that instances were drawn with probability and weight 1."""
        self.probability[indices], self.uniform[indices] = 1.0, True
        if self.weighted:
            self.weight[indices] = 1.0
        if self._predicted:
            self.prediction[indices] = np.nan

    def trained(self, indices: Ints) -> None:
        """Count a step on ``indices``, which stay as they are."""
        self.steps += 1
        self._uncounted.append((indices, self.steps))
        self.trained_instances += len(indices)
        if len(self._uncounted) >= _MAX_UNCOUNTED_STEPS:
            self._count()

    def observed(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Keep the newest losses and scores of distinct ``indices``."""
        self.scored_at[indices] = self.trained_instances
        self._replace(self.loss, 0, indices, losses)
        if scores is not None:
            self._replace(self.score, 2, indices, scores)

    def recount(self) -> None:
        """Compute the sums again: float errors do not add up over epochs.

        After an epoch in which all were drawn alike, nothing of the draws before it is left.
        """
        self._predicted = not np.isnan(self.prediction).all()
        self.weighted = self.weighted and not bool((self.weight == 1).all())
        if not (self.plain or self.weighted or self._predicted):
            self.plain = bool((self.probability == 1).all() and self.uniform.all())
        for place, values in ((0, self.loss), (2, self.score)):
            self.sums[place : place + 2] = [
                float(np.nansum(values, dtype=np.float64)),
                int(np.count_nonzero(values == values)),
            ]

    def state_dict(self, ids: Ints) -> dict[str, Any]:
        """Return what is known of ``ids``, with the ids."""
        return {"ids": ids.copy()} | {name: getattr(self, name)[ids] for name in _SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what is known of the ids in ``state``. Raises ValueError."""
        require_state(state, dict.fromkeys(("ids", *_SAVED)), "an InstanceTable")
        for name in _SAVED:
            getattr(self, name)[state["ids"]] = state[name]
        self.trained_instances = int(self.scored_at.max(initial=0))
        self.plain, self.weighted = False, True
        self.recount()

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for indices, step in uncounted:
            self._seen[indices] += 1
            self._last[indices] = step

    def _replace(self, values: Floats, place: int, indices: Ints, new: Any) -> None:
        old = values[indices]
        more, unknown = float(np.add.reduce(new - old)), 0
        if more != more:
            known = old == old
            more, unknown = float(new.sum() - old[known].sum()), len(indices) - int(np.count_nonzero(known))
        self.sums[place] += more
        self.sums[place + 1] += unknown
        values[indices] = new
