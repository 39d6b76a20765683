"""A linear SVM by SGD that skips instances with a small loss or gradient.

python -m looptap.examples.linear_svm [--steps 4096] [--runs 32] [--scale G]
Section 3 of Zhang, Yu & Dhillon, AutoAssist (2019). F(w) is the mean of
``f_i(w) = decay / 2 |w|**2 + max(0, 1 - y w.x)``. Each step draws an instance and walks along its gradient by
1 / (decay k); shrinking skips it below a threshold of G / k, so that E |w_k - w*|**2 remains O(1 / k) (Theorem 1).
An instance costs a look, and an update if it is not skipped. That threshold soon skips no more: try --scale 200.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
STRATEGIES = ("pegasos", "shrink by loss", "shrink by gradient", "importance")


class Problem(NamedTuple):
    """Hold instances times their classes, and the strength of the decay."""

    signed: Array
    """y x of each instance, of shape (n, d); y is -1 or 1."""
    decay: float

    def value(self, w: Array) -> Array:
        """Return F of each row of ``w``."""
        hinge = np.maximum(0.0, 1 - w @ self.signed.T).mean(-1)
        return np.asarray(self.decay / 2 * (w**2).sum(-1) + hinge)

    def best(self, rounds: int = 2000) -> Array:
        """Return w*, by coordinate ascent in the dual."""
        n, d = self.signed.shape
        alpha, w, squares = np.zeros(n), np.zeros(d), (self.signed**2).sum(1)
        for _ in range(rounds):
            before = alpha.copy()
            for i, x in enumerate(self.signed):
                new = min(1.0, max(0.0, alpha[i] + (1 - w @ x) * self.decay * n / squares[i]))
                w += (new - alpha[i]) / (self.decay * n) * x
                alpha[i] = new
            if np.abs(alpha - before).max() < 1e-12:
                break
        return w


class Course(NamedTuple):
    """Where independent runs were after a number of instances."""

    looked_at: int
    """Instances that were drawn."""
    updates: float
    """Gradient steps that were made, a mean over the runs."""
    w: Array
    """One row for each run."""


def train(
    problem: Problem,
    strategy: str,
    steps: int,
    *,
    runs: int = 32,
    seed: int = 0,
    scale: float | None = None,
    threshold: Callable[[int], float] | None = None,
) -> list[Course]:
    """Return where SGD was after 1, 2, 4, ... ``steps`` instances, in many runs.

    ``threshold(k)`` is T_k, by default ``scale / k``, with a scale of the largest gradient at w = 0.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} must be one of {', '.join(STRATEGIES)}.")
    rng, (n, d), decay = np.random.default_rng(seed), problem.signed.shape, problem.decay
    lengths = np.linalg.norm(problem.signed, axis=1)
    scale = float(lengths.max()) if scale is None else scale
    w, updates, found = np.zeros((runs, d)), 0, []
    for k in range(1, steps + 1):
        weight = np.ones(runs)
        if strategy == "importance":  # needs the gradients of all instances in each step
            norms = _norms(problem, w, lengths)
            chances = norms / norms.sum(1, keepdims=True)
            i = np.minimum((chances.cumsum(1) < rng.random((runs, 1))).sum(1), n - 1)
            weight = 1 / (n * chances[np.arange(runs), i])
        else:
            i = rng.integers(n, size=runs)
        x = problem.signed[i]
        violated = (w * x).sum(1) < 1
        gradient = decay * w - np.where(violated[:, None], x, 0.0)
        match strategy:
            case "shrink by loss":
                size = decay / 2 * (w**2).sum(1) + np.maximum(0.0, 1 - (w * x).sum(1))
            case "shrink by gradient":
                size = np.linalg.norm(gradient, axis=1)
            case _:
                size = np.full(runs, np.inf)
        kept = size >= (scale / k if threshold is None else threshold(k))
        w = w - (kept * weight / (decay * k))[:, None] * gradient
        lengths_of_w = np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-30)
        w *= np.minimum(1.0, 1 / (np.sqrt(decay) * lengths_of_w))  # back to the ball that w* is in
        updates += int(kept.sum())
        if k & (k - 1) == 0 or k == steps:
            found.append(Course(k, updates / runs, w))
    return found


def _norms(problem: Problem, w: Array, lengths: Array) -> Array:
    """Return the norms of the gradients of all instances, for each row of ``w``."""
    margins = w @ problem.signed.T
    shrunk = problem.decay**2 * (w**2).sum(1)[:, None]
    squares = shrunk + np.where(margins < 1, lengths**2 - 2 * problem.decay * margins, 0.0)
    return np.asarray(np.sqrt(np.maximum(squares, 1e-24)))


def two_clouds(count: int = 200, dimensions: int = 4, decay: float = 0.1, seed: int = 0) -> Problem:
    """Return two classes of normal points that overlap a little."""
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], count)
    x = rng.standard_normal((count, dimensions))
    x[:, 0] += 2 * y
    return Problem(x * y[:, None], decay)


def main() -> None:
    """Print the distance to the optimum of each strategy."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=4096)
    arguments.add_argument("--runs", type=int, default=32)
    arguments.add_argument("--scale", type=float, default=None)
    options = arguments.parse_args()
    problem = two_clouds()
    best = problem.best()
    print(f"{'':20} {'instances':>9} {'updates':>9} {'E |w - w*|^2':>13} {'E F - F*':>10}")
    for strategy in STRATEGIES:
        for looked_at, updates, w in train(problem, strategy, options.steps, runs=options.runs, scale=options.scale)[
            6::2
        ]:
            error, excess = ((w - best) ** 2).sum(1).mean(), (problem.value(w) - problem.value(best)).mean()
            print(f"{strategy:20} {looked_at:9,} {updates:9,.0f} {error:13.6f} {excess:10.6f}", flush=True)


if __name__ == "__main__":
    main()
