"""The noise of validations to come: drawn from that of the validations so far.

A history without noise has futures without noise, and a metric that has few values, such as an accuracy over some
hundred items, keeps to them: a tie is no improvement.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats

_BLOCK_POINTS = 3  # successive residuals that are drawn together, since noise is correlated
_PRIOR_RESIDUALS = 3.0  # as many residuals count as drawn from the fitted level of noise
_MIN_VALUES = 3  # values from which it can be seen that a metric is discrete
_MIN_GAPS = 4  # or a value that came twice
_MAX_LATTICE_ERROR = 0.02  # of a step, in the mean
_MAX_STEP_PARTS = 4  # the smallest difference seen may be so many steps
_CONSTANT_STEP_SHARE = 0.002  # of the size of a metric that has never changed: the step that a change would have
_TIE_SHARE = 1e-6  # of a step, by which a drawn tie is worse, so that rounding makes no improvement of it


def drawn_noise(residuals: Floats, weights: Floats, sigmas: Floats, length: int, rng: np.random.Generator) -> Floats:
    """Return noise of ``length`` points for each row of ``residuals``.

    Blocks of successive residuals are drawn by ``weights``; a few are drawn from normal noise of a row's ``sigmas``.
    """
    rows, count = residuals.shape
    blocks = -(-length // _BLOCK_POINTS)
    normal = rng.standard_normal((rows, blocks * _BLOCK_POINTS)) * sigmas[:, None]
    if not count:
        return np.asarray(normal[:, :length])
    begins = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random((rows, blocks))).clip(0, count - 1)
    places = (begins[:, :, None] + np.arange(_BLOCK_POINTS)) % count
    found = np.take_along_axis(residuals, places.reshape(rows, -1), axis=1)
    made_up = rng.random((rows, blocks)) < _PRIOR_RESIDUALS / (_PRIOR_RESIDUALS + weights.sum())
    return np.asarray(np.where(np.repeat(made_up, _BLOCK_POINTS, axis=1), normal, found)[:, :length])


class Lattice(NamedTuple):
    """The values that a discrete metric takes; a ``step`` of 0: any value."""

    origin: float
    step: float

    def nearest(self, values: Floats) -> Floats:
        """Return ``values`` (smaller is better) at those that the metric takes."""
        if not self.step:
            return values
        return np.asarray(self.origin + (np.round((values - self.origin) / self.step) + _TIE_SHARE) * self.step)


def lattice_of(values: Floats) -> Lattice:
    """Return the lattice of the ``values`` so far.

    >>> lattice_of(np.array([0.25, 0.75, 0.75, 0.5])).step
    0.25
    >>> lattice_of(np.array([0.31, 0.7071, 0.5, 0.618])).step
    0.0
    """
    values = values[np.isfinite(values)]
    if len(values) < _MIN_VALUES:
        return Lattice(0.0, 0.0)
    gaps = np.diff(np.unique(values))
    size = float(np.abs(values).max())
    gaps = gaps[gaps > 1e-6 * size]
    if not len(gaps):
        return Lattice(float(values[-1]), _CONSTANT_STEP_SHARE * (size or 1.0))
    if len(gaps) < _MIN_GAPS and len(gaps) + 1 == len(values):  # no value came twice
        return Lattice(0.0, 0.0)
    least = float(gaps.min())
    for parts in range(1, _MAX_STEP_PARTS + 1):
        places = (values - values[-1]) * parts / least
        if np.abs(places - np.round(places)).max() < _MAX_LATTICE_ERROR * max(1.0, np.abs(places).max() / 50):
            return Lattice(float(values[-1]), least / parts)
    return Lattice(0.0, 0.0)
