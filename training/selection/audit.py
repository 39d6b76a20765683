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
    >>> audit.add(np.array([.9, .8, .1]), np.array([2.0, 0.5, 0.1]), cut=0.5, threshold=1.0)
    >>> audit.quality().accuracy
    0.6666666666666666
    """

    def __init__(self) -> None:
        self._predicted, self._rank = np.zeros(_MAX_INSTANCES, np.float32), np.zeros(_MAX_INSTANCES, np.float32)
        self._said, self._important = np.zeros(_MAX_INSTANCES, np.bool_), np.zeros(_MAX_INSTANCES, np.bool_)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, _MAX_INSTANCES)

    def add(self, predicted: Floats, losses: Floats, cut: float, threshold: float) -> None:
        """Add instances, except those without a prediction (NaN).

        A prediction above ``cut`` says that the loss is above ``threshold``: as they are now, since both fall while
        the model learns.
        """
        if math.isnan(threshold):
            return
        known = predicted == predicted
        if not known.all():
            predicted, losses = predicted[known], losses[known]
        predicted, losses = predicted[-_MAX_INSTANCES:], losses[-_MAX_INSTANCES:]
        place = self._count % _MAX_INSTANCES
        fitting = min(len(predicted), _MAX_INSTANCES - place)
        rank = predicted / np.float32(cut) if cut > 0 else predicted  # comparable over time
        for values, new in (
            (self._predicted, predicted),
            (self._rank, rank),
            (self._said, predicted > cut),
            (self._important, losses > threshold),
        ):
            values[place : place + fitting] = new[:fitting]
            values[: len(new) - fitting] = new[fitting:]
        self._count += len(predicted)

    def clear(self) -> None:
        """Forget all, since another method predicts from here on."""
        self._count = 0

    def quality(self) -> RatingQuality:
        """Return how well predictions fit the losses; `UNKNOWN` if there are none."""
        count = len(self)
        rank, said, important = self._rank[:count], self._said[:count], self._important[:count]
        if not count:
            return UNKNOWN
        share = float(important.mean())
        right = [float((said == important)[kind].mean()) for kind in (important, ~important) if kind.any()]
        upper = important[rank >= np.median(rank)].mean()
        return RatingQuality(
            accuracy=float((said == important).mean()),
            majority=max(share, 1 - share),
            balanced_accuracy=sum(right) / len(right),
            auc=_auc(rank, important),
            lift=float(upper / share) if share else math.nan,
        )

    def calibration(self, bins: int = 10) -> Floats:
        """Return the mean of each bin of predictions, and the share important in it."""
        predicted, important = self._predicted[: len(self)], self._important[: len(self)]
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
