"""Convert a validation metric to a falling error, and to what a rule compares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats, StopRule

KINDS = ("error", "accuracy", "loss", "log", "max")
_MIN_GAIN_SHARE = 0.5  # of a value without a bound, by which it may still grow
_LOG_START = 5.0  # start of a logarithm: a decrease by e^5 reaches zero


@dataclass(frozen=True)
class Metric:
    """The interpretation of the numbers that a validation returns.

    ``kind`` is "error" (a share of mistakes, 0 to 1), "accuracy" (a share of what is right: accuracy, AUC, F1),
    "loss" (0 or more, smaller is better), "log" (the same over orders of magnitude: a mean squared error, a
    perplexity) or "max" (larger is better, without a bound).
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
        """
        match self.kind:
            case "accuracy":
                return 1.0 - values
            case "log":
                return np.asarray(np.log(np.maximum(values, 1e-300)) - self._first(values) + _LOG_START)
            case "max":
                return self._reference(values) - values
        return values

    def back(self, errors: Floats, values: Floats) -> Floats:
        """Return simulated ``errors`` as a rule compares them, after ``values``."""
        match self.kind:
            case "accuracy":
                return errors - 1.0
            case "log":
                return np.asarray(np.exp(np.clip(errors - _LOG_START + self._first(values), -700, 700)))
            case "max":
                return errors - self._reference(values)
        return errors

    def _first(self, values: Floats) -> float:
        return float(np.log(max(values[0], 1e-300))) if len(values) else 0.0

    def _reference(self, values: Floats) -> float:
        if not len(values):
            return 1.0
        best, worst = float(values.max()), float(values.min())
        return best + max(best - worst, _MIN_GAIN_SHARE * abs(best), 1e-12)
