"""`HonestGain`: the measured gain of selected instances over random ones."""

from __future__ import annotations

import numpy as np

from looptap.training.sampling.permutation_walk import Floats

_DECAY_FACTOR = 0.98  # of what was seen, a step
LEAST_PROBABILITY = np.float32(1e-3)
"""What counts as the least: with a floor of 0, an instance that is never drawn must not outweigh all others."""
_MAX_NEW_STEPS = 64  # that are added together, which takes no longer than adding one


class HonestGain:
    """Measures the gain G of drawing with other probabilities.

    ``wanted`` are those probabilities P, ``drawn`` those with which the instances were drawn, and ``weights`` the w
    that go with P, up to a factor; None: all alike.

    How far a step leads for its noise is the square of the mean gradient over the mean of its square: with scores s
    that came after the draw, ``sum(P w s)**2 / (sum(P) * sum(P w**2 s**2))`` for each instance trained, and G is that
    over the same of all alike, ``sum(s)**2 / (n * sum(s**2))``. The sums are over recent instances, each counted
    1/drawn times so that they stand for all that were offered. 1: no gain. Scores from before the draw would flatter
    it. With w = 1/P it is the reduction of variance of Katharopoulos & Fleuret (2018).

    >>> gain = HonestGain()
    >>> half = np.array([1, .5], np.float32)
    >>> gain.add(drawn=half, wanted=half, weights=1 / half, scores=np.array([2, 1], np.float32))
    >>> gain.value, gain.kept
    (1.125, 0.6666666666666666)
    """

    def __init__(self) -> None:
        self._sums = np.zeros(6)
        self._new: list[tuple[Floats, Floats, Floats, Floats]] = []  # what is not in the sums
        self._new_steps: list[int] = []  # how many steps each of it was

    def add(self, *, drawn: Floats, wanted: Floats, weights: Floats | None, scores: Floats, steps: int = 1) -> None:
        """Add a step, or several together, in arrays that stay as they are."""
        if len(drawn):
            self._new_steps.append(steps)
            self._new.append((drawn, wanted, np.ones_like(wanted) if weights is None else weights, scores))
        if len(self._new) >= _MAX_NEW_STEPS:
            self._sum_up()

    @property
    def value(self) -> float:
        """The gain; NaN before the first step."""
        self._sum_up()
        offered, kept, sums, squares, weighted, weighted_squares = self._sums.tolist()
        noise = sums**2 * kept * weighted_squares
        return offered * squares * weighted**2 / noise if noise > 0 else float("nan")

    @property
    def kept(self) -> float:
        """The share of the offered instances that is trained on; NaN at first."""
        self._sum_up()
        offered, kept = self._sums[:2].tolist()
        return kept / offered if offered else float("nan")

    @np.errstate(all="ignore")  # steps with what is not finite are left out
    def _sum_up(self) -> None:
        if not self._new:
            return
        new, self._new, steps, self._new_steps = self._new, [], np.array(self._new_steps), []
        drawn, wanted, weights, scores = (np.concatenate(parts).astype(np.float64) for parts in zip(*new, strict=True))
        each, weighted = 1 / drawn, weights * scores
        kept = wanted * each
        terms = [each, kept, each * scores, each * scores**2, kept * weighted, kept * weighted**2]
        starts = np.cumsum([0, *(len(one[0]) for one in new[:-1])])
        sums = np.add.reduceat(np.stack(terms), starts, axis=1)
        good = np.isfinite(sums.sum(0))  # else nothing would be known ever after
        steps = steps[good]
        ages = np.cumsum(steps[::-1])[::-1] - steps  # good steps after each
        self._sums *= _DECAY_FACTOR ** steps.sum()
        self._sums += sums[:, good] @ _DECAY_FACTOR**ages

    def state_dict(self) -> list[float]:
        """Return the sums."""
        self._sum_up()
        sums: list[float] = self._sums.tolist()
        return sums

    def load_state_dict(self, state: list[float]) -> None:
        """Continue from what `state_dict` returned. Raises ValueError."""
        if not isinstance(state, list) or len(state) != len(self._sums):
            raise ValueError(f"gain={state!r:.60} must be {len(self._sums)} sums, as the state_dict() has them.")
        self._sums, self._new, self._new_steps = np.array(state), [], []
