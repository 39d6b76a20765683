"""`HonestGain`: the measured gain of selected instances over random ones."""

from __future__ import annotations

import math

import numpy as np

from looptap.training.sampling.permutation_walk import Floats

_DECAY_FACTOR = 0.98  # of what was seen, a step
_LEAST_PROBABILITY = np.float32(1e-3)  # with a floor of 0, an instance that is never drawn must not outweigh all others


class HonestGain:
    """Measures the gain G of drawing with other probabilities.

    ``wanted`` are those probabilities, ``drawn`` those with which the instances were drawn.

    With scores s that came after the draw, sums over recent instances, each counted 1/drawn times so that they stand
    for all that were offered: ``G = sum(s**2) * n / (sum(s**2 / wanted) * sum(wanted))``: the squared gradient of an
    instance at random over that of a selected and weighted one, for each instance trained. 1: no gain. Scores from
    before the draw would flatter it. After Katharopoulos & Fleuret (2018).

    >>> gain = HonestGain()
    >>> half = np.array([1, .5], np.float32)
    >>> gain.add(drawn=half, wanted=half, scores=np.array([2, 1], np.float32))
    >>> gain.value, gain.kept
    (1.125, 0.6666666666666666)
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 4

    def add(self, *, drawn: Floats, wanted: Floats, scores: Floats) -> None:
        """Add a step."""
        each = 1 / drawn
        wanted = np.maximum(wanted, _LEAST_PROBABILITY)
        squares = scores.astype(np.float64) ** 2 * each
        new = float(each.sum()), float(squares.sum()), float((squares / wanted).sum()), float(wanted @ each)
        if math.isfinite(sum(new)):  # else nothing would be known ever after
            self._sums = [_DECAY_FACTOR * old + one for old, one in zip(self._sums, new, strict=True)]

    @property
    def value(self) -> float:
        """The gain; NaN before the first step."""
        offered, squares, weighted, kept = self._sums
        return squares * offered / (weighted * kept) if weighted > 0 and kept > 0 else float("nan")

    @property
    def kept(self) -> float:
        """The share of the offered instances that is trained on; NaN at first."""
        offered, _, _, kept = self._sums
        return kept / offered if offered else float("nan")

    def state_dict(self) -> list[float]:
        """Return the sums."""
        return list(self._sums)

    def load_state_dict(self, state: list[float]) -> None:
        """Continue from what `state_dict` returned."""
        self._sums = list(state)
