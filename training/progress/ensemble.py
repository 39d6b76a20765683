"""Where will it stop? A Bayesian ensemble of learning curves, each linear given its shape, and paths drawn from it.

A curve is ``y(x) = c + a phi(u(x)) + t tail(u(x)) - sum_m d_m h_m(x) + noise``: a shape ``phi`` that falls from 1
to 0, a slow or rising tail, and a step for each drop of the learning rate. ``x`` counts raw points of validation;
``u`` is x, or the integral of the learning rate. For each shape, tail, u and level of noise the linear part has a
closed form, evidence included. Source: METHODS of Dong & Luo extended; the ensemble is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress.rules import Floats

DRAWS = 400
_OVERSAMPLED = 4  # draws with a negative coefficient are rejected
_POWERS = [(x0, b) for x0 in (0.1, 1.0) for b in (0.3, 0.6, 1.0, 1.7)]
_SIGMAS = np.geomspace(0.004, 0.12, 9)
_TAILS = ((None, 0.45), (0.08, 0.35 / 3), (0.25, 0.35 / 3), (0.8, 0.35 / 3), ("rise", 0.2))
_MEANS = np.array([0.35, 0.55, 0.12])  # of c, a, t, in units of the first error
_SPREADS = np.array([0.30, 0.45, 0.20])
_DROP = (0.02, 0.06)  # mean and spread of d
_FADE = 0.7  # points within which a drop of the learning rate takes effect
_DISCOUNT, _LEAST = 0.75, 0.01
_MOST = 120  # observations; older ones are merged
_STEPS = 8  # drops of the learning rate that get a coefficient of their own


class Observations(NamedTuple):
    """Errors ``y`` at ``x`` (raw points, ascending, fractions at inserted ones), each of known variance ``v``."""

    x: Floats
    y: Floats
    v: Floats


@dataclass(frozen=True)
class Stops:
    """Draws of the raw point at which training stops, at most the last."""

    draws: Floats

    @property
    def median(self) -> float:
        """The estimate."""
        return float(np.median(self.draws))

    def band(self, low: float = 0.1, high: float = 0.9) -> tuple[float, float]:
        """Quantiles of the draws."""
        found = np.quantile(self.draws, [low, high])
        return float(found[0]), float(found[1])


class Prior(NamedTuple):
    """What the linear parameters c, a, t are before the first observation: means and spreads per first error."""

    means: Floats = _MEANS
    spreads: Floats = _SPREADS


def forecast(
    seen: Observations,
    done: int,
    stops: Callable[[Floats], NDArray[np.int64]],
    last: int,
    rates: Floats | None = None,
    *,
    scale: float = 1.0,
    rng: np.random.Generator,
    prior: Prior | None = None,
) -> Stops:
    """Draws of where a run stops of which ``seen`` is known, with ``done`` raw points.

    ``stops`` says where each of many rows of future errors at raw points done + 1, ... does (0: not within). ``last``
    is the largest raw point, ``rates`` the mean learning rate before each raw point 1..last, if known. ``scale`` is a
    typical first error, for use before there is one. Needs no observation.
    """
    if done >= last:
        return Stops(np.full(1, float(last)))
    unit = float(seen.y[0]) if len(seen.y) and seen.y[0] > 0 else scale
    curves = _Curves(last, rates)
    weights, means, roots = curves.posterior(_merged(seen), unit, prior or Prior())
    future = np.arange(done + 1, last + 1, dtype=float)
    chosen, linear = curves.drawn(weights, means, roots, rng)
    designs = curves.designs(future)
    cells, levels = np.divmod(chosen, len(_SIGMAS))
    paths = np.einsum("pnq,pq->pn", designs[cells], linear)
    noise = _SIGMAS[levels][:, None] * np.sqrt(curves.rate(future) * np.clip(paths, 0.01, 1.0))
    paths += noise * rng.standard_normal(paths.shape)
    found = stops(np.asarray(paths * unit))
    return Stops(np.where(found == 0, last, found).astype(float))


class _Curves:
    """All combinations of shape, tail and u, for a run of ``last`` raw points."""

    def __init__(self, last: int, rates: Floats | None) -> None:
        self.last = last
        self.rates = None if rates is None or len(rates) == 0 or np.ptp(rates) == 0 else np.asarray(rates, float)
        self.drops = self._dropped()
        taus = [*((1.0, tau) for tau in np.geomspace(0.4, max(last, 1), 8)),
                *((0.5, tau) for tau in np.geomspace(0.4, max(last, 1), 5))]  # fmt: skip
        clocks = [False] if self.rates is None else [False, True]
        self.cells: list[tuple[tuple[str, float, float], float | str | None, bool]] = []
        logs = []
        for clock in clocks:
            for tail, share in _TAILS:
                for x0, b in _POWERS:
                    self.cells.append((("power", x0, b), tail, clock))
                    logs.append(share * 0.5 / len(_POWERS) / len(clocks))
                for beta, tau in taus:
                    self.cells.append((("exp", beta, float(tau)), tail, clock))
                    logs.append(share * 0.5 / len(taus) / len(clocks))
        self.logs = np.log(logs)

    def _dropped(self) -> Floats:
        if self.rates is None:
            return np.empty(0)
        before, after = self.rates[:-1], self.rates[1:]
        places = np.flatnonzero(after < 0.7 * before) + 1.0
        return np.asarray(places[:_STEPS], float)

    def rate(self, x: Floats) -> Floats:
        """The learning rate at ``x`` over the first."""
        if self.rates is None:
            return np.ones_like(x)
        at = np.clip(np.ceil(x).astype(int) - 1, 0, len(self.rates) - 1)
        return np.asarray(np.clip(self.rates[at] / self.rates[0], 1e-3, 10.0))

    def integral(self, x: Floats) -> Floats:
        """The integral of the learning rate over the first, from 0 to ``x``."""
        assert self.rates is not None
        whole = np.concatenate([[0.0], np.cumsum(self.rates / self.rates[0])])
        return np.asarray(np.interp(x, np.arange(len(whole)), whole))

    def designs(self, x: Floats) -> Floats:
        """What multiplies c, a, t, d...: (cells, points, coefficients)."""
        found = np.zeros((len(self.cells), len(x), 3 + len(self.drops)))
        found[:, :, 0] = 1.0
        for m, place in enumerate(self.drops):
            found[:, :, 3 + m] = -np.where(x > place, 1 - np.exp(-(x - place) / _FADE), 0.0)
        clocks = {False: x, True: x if self.rates is None else self.integral(x)}
        shapes: dict[tuple[tuple[str, float, float], bool], Floats] = {}
        tails: dict[tuple[float | str | None, bool], Floats] = {}
        for index, (shape, tail, clock) in enumerate(self.cells):
            u = clocks[clock]
            if (shape, clock) not in shapes:
                kind, first, second = shape
                power = kind == "power"
                shapes[shape, clock] = (1 + u / first) ** -second if power else np.exp(-((u / second) ** first))
            if (tail, clock) not in tails:
                tails[tail, clock] = self._tail(tail, x, u)
            found[index, :, 1] = shapes[shape, clock]
            found[index, :, 2] = tails[tail, clock]
        return found

    def _tail(self, tail: float | str | None, x: Floats, u: Floats) -> Floats:
        if tail is None:
            return np.zeros_like(x)
        if isinstance(tail, str):
            return np.asarray(np.maximum(0.0, x - 2) / self.last)
        return np.asarray(np.exp(-u / (tail * self.last)))

    def posterior(self, seen: _Merged, unit: float, prior: Prior) -> tuple[Floats, Floats, Floats]:
        """The weight of each cell and level of noise, and the mean and a root of the covariance of its coefficients."""
        coefficients = 3 + len(self.drops)
        m0 = np.full(coefficients, _DROP[0])
        s0 = np.full(coefficients, _DROP[1])
        m0[:3], s0[:3] = prior.means, prior.spreads
        p0 = 1 / s0**2
        if not len(seen.x):
            count = len(self.cells) * len(_SIGMAS)
            weights = np.repeat(np.exp(self.logs), len(_SIGMAS)) / len(_SIGMAS)
            return weights, np.tile(m0, (count, 1)), np.tile(np.diag(s0), (count, 1, 1))
        y = seen.y / unit
        designs = self.designs(seen.x)
        level = self.rate(seen.x) * np.clip(y, 0.01, 1.0)
        variance = (_SIGMAS[:, None] ** 2 * level) / seen.merged + seen.v / unit**2
        discount = np.maximum((seen.x / seen.x[-1]) ** _DISCOUNT, _LEAST)
        precise = discount / variance
        pairs = (designs[:, :, :, None] * designs[:, :, None, :]).transpose(1, 0, 2, 3)
        gram = np.tensordot(precise, pairs, axes=(1, 0)).transpose(1, 0, 2, 3)
        gram[..., np.arange(coefficients), np.arange(coefficients)] += p0
        right = np.tensordot(precise * y, designs, axes=(1, 1)).transpose(1, 0, 2) + p0 * m0
        roots = np.linalg.cholesky(gram)
        inverse = np.linalg.inv(roots)  # gram^-1 = inverse^T inverse
        half = np.einsum("csij,csj->csi", inverse, right)
        means = np.einsum("csji,csj->csi", inverse, half)
        logdet = 2 * np.log(np.diagonal(roots, axis1=2, axis2=3)).sum(-1)
        fit = (precise * y * y).sum(1)[None, :] + float(p0 @ (m0 * m0)) - (half**2).sum(-1)
        evidence = 0.5 * (np.log(p0).sum() - logdet - fit) + 0.5 * (np.log(1 / variance) * discount).sum(1)[None, :]
        logs = (self.logs[:, None] + evidence).ravel()
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        return weights, means.reshape(-1, coefficients), np.asarray(inverse.reshape(-1, coefficients, coefficients))

    def drawn(
        self, weights: Floats, means: Floats, roots: Floats, rng: np.random.Generator
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], Floats]:
        """Cells and coefficients, none of them negative."""
        chosen = rng.choice(len(weights), size=DRAWS * _OVERSAMPLED, p=weights)
        normal = rng.standard_normal((len(chosen), means.shape[1]))
        linear = means[chosen] + np.einsum("pji,pj->pi", roots[chosen], normal)
        order = np.argsort((linear < 0).any(axis=1), kind="stable")[:DRAWS]
        return chosen[order], np.maximum(linear[order], 0.0)


class _Merged(NamedTuple):
    x: Floats
    y: Floats
    v: Floats
    merged: Floats


def _merged(seen: Observations) -> _Merged:
    """At most `_MOST` observations: the newest half as they are, older ones as means of neighbours."""
    count = len(seen.x)
    if count <= _MOST:
        return _Merged(seen.x, seen.y, seen.v, np.ones(count))
    recent = _MOST // 2
    edges = np.linspace(0, count - recent, _MOST - recent + 1).astype(int)
    edges = np.concatenate([edges, np.arange(count - recent + 1, count + 1)])
    sizes = np.diff(edges)
    x, y, v = (np.add.reduceat(np.asarray(column), edges[:-1]) / sizes for column in seen)
    return _Merged(x, y, v / sizes, sizes.astype(float))
