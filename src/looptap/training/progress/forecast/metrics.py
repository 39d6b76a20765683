"""Convert a validation metric to a falling error, and to what a rule compares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats, StopRule

KINDS = ("error", "accuracy", "loss", "log", "max")
_MIN_GAIN_SHARE = 0.5  # of a value without a bound, by which it may still improve
_MAX_GAIN_RANGES = 20.0  # times the range of the values so far: the same, at most
_LOG_START = 5.0  # start of a logarithm: a decrease by e^5 reaches zero
_PERCENT = 100.0
_MAX_LEAD = 2.0  # times the range of all other values, by which the worst of them may lie above these


@dataclass(frozen=True)
class Metric:
    """The interpretation of the numbers that a validation returns.

    ``kind`` is "error" (a share of mistakes, 0 to 1), "accuracy" (a share or percentage that is right: accuracy, AUC,
    F1), "loss" (smaller is better), "log" (the same over orders of magnitude: a mean squared error, a perplexity) or
    "max" (larger is better, without a bound).
    """

    kind: str = "error"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"metric={self.kind!r} must be one of {', '.join(map(repr, KINDS))}.")

    @property
    def larger_is_better(self) -> bool:
        """True if larger values are better."""
        return self.kind in ("accuracy", "max")

    @property
    def scale(self) -> float:
        """A typical first error, used before there is one."""
        return _LOG_START if self.kind == "log" else 1.0

    def compared(self, values: Floats) -> Floats:
        """Return ``values`` as a rule compares them: negated if larger is better."""
        return -values if self.larger_is_better else values

    def comparing(self, rule: StopRule) -> StopRule:
        """Return ``rule`` for what `compared` returns."""
        return rule.for_negatives() if self.larger_is_better else rule

    def errors(self, values: Floats) -> Floats:
        """Return the ``values`` so far as errors, 0 or more.

        >>> Metric("accuracy").errors(np.array([0.5, 0.75])).tolist()
        [0.5, 0.25]
        >>> Metric("accuracy").errors(np.array([50.0, 75.0])).tolist()
        [50.0, 25.0]
        """
        if self.kind == "log":
            return np.asarray(np.log(np.maximum(values, 1e-300)) - self._first(values) + _LOG_START)
        return _without_outlier(self.compared(values)) - self._bound(values)

    def back(self, errors: Floats, values: Floats) -> Floats:
        """Return simulated ``errors`` as a rule compares them, after ``values``."""
        if self.kind == "log":
            return np.asarray(np.exp(np.clip(errors - _LOG_START + self._first(values), -700, 700)))
        return errors + self._bound(values)

    def _first(self, values: Floats) -> float:
        return float(np.log(max(values[0], 1e-300))) if len(values) else 0.0

    def _bound(self, values: Floats) -> float:
        """Return the best value that can be reached, as a rule compares it."""
        bounds = {"max": (), "accuracy": (-1.0, -_PERCENT)}.get(self.kind, (0.0,))
        if not len(values):
            return bounds[0] if bounds else -1.0
        compared = _without_outlier(self.compared(values))
        best, worst = float(compared.min()), float(compared.max())
        for bound in bounds:
            if best >= bound:
                return bound
        gain = _MIN_GAIN_SHARE * abs(best)
        if worst > best:  # what has moved little comes no nearer to zero
            gain = min(gain, _MAX_GAIN_RANGES * (worst - best))
        return best - max(worst - best, gain, 1e-12)


def _without_outlier(compared: Floats) -> Floats:
    """Return values of which the worst is not far from all others.

    It may come from a model that has learned nothing yet, and says nothing about later ones.
    """
    if len(compared) < 3:
        return compared
    best, second = float(compared.min()), float(np.partition(compared, -2)[-2])
    return np.minimum(compared, second + _MAX_LEAD * (second - best))
