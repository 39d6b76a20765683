"""`Audit`: how well instances are rated, measured on a uniform sample."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from looptap.training.sampling.permutation_walk import Floats

_MAX_INSTANCES = 4096  # newest instances of the sample


class RatingQuality(NamedTuple):
    """How well predictions fit the outcomes.

    An instance is important if its loss is above the threshold.
    """

    accuracy: float
    """The share that was judged right."""
    majority: float
    """The accuracy of who always says the more frequent answer."""
    balanced_accuracy: float
    """The mean of the shares of important and of trivial instances that were judged right."""
    auc: float
    """The chance that of an important and a trivial instance the important one was rated higher."""
    lift: float
    """How much more frequent important instances are among the upper half of the ratings than among all."""


UNKNOWN = RatingQuality(math.nan, math.nan, math.nan, math.nan, math.nan)
"""Before anything was judged."""


class Audit:
    """The predictions and outcomes of the newest uniformly drawn instances.

    Instances that were selected would flatter a selection: they were chosen by the prediction.

    >>> audit = Audit()
    >>> audit.add(np.array([.9, .8, .1]), np.array([2.0, 0.5, 0.1]))
    >>> audit.quality(cut=0.5, threshold=1.0).accuracy
    0.6666666666666666
    """

    def __init__(self) -> None:
        self._predicted, self._losses = np.zeros(_MAX_INSTANCES, np.float32), np.zeros(_MAX_INSTANCES, np.float32)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, _MAX_INSTANCES)

    def add(self, predicted: Floats, losses: Floats) -> None:
        """Add instances, except those without a prediction (NaN)."""
        known = predicted == predicted
        if not known.all():
            predicted, losses = predicted[known], losses[known]
        predicted, losses = predicted[-_MAX_INSTANCES:], losses[-_MAX_INSTANCES:]
        place = self._count % _MAX_INSTANCES
        fitting = min(len(predicted), _MAX_INSTANCES - place)
        for values, new in ((self._predicted, predicted), (self._losses, losses)):
            values[place : place + fitting] = new[:fitting]
            values[: len(new) - fitting] = new[fitting:]
        self._count += len(predicted)

    def clear(self) -> None:
        """Forget all, since another method predicts from here on."""
        self._count = 0

    def quality(self, cut: float, threshold: float) -> RatingQuality:
        """Return how well predictions above ``cut`` fit losses above ``threshold``.

        `UNKNOWN` if there are none.
        """
        predicted, important = self._predicted[: len(self)], self._losses[: len(self)] > threshold
        if not len(predicted):
            return UNKNOWN
        said, share = predicted > cut, float(important.mean())
        right = [float((said == important)[kind].mean()) for kind in (important, ~important) if kind.any()]
        upper = important[predicted >= np.median(predicted)].mean()
        return RatingQuality(
            accuracy=float((said == important).mean()),
            majority=max(share, 1 - share),
            balanced_accuracy=sum(right) / len(right),
            auc=_auc(predicted, important),
            lift=float(upper / share) if share else math.nan,
        )

    def calibration(self, threshold: float, bins: int = 10) -> Floats:
        """Return the mean of each bin of predictions, and the share important in it."""
        predicted, important = self._predicted[: len(self)], self._losses[: len(self)] > threshold
        parts = np.array_split(np.argsort(predicted, kind="stable"), bins)
        found = [(predicted[part].mean(), important[part].mean()) for part in parts if len(part)]
        return np.array(found, np.float32).reshape(-1, 2)


def _auc(predicted: Floats, important: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    """Return the area under the ROC curve, ties counted half; NaN for one class."""
    positive = int(important.sum())
    negative = len(important) - positive
    if not positive or not negative:
        return math.nan
    _, inverse, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[important].sum() - positive * (positive + 1) / 2) / (positive * negative))
