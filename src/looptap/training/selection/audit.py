"""`Audit`: how well instances are rated, measured on a uniform sample."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.sampling.permutation_walk import Bools, Floats, Ints

Doubles: TypeAlias = npt.NDArray[np.float64]

_MAX_INSTANCES = 4096  # newest instances of the sample
_MAX_COMPARED_INSTANCES = 96  # of about the same time: ratings and losses fall while the model learns, not equally fast


class RatingQuality(NamedTuple):
    """How well predictions fit the outcomes.

    An instance is important if its loss is above the threshold.
    """

    accuracy: float
    """The share that was judged right."""
    majority: float
    """The accuracy of always giving the more frequent answer."""
    balanced_accuracy: float
    """The mean of the shares of important and of trivial instances that were judged right."""
    auc: float
    """The chance that of an important and a trivial instance of the same time the important one was rated higher."""
    lift: float
    """How much more frequent important instances are among the upper half of the ratings of a time than among all."""


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
        self._new = deque[tuple[Floats, Floats, float, float]]()  # not sorted in: most steps are never asked about
        self._waiting = 0  # instances in them
        self._predicted, self._rank = np.zeros(0, np.float32), np.zeros(0, np.float32)
        self._said, self._important = np.zeros(0, np.bool_), np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return min(self._waiting + len(self._rank), _MAX_INSTANCES)

    def add(self, predicted: Floats, losses: Floats, cut: float, threshold: float) -> None:
        """Add instances, each with a prediction.

        A prediction above ``cut`` says that the loss is above ``threshold``: as they are now, since both fall while
        the model learns.
        """
        if math.isnan(threshold) or not len(predicted):
            return
        new = self._new
        new.append((predicted[-_MAX_INSTANCES:], losses[-_MAX_INSTANCES:], cut, threshold))
        self._waiting += len(new[-1][0])
        while self._waiting - len(new[0][0]) >= _MAX_INSTANCES:
            self._waiting -= len(new.popleft()[0])

    def _sort_in(self) -> None:
        if not self._new:
            return
        rows = [
            (predicted, predicted / np.float32(cut) if cut > 0 else predicted, predicted > cut, losses > threshold)
            for predicted, losses, cut, threshold in self._new
        ]
        self._new.clear()
        self._waiting = 0
        old = self._predicted, self._rank, self._said, self._important
        found = (np.concatenate(parts)[-_MAX_INSTANCES:] for parts in zip(old, *rows, strict=True))
        self._predicted, self._rank, self._said, self._important = found

    def quality(self) -> RatingQuality:
        """Return how well predictions fit the losses; `UNKNOWN` if there are none."""
        self._sort_in()
        rank, said, important = self._rank, self._said, self._important
        if not len(rank):
            return UNKNOWN
        share = float(important.mean())
        right = [float((said == important)[kind].mean()) for kind in (important, ~important) if kind.any()]
        time = np.arange(len(rank)) // _MAX_COMPARED_INSTANCES
        place = _places(rank, time)
        upper = important[place >= (np.bincount(time)[time] + 1) / 2].mean()
        return RatingQuality(
            accuracy=float((said == important).mean()),
            majority=max(share, 1 - share),
            balanced_accuracy=sum(right) / len(right),
            auc=_auc(place, important, time),
            lift=float(upper / share) if share else math.nan,
        )

    def calibration(self, bins: int = 10) -> Floats:
        """Return the mean of each bin of predictions, and the share important in it."""
        self._sort_in()
        predicted, important = self._predicted, self._important
        parts = np.array_split(np.argsort(predicted, kind="stable"), bins)
        found = [(predicted[part].mean(), important[part].mean()) for part in parts if len(part)]
        return np.array(found, np.float32).reshape(-1, 2)


def _places(rating: Floats, time: Ints) -> Doubles:
    """Return the place of each rating among those of its time, from 1; ties share."""
    _, inverse, counts = np.unique(time + 1j * rating, return_inverse=True, return_counts=True)
    places: Doubles = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - np.searchsorted(time, time)
    return places


def _auc(place: Doubles, important: Bools, time: Ints) -> float:
    """Return the area under the ROC curve, of all times together; NaN for one class."""
    positive = np.bincount(time, important)
    pairs = float((positive * (np.bincount(time) - positive)).sum())
    if not pairs:
        return math.nan
    return float((np.bincount(time, place * important) - positive * (positive + 1) / 2).sum() / pairs)
