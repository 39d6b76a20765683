"""`SumTree`: draws in proportion to weights that change, in O(log n)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.sampling.permutation_walk import Ints

Doubles: TypeAlias = npt.NDArray[np.float64]


class SumTree:
    """Weights of n items, and the sums of all pairs, pairs of pairs, and so on.

    Sums are computed from their two parts at each change, so they do not drift.

    >>> tree = SumTree(4)
    >>> tree.put(np.array([0, 2]), np.array([1.0, 3.0]))
    >>> tree.total, tree.at(np.array([0.0, 0.9, 1.0, 3.9])).tolist()
    (4.0, [0, 0, 2, 2])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._leaves = 1 << max(1, size - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)  # node i has the parts 2 i and 2 i + 1; the root is 1

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    @property
    def weights(self) -> Doubles:
        """The weights, as a view."""
        return self._sums[self._leaves : self._leaves + self.size]

    def put(self, places: Ints, weights: Doubles) -> None:
        """Set the weights of ``places``.

        Raises ValueError for one that is not finite, or is negative.
        """
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise ValueError("a weight of a sum tree must be a finite number, 0 or more.")
        nodes = self._leaves + places
        self._sums[nodes] = weights
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def at(self, sums: Doubles) -> Ints:
        """Return where the running sum of the weights passes each of ``sums``.

        They are from 0 to below `total`. A place of weight 0 is never returned.
        """
        nodes, rest = np.ones(len(sums), np.int64), np.array(sums, np.float64)
        while nodes[0] < self._leaves:
            nodes *= 2
            left = self._sums[nodes]
            beyond = (rest >= left) & (self._sums[nodes + 1] > 0)  # rounding must not lead to an empty part
            rest -= np.where(beyond, left, 0.0)
            nodes += beyond
        return nodes - self._leaves

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Return ``count`` places, each in proportion to its weight.

        One is from each of ``count`` equal parts of the sum.
        """
        return self.at((np.arange(count) + rng.random(count)) / count * self.total)
