"""Forecast the stop with one inverse power law, the former method.

It is fitted to the errors, and its future is simulated. Source: Dong & Luo, progress estimation for deep learning with
early stopping (2022), as reconstructed here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress.forecast.curve_ensemble import HORIZON_POINTS, Stops
from looptap.training.progress.forecast.observations import Observations
from looptap.training.progress.forecast.stopping_rules import Floats

PATH_COUNT = 300
_POWERS = np.linspace(0.05, 3.0, 60)
_MIN_OBSERVATIONS = 4  # observations from which the curve is fitted
_ITERATIONS = 3
_MIN_NOISE_VARIANCE = 1e-8


def forecast(
    seen: Observations,
    done: int,
    stops: Callable[[Floats], NDArray[np.int64]],
    last: int,
    *,
    rng: np.random.Generator,
) -> Stops:
    """Forecast where a run stops: one draw, the mean over 300 simulated futures.

    It is ``last`` before the 4th observation. The arguments are those of `ensemble.forecast`.
    """
    if done >= last or len(seen.x) < _MIN_OBSERVATIONS:
        return Stops(np.full(1, float(last)))
    a, b, c, variance = fit(seen)
    x = np.arange(done + 1, min(last, done + HORIZON_POINTS) + 1, dtype=float)
    paths = c + a * x**-b + np.sqrt(variance) * rng.standard_normal((PATH_COUNT, len(x)))
    found = stops(np.asarray(paths))
    return Stops(np.full(1, float(np.where(found == 0, last, found).mean())))


def fit(seen: Observations) -> tuple[float, float, float, float]:
    """Return a, b, c and sigma^2 of ``c + a x^-b + N(0, sigma^2 + v)``; a, c >= 0."""
    basis = seen.x[None, :] ** -_POWERS[:, None]
    variance = max(float(np.var(seen.y)), _MIN_NOISE_VARIANCE)
    a = b = c = 0.0
    for _ in range(_ITERATIONS):
        weight = 1 / (variance + seen.v)
        total, first, second = weight.sum(), basis @ weight, (basis**2) @ weight
        level, both = float(weight @ seen.y), basis @ (weight * seen.y)
        determinant = total * second - first**2
        slope = np.where(determinant > 1e-12, (total * both - first * level) / np.maximum(determinant, 1e-12), 0.0)
        rise = np.maximum(slope, 0.0)
        base = (level - rise * first) / total
        rise = np.where(base < 0, np.maximum(both / second, 0.0), rise)
        base = np.maximum(np.where(base < 0, 0.0, base), 0.0)
        residuals = seen.y[None, :] - base[:, None] - rise[:, None] * basis
        best = int(np.argmin((weight * residuals**2).sum(1)))
        a, b, c = float(rise[best]), float(_POWERS[best]), float(base[best])
        variance = max(float(np.mean(residuals[best] ** 2 - seen.v)), _MIN_NOISE_VARIANCE)
    return a, b, c, variance
