"""`HonestGain`: the measured gain of selected instances over random ones."""

from __future__ import annotations

import numpy as np

from looptap.training.sampling.permutation_walk import Floats

_DECAY_FACTOR = 0.98  # of what was seen, a step
_LEAST_PROBABILITY = np.float32(1e-3)  # with a floor of 0, an instance that is never drawn must not outweigh all others
_MAX_NEW_STEPS = 64  # that are added together, which takes no longer than adding one


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
        self._sums = np.zeros(4)
        self._new: list[tuple[Floats, Floats, Floats]] = []  # steps that are not in the sums

    def add(self, *, drawn: Floats, wanted: Floats, scores: Floats) -> None:
        """Add a step, in arrays that stay as they are."""
        if len(drawn):
            self._new.append((drawn, wanted, scores))
        if len(self._new) >= _MAX_NEW_STEPS:
            self._sum_up()

    @property
    def value(self) -> float:
        """The gain; NaN before the first step."""
        self._sum_up()
        offered, squares, weighted, kept = self._sums.tolist()
        return squares * offered / (weighted * kept) if weighted > 0 and kept > 0 else float("nan")

    @property
    def kept(self) -> float:
        """The share of the offered instances that is trained on; NaN at first."""
        self._sum_up()
        offered, _, _, kept = self._sums.tolist()
        return kept / offered if offered else float("nan")

    @np.errstate(all="ignore")  # steps with what is not finite are left out
    def _sum_up(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        drawn, wanted, scores = (np.concatenate(parts) for parts in zip(*new, strict=True))
        each, wanted = 1 / drawn, np.maximum(wanted, _LEAST_PROBABILITY)
        squares = scores.astype(np.float64) ** 2 * each
        starts = np.cumsum([0, *(len(one[0]) for one in new[:-1])])
        sums = np.add.reduceat(np.stack([each, squares, squares / wanted, wanted * each]), starts, axis=1)
        good = np.isfinite(sums.sum(0))  # else nothing would be known ever after
        ages = np.cumsum(good[::-1])[::-1] - 1  # good steps after each
        self._sums *= _DECAY_FACTOR ** np.count_nonzero(good)
        self._sums += sums[:, good] @ _DECAY_FACTOR ** ages[good]

    def state_dict(self) -> list[float]:
        """Return the sums."""
        self._sum_up()
        sums: list[float] = self._sums.tolist()
        return sums

    def load_state_dict(self, state: list[float]) -> None:
        """Continue from what `state_dict` returned. Raises ValueError."""
        if not isinstance(state, list) or len(state) != len(self._sums):
            raise ValueError(f"gain={state!r:.60} must be {len(self._sums)} sums, as the state_dict() has them.")
        self._sums, self._new = np.array(state), []
