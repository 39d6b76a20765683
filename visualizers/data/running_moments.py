"""`Moments`: count, mean, spread, least and largest of numbers that come in blocks."""

from __future__ import annotations

import math

import numpy as np

from looptap.visualizers.data.numbers import Floats


class Moments:
    """The figures of a summary; NaN and infinities are left out.

    >>> moments = Moments()
    >>> moments.add(np.array([1.0, 3.0])); moments.add(np.array([5.0, np.nan]))
    >>> moments.count, moments.figures()
    (3, (3.0, 2.0, 1.0, 5.0, 5.0))
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = 0.0
        self._least, self._largest, self._newest = math.inf, -math.inf, math.nan

    def add(self, numbers: Floats) -> None:
        """Take in a block; its mean and spread are merged with those before (Chan et al.)."""
        numbers = numbers[np.isfinite(numbers)]
        count = len(numbers)
        if not count:
            return
        mean = float(numbers.mean())
        delta, total = mean - self._mean, self.count + count
        self._squares += float(((numbers - mean) ** 2).sum()) + delta * delta * self.count * count / total
        self._mean += delta * count / total
        self.count = total
        self._least = min(self._least, float(numbers.min()))
        self._largest = max(self._largest, float(numbers.max()))
        self._newest = float(numbers[-1])

    def figures(self) -> tuple[float, float, float, float, float]:
        """Mean, standard deviation (divisor n - 1), least, largest and newest; NaN where there is none."""
        if not self.count:
            return (math.nan,) * 5
        spread = math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else math.nan
        return self._mean, spread, self._least, self._largest, self._newest
