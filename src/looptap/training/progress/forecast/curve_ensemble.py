"""Forecast the stop with a Bayesian ensemble of learning curves.

A curve is ``y(x) = c + a phi(u(x)) + t tail(u(x)) - sum_m d_m h_m(x) + noise``: a shape ``phi`` that falls from 1 to
0, a slow or rising tail, and a step for each drop of the learning rate. ``x`` counts raw points of validation; ``u``
is x, or the integral of the learning rate. For each shape, tail, u and level of noise the linear part has a closed
form, evidence included. Paths are drawn from it. It extends the method of Dong & Luo; the ensemble is our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress.forecast.future_noise import drawn_noise
from looptap.training.progress.forecast.observations import MergedObservations, Observations, lowest, merged
from looptap.training.progress.forecast.stopping_rules import Floats

DRAW_COUNT = 400
HORIZON_POINTS = 500
"""Raw points that are simulated ahead; a run that has not stopped by then is taken to reach the last."""
_FIRST_POINTS = 120  # of these, simulated first
_OVERSAMPLING_FACTOR = 4  # draws with a negative coefficient are rejected
_POWERS = [(x0, b) for x0 in (0.3, 2.0) for b in (0.3, 0.6, 1.0, 1.7)]
_POWER_LAW_PRIOR = 0.45  # the prior of all power laws together
_EXPONENTIALS = (  # beta, how many time constants, their prior together; with beta above 1 a fall begins late
    (1.0, 5, 0.15),
    (0.5, 3, 0.05),
    (1.4, 5, 0.15),
    (1.9, 5, 0.15),
    (2.5, 5, 0.1),
)
_MIN_TIME_CONSTANT_POINTS = 3.0  # points: the shortest time constant of an exponential
_SIGMAS = np.geomspace(0.00005, 0.3, 9)
_SLOW_TAILS = ((None, 0.45), (0.08, 0.25 / 3), (0.25, 0.25 / 3), (0.8, 0.25 / 3))
_RISES, _RISES_PRIOR = (10.0, 100.0), 0.3  # points in which over-fitting may add a first error; the prior
_FLAT_PRIOR = 0.1  # of a curve that never learns anything
_MEANS = np.array([0.25, 0.65, 0.12])  # of c, a, t, in units of the first error
_SPREADS = np.array([0.30, 0.45, 0.20])
_DROP_MEAN_AND_SPREAD = (0.02, 0.06)  # mean and spread of d
_RATE_MEAN_AND_SPREAD = (0.05, 0.08)  # the same of what the largest learning rate adds to the error
_NOISE_ERROR_POWER = 1.5  # power of the error by which the variance of noise falls
_DROP_EFFECT_POINTS = 1.0  # points within which a drop of the learning rate takes effect
_AGE_DISCOUNT, _MIN_WEIGHT = 1.0, 0.01
_LOGISTIC_FACTOR = 1.702  # of a number of deviations, at which the logistic function is about the normal distribution
_EVIDENCE_POWER = 0.7  # power of the evidence, since real curves match none of these exactly
_BAND_QUANTILES = (0.1, 0.9)  # of the draws, for a band of 80%
_SURPRISE_SHARE, _SURPRISE_FACTOR = 0.008, 0.12  # drops that are not known ahead, and the mean of their logarithms
_MAX_RATES_SHARE = 0.5  # of the draws: that the learning rates matter is a hypothesis, whatever its evidence
_RATES_OBSERVATIONS = 4.0  # validations after which it may have half of that; before the first, nothing speaks for it
_SHAPE_ERROR_SHARE = 0.05  # of how far an error is from the last ones: what a curve's shape may miss there
_RECENT_POINTS = 3  # whose mean these last ones are
_MAX_RATE_DROPS = 8  # drops of the learning rate with their own coefficient


@dataclass(frozen=True)
class Stops:
    """Draws of the raw point at which training stops, at most the last."""

    draws: Floats
    weights: Floats | None = None
    """Of the draws; None: all the same."""

    @property
    def median(self) -> float:
        """The median of the draws."""
        return self._quantiles(0.5)[0]

    def band(self) -> tuple[float, float]:
        """Return the quantiles between which about 80% of runs stop."""
        low, high = self._quantiles(*_BAND_QUANTILES)
        return low, high

    def _quantiles(self, *shares: float) -> list[float]:
        if self.weights is None:
            return [float(one) for one in np.quantile(self.draws, shares, method="closest_observation")]
        order = np.argsort(self.draws)
        reached = np.cumsum(self.weights[order])
        places = np.searchsorted(reached, np.array(shares) * reached[-1]).clip(0, len(order) - 1)
        return [float(one) for one in self.draws[order][places]]


def forecast(
    seen: Observations,
    done: int,
    stops: Callable[[Floats], NDArray[np.int64]],
    last: int,
    rates: Floats | None = None,
    *,
    scale: float = 1.0,
    rng: np.random.Generator,
) -> Stops:
    """Draw where a run stops, given ``seen`` and ``done`` raw points.

    ``stops`` returns where each row of future errors, at raw points done + 1, ..., stops (0: nowhere). ``last`` is the
    largest raw point, ``rates`` the mean learning rate before each raw point 1..last, if known. ``scale`` is a typical
    first error, used before there is one. Works without observations.
    """
    if done >= last:
        return Stops(np.full(1, float(last)))
    unit = float(seen.y[0]) if len(seen.y) and seen.y[0] > 0 else scale
    few = merged(seen)
    models = [_Curves(last, known, lowest(few)) for known in _hypotheses(rates)]
    posteriors = [model.posterior(few, unit) for model in models]
    count = _count_of_last([posterior.log_evidence for posterior in posteriors], len(seen.x))
    return Stops(
        np.concatenate(
            [
                _ends(model, posterior, few, unit, done, stops, drawn, rng)
                for model, posterior, drawn in zip(models, posteriors, (DRAW_COUNT - count, count), strict=False)
                if drawn
            ]
        )
    )


def _hypotheses(rates: Floats | None) -> tuple[Floats | None, ...]:
    """Return what curves may depend on: nothing, and given rates that change."""
    change = rates is not None and len(rates) > 0 and float(np.ptp(rates)) > 0
    return (None, rates) if change else (None,)


def _count_of_last(logs: list[float], observed: int) -> int:
    """Return how many draws are of the second hypothesis, by log evidence; or 0."""
    if len(logs) < 2:
        return 0
    odds = math.exp(min(max(logs[1] - logs[0], -50.0), 50.0))
    most = _MAX_RATES_SHARE * observed / (observed + _RATES_OBSERVATIONS)
    return round(DRAW_COUNT * min(most, odds / (1 + odds)))


def _ends(
    curves: _Curves,
    posterior: _Posterior,
    seen: MergedObservations,
    unit: float,
    done: int,
    stops: Callable[[Floats], NDArray[np.int64]],
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Return where ``count`` drawn futures after ``done`` raw points stop."""
    chosen, linear = curves.drawn(posterior, count, rng)
    cells, levels = np.divmod(chosen, len(_SIGMAS))
    sigmas = _SIGMAS[levels]
    residuals, shares = curves.residuals(seen, unit, cells, linear, sigmas)
    length = min(curves.last - done, HORIZON_POINTS)
    noise = drawn_noise(residuals, shares, sigmas, length, rng)
    luck = _luck(len(cells), length, rng)
    paths = np.empty((len(cells), 0))
    found = np.zeros(len(cells), np.int64)
    begun, place = 0, np.arange(len(cells))
    for until in (_FIRST_POINTS, HORIZON_POINTS):  # most stop soon
        place = np.flatnonzero(found == 0)
        future = np.arange(begun, min(length, until))
        if not len(place) or not len(future):
            break
        x: Floats = done + 1.0 + future.astype(float)
        ahead = curves.paths(x, cells[place], linear[place])
        ahead *= luck[place[:, None], future]
        ahead += noise[place[:, None], future] * np.sqrt(_noise_level(ahead, curves.rate(x)))
        paths = ahead * unit if not begun else np.concatenate([paths[place], ahead * unit], axis=1)
        found[place] = stops(paths)
        begun = until
    return np.where(found == 0, curves.last, found).astype(float)


def _luck(rows: int, length: int, rng: np.random.Generator) -> Floats:
    """Return factors of errors to come, which now and then drop by surprise."""
    sizes = rng.exponential(_SURPRISE_FACTOR, (rows, length))
    sizes[rng.random((rows, length)) >= _SURPRISE_SHARE] = 0.0
    return np.asarray(np.exp(-np.cumsum(sizes, axis=1)))


def _noise_level(errors: Floats, rates: Floats) -> Floats:
    """Return the variance of noise at ``errors`` and ``rates``, relative to 1."""
    return np.asarray(rates * np.clip(errors, 0.01, 1.5) ** _NOISE_ERROR_POWER)


def _misfit(errors: Floats) -> Floats:
    """Return the variance by which the shape of a curve misses ``errors``.

    It is not noise: no real curve is exactly one of the ensemble, and the further an error is from the last ones, the
    more a curve that is right from now on may miss it.
    """
    return np.asarray((_SHAPE_ERROR_SHARE * (errors - errors[-_RECENT_POINTS:].mean())) ** 2)


class _Posterior(NamedTuple):
    """Weight, mean and covariance root for each cell and noise level.

    And the logarithm of their evidence together.
    """

    weights: Floats
    means: Floats
    roots: Floats
    log_evidence: float


class _Curves:
    """All combinations of shape, tail and u, for a run of ``last`` raw points."""

    def __init__(self, last: int, rates: Floats | None, best: float) -> None:
        self.last = last
        self.rates = None
        if rates is not None and len(rates) and np.ptp(rates):  # beyond the known rates the last one holds
            self.rates = np.pad(np.asarray(rates, float), (0, max(0, last - len(rates))), mode="edge")
        self.relative = np.ones(last) if self.rates is None else self.rates / self.rates.max()
        self.drops = self._dropped()
        self.extra = 3 + (self.rates is not None)  # the coefficients before those of the drops
        self.cells, shares = _cells(last, best)
        self.logs = np.log(shares)
        self._shapes = list(dict.fromkeys(shape for shape, _ in self.cells))
        self._tails = list(dict.fromkeys(tail for _, tail in self.cells))
        shapes, tails = ({one: place for place, one in enumerate(some)} for some in (self._shapes, self._tails))
        self._kind = np.array([shapes[shape] for shape, _ in self.cells])
        self._slow = np.array([tails[tail] for _, tail in self.cells])

    def _dropped(self) -> Floats:
        if self.rates is None:
            return np.empty(0)
        before, after = self.rates[:-1], self.rates[1:]
        places = np.flatnonzero(after < 0.7 * before) + 1.0
        return np.asarray(places[:_MAX_RATE_DROPS], float)

    def rate(self, x: Floats) -> Floats:
        """Return the learning rate at ``x`` relative to the largest."""
        if self.rates is None:
            return np.ones_like(x)
        at = np.clip(np.ceil(x).astype(int) - 1, 0, len(self.rates) - 1)
        return np.asarray(np.clip(self.relative[at], 1e-3, 1.0))

    def integral(self, x: Floats) -> Floats:
        """Return the integral to ``x`` of the learning rate relative to the largest."""
        whole = np.concatenate([[0.0], np.cumsum(self.relative)])
        return np.asarray(np.interp(x, np.arange(len(whole)), whole))

    def designs(self, x: Floats) -> Floats:
        """Return the factors of c, a, t, d...: (cells, points, coefficients)."""
        found = np.empty((len(self.cells), len(x), self.extra + len(self.drops)))
        shapes, tails, gains = self._parts(x)
        found[:, :, 0] = 1.0
        found[:, :, 1], found[:, :, 2] = shapes[self._kind], tails[self._slow]
        found[:, :, 3:] = gains.T
        return found

    def paths(self, x: Floats, cells: NDArray[np.int64], linear: Floats) -> Floats:
        """Return noiseless curves at ``x``, one per cell: (cells, points)."""
        shapes, tails, gains = self._parts(x)
        found: Floats = shapes[self._kind[cells]]
        found *= linear[:, 1:2]
        found += linear[:, 2:3] * tails[self._slow[cells]]
        found += linear[:, :1] + linear[:, 3:] @ gains
        return found

    def residuals(
        self, seen: MergedObservations, unit: float, cells: NDArray[np.int64], linear: Floats, sigmas: Floats
    ) -> tuple[Floats, Floats]:
        """Return what each curve leaves of raw points, in units of noise; and weights."""
        raw = seen.v == 0
        x = seen.x[raw]
        if not len(x):
            return np.empty((len(cells), 0)), np.empty(0)
        y = seen.y[raw] / unit
        found = y - self.paths(x, cells, linear)
        found /= np.sqrt(_noise_level(y, self.rate(x)) / seen.merged[raw] + _misfit(y) / sigmas[:, None] ** 2)
        return found, np.maximum(x / x[-1], _MIN_WEIGHT) ** _AGE_DISCOUNT

    def _parts(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return all shapes, tails, and effects of the rate drops, each by points."""
        u = x if self.rates is None else self.integral(x)
        shapes = np.array([self._shape(shape, u) for shape in self._shapes])
        tails = np.array([self._tail(tail, x, u) for tail in self._tails])
        late = np.maximum(x - self.drops[:, None], 0.0)
        gains = np.exp(-late / _DROP_EFFECT_POINTS) - 1
        if self.rates is not None:
            gains = np.concatenate([self._smoothed_rate(x)[None, :], gains])
        return shapes, tails, np.asarray(gains)

    def _smoothed_rate(self, x: Floats) -> Floats:
        """Return the learning rate at ``x``, relative to the largest, interpolated."""
        rates = self.relative
        return np.asarray(np.interp(x, np.arange(1, len(rates) + 1), rates))

    def _shape(self, shape: tuple[str, float, float], u: Floats) -> Floats:
        kind, first, second = shape
        if kind == "flat":
            return np.zeros_like(u)
        if kind == "power":
            return np.asarray((1 + u / first) ** -second)
        return np.asarray(np.exp(-((u / second) ** first)))

    def _priors(self) -> tuple[Floats, Floats]:
        """Return means and spreads of the coefficients of each cell.

        They are in units of the first error: (cells, coefficients).
        """
        means = np.full((len(self.cells), self.extra + len(self.drops)), _DROP_MEAN_AND_SPREAD[0])
        spreads = np.full_like(means, _DROP_MEAN_AND_SPREAD[1])
        means[:, :3], spreads[:, :3] = _MEANS, _SPREADS
        means[-1, 0] = 1.0  # flat
        if self.extra > 3:
            means[:, 3], spreads[:, 3] = _RATE_MEAN_AND_SPREAD
        return means, spreads

    def _tail(self, tail: float | tuple[float, float] | None, x: Floats, u: Floats) -> Floats:
        if tail is None:
            return np.zeros_like(x)
        if isinstance(tail, tuple):  # a rise
            return np.asarray(np.maximum(0.0, x - tail[0]) / tail[1])
        return np.asarray(np.exp(-u / (tail * self.last)))

    def posterior(self, seen: MergedObservations, unit: float) -> _Posterior:
        """Return weight, mean and covariance root for each cell and noise level."""
        m0, s0 = self._priors()
        coefficients = m0.shape[1]
        if not len(seen.x):
            levels = len(_SIGMAS)
            weights = np.repeat(np.exp(self.logs), levels) / levels
            roots = np.repeat(s0[:, :, None] * np.eye(coefficients), levels, axis=0)
            return _Posterior(weights / weights.sum(), np.repeat(m0, levels, axis=0), roots, 0.0)
        p0 = 1 / s0**2
        y = seen.y / unit
        designs = self.designs(seen.x)
        level = _noise_level(y, self.rate(seen.x))
        variance = (_SIGMAS[:, None] ** 2 * level) / seen.merged + seen.v / unit / unit + _misfit(y)
        discount = np.maximum((seen.x / seen.x[-1]) ** _AGE_DISCOUNT, _MIN_WEIGHT)
        precise = discount / variance
        pairs = (designs[:, :, :, None] * designs[:, :, None, :]).transpose(1, 0, 2, 3)
        gram = np.tensordot(precise, pairs, axes=(1, 0)).transpose(1, 0, 2, 3)
        gram[..., np.arange(coefficients), np.arange(coefficients)] += p0[:, None, :]
        right = np.tensordot(precise * y, designs, axes=(1, 1)).transpose(1, 0, 2) + (p0 * m0)[:, None, :]
        roots = np.linalg.cholesky(gram)
        inverse = np.linalg.inv(roots)  # gram^-1 = inverse^T inverse
        half = np.einsum("csij,csj->csi", inverse, right)
        means = np.einsum("csji,csj->csi", inverse, half)
        logdet = 2 * np.log(np.diagonal(roots, axis1=2, axis2=3)).sum(-1)
        fit = (precise * y * y).sum(1)[None, :] + (p0 * m0 * m0).sum(1)[:, None] - (half**2).sum(-1)
        evidence = 0.5 * (np.log(p0).sum(1)[:, None] - logdet - fit)
        evidence += 0.5 * (np.log(1 / variance) * discount).sum(1)[None, :]
        spread = np.sqrt((inverse**2).sum(axis=2))  # of each coefficient, none of which is negative
        positive = -np.log1p(np.exp(np.clip(-_LOGISTIC_FACTOR * means / spread, -50, 500))).sum(-1)
        logs = (self.logs[:, None] + _EVIDENCE_POWER * evidence + positive).ravel()
        weights = np.exp(logs - logs.max())
        whole = float(weights.sum())
        roots = np.asarray(inverse.reshape(-1, coefficients, coefficients))
        return _Posterior(weights / whole, means.reshape(-1, coefficients), roots, float(logs.max()) + math.log(whole))

    def drawn(
        self, posterior: _Posterior, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], Floats]:
        """Draw ``count`` cells and non-negative coefficients."""
        weights, means, roots, _ = posterior
        chosen = rng.choice(len(weights), size=count * _OVERSAMPLING_FACTOR, p=weights)
        normal = rng.standard_normal((len(chosen), means.shape[1]))
        linear = means[chosen] + np.einsum("pji,pj->pi", roots[chosen], normal)
        order = np.argsort((linear < 0).any(axis=1), kind="stable")[:count]
        return chosen[order], np.maximum(linear[order], 0.0)


_Cell: TypeAlias = tuple[tuple[str, float, float], float | tuple[float, float] | None]
"""Shape and tail."""


@lru_cache(maxsize=4)
def _cells(last: int, best: float) -> tuple[tuple[_Cell, ...], Floats]:
    """Return all combinations for a run of ``last`` raw points, and their priors."""
    longest = max(last, _MIN_TIME_CONSTANT_POINTS)
    taus = [
        (("exp", beta, float(tau)), share / count)
        for beta, count, share in _EXPONENTIALS
        for tau in np.geomspace(_MIN_TIME_CONSTANT_POINTS, longest, count)
    ]
    shapes = [(("power", x0, b), _POWER_LAW_PRIOR / len(_POWERS)) for x0, b in _POWERS] + taus
    starts = sorted({2.0, best})
    rises = [((start, scale), _RISES_PRIOR / len(starts) / len(_RISES)) for start in starts for scale in _RISES]
    found: list[_Cell] = [(shape, tail) for tail, _ in (*_SLOW_TAILS, *rises) for shape, _ in shapes]
    priors = [share * part for _, share in (*_SLOW_TAILS, *rises) for _, part in shapes]
    found.append((("flat", 0.0, 0.0), None))
    return tuple(found), np.array([*((1 - _FLAT_PRIOR) * np.array(priors)), _FLAT_PRIOR])
