"""Forecast where a run stops: when a forecast is made, and how it is shown.

A forecast takes milliseconds, so it is made after a validation, and asking reads the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress.forecast import curve_ensemble
from looptap.training.progress.forecast.earlier_runs import stops_of, weights_of
from looptap.training.progress.forecast.future_noise import lattice_of
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.observations import Observations
from looptap.training.progress.forecast.stopping_rules import Floats, FollowedRun, Never, Paper, Patience, StopRule

_MAX_KEPT_SHARE = 0.3  # of a new median, within which the one before is kept while it is in the new band
_MIN_RATE_CHANGE_FACTOR = 1.4  # of the learning rate, either way, that is named as a reason
_LEAP_SHARE = 0.1  # of the run: a stop that moves by more has a reason
_MAX_MOVE_SHARE = 0.05  # of the run, by which the stop moves at most without a reason, but for once
_SCALE_FACTOR = 30.0  # times the least improvement that counts: a typical first error
_MAX_CERTAIN_POINTS = 300  # validations ahead in which a stop is looked for if nothing improves
_QUIETLY = np.errstate(all="ignore")  # whatever the host's process does about floating-point errors


class StopAt(NamedTuple):
    """The validation after which training stops: the median, and the same band."""

    median: float
    low: float
    high: float

    def within(self, last: float, least: float, cut: float) -> StopAt:
        """Return this for a run that ends at ``last``, but not before ``least``.

        What was at ``cut``, where it ended before, ends there.

        >>> StopAt(20.0, 12.0, 40.0).within(50.0, 15.0, 40.0)
        StopAt(median=20.0, low=15.0, high=50.0)
        """
        return StopAt(*(max(min(last if place >= cut else place, last), min(least, last)) for place in self))


class StopForecast:
    """The forecast of the raw point at which a ``rule`` stops a run.

    ``rates`` are the learning rates before each raw point, ``earlier`` what earlier runs have validated.
    """

    def __init__(
        self,
        rule: StopRule,
        metric: Metric,
        *,
        rates: Floats | None = None,
        earlier: Sequence[Floats] = (),
        seed: int = 0,
    ) -> None:
        self.rule, self.metric, self.rates, self.earlier = rule, metric, rates, earlier
        self.seen: list[tuple[float, float, float]] = []
        """For each validation: position in raw points, value, and known variance."""
        self.values: list[float] = []
        """The results of the validations at raw points."""
        self.unless_better: int | None = None
        """The raw point at which the rule stops the run if no validation improves; None: it does not."""
        self.fired = 0
        """The raw point at which the rule has stopped the run; 0: it has not."""
        self.given_up = False
        """True if no stop is forecast: the loop trained on after the rule fired, or the rule takes no futures."""
        self.reason = ""
        """Why the last forecast is far from the one before; empty if it is not."""
        self._seed = seed  # of each forecast, so that two differ only by what is new
        self._shown: StopAt | None = None
        self._known = 0  # raw points when it was made
        self._leapt = False  # without a reason
        self._followed: FollowedRun | None = None

    @property
    def nothing_to_guess(self) -> bool:
        """True if no rule stops the run, as far as can be known."""
        return self.given_up or isinstance(self.rule, Never)

    def see(self, x: float, value: float, variance: float) -> None:
        """Record a validation's ``value`` at ``x`` raw points."""
        self.seen.append((x, value, variance))
        if x == int(x):
            self.values.append(value)

    def forget(self) -> None:
        """Drop the validations so far."""
        self.seen.clear()
        self.values.clear()
        self._followed = None

    @_QUIETLY
    def decide(self, rule: StopRule, last: int) -> bool:
        """Return whether ``rule`` stops the run at the last validation, and remember it.

        When it stops the run of ``last`` raw points if none improves is certain, and known before the next forecast.
        """
        run = self._follow(self.metric.comparing(rule))
        stop = run.stop == len(run.history)
        self.fired = run.stop if stop and not self.given_up else 0
        if self.fired:
            self.unless_better, self.reason = None, ""
        elif not self.nothing_to_guess:
            self.unless_better = self._unless_better(run, last)
        return stop

    def _follow(self, rule: StopRule) -> FollowedRun:
        """Return the run as ``rule`` has followed it, up to the last validation."""
        if self._followed is None or self._followed.rule != rule:
            self._followed = FollowedRun(rule)
        new = self.values[len(self._followed.history) :]
        for error in self.metric.compared(np.array(new, float)).tolist():
            self._followed.see(error)
        return self._followed

    def earliest(self, done: int) -> int:
        """Return the first raw point after ``done`` at which the rule may stop the run."""
        by_patience = isinstance(self.rule, Paper) or (
            isinstance(self.rule, Patience) and self.rule.good is None and self.rule.diverged is None
        )
        return max(done + 1, (self.unless_better or 0) if by_patience else 0)

    @_QUIETLY
    def make(self, last: int) -> StopAt:
        """Forecast the stop of a run with at most ``last`` raw points."""
        self.unless_better = None
        if self.nothing_to_guess:
            return StopAt(float(last), float(last), float(last))
        metric, raw, rng = self.metric, np.array(self.values, float), np.random.default_rng(self._seed)
        run, compared = self._follow(metric.comparing(self.rule)), metric.compared(raw)
        known, values = self.observations()
        lattice = lattice_of(compared)

        def stops(errors: Floats) -> NDArray[np.int64]:
            return run.rule.futures(run, lattice.nearest(metric.back(errors, values)))

        self.unless_better = self._unless_better(run, last)
        found = curve_ensemble.forecast(known, len(raw), stops, last, self.rates, scale=self._scale(), rng=rng)
        if lost := _lost(raw):
            gone = rng.random(len(found.draws)) < (lost + 1) / (lost + 2)  # for good
            found = replace(found, draws=np.where(gone, float(self.unless_better or last), found.draws))
        if self.earlier and (others := stops_of(self.earlier, run.rule, metric, last)):
            found = replace(found, weights=weights_of(others, found.draws))
        return self._calm(StopAt(found.median, *found.band()), compared)

    def observations(self) -> tuple[Observations, Floats]:
        """Return what a curve is fitted to, and the values: those that are numbers.

        A rule sees the others too.
        """
        seen = np.array(self.seen, float).reshape(-1, 3)
        x, values, variances = seen[np.isfinite(seen[:, 1])].T
        return Observations(x, self.metric.errors(values), variances), values

    def _calm(self, found: StopAt, compared: Floats) -> StopAt:
        """Keep the median that was shown, if still likely; name the reason of a leap."""
        before, known = self._shown, self._known
        self._known, self.reason = len(compared), ""
        if before is not None:
            certain = found.median == self.unless_better  # more likely than any improvement
            near = abs(found.median - before.median) <= _MAX_KEPT_SHARE * found.median
            if near and found.low <= before.median <= found.high and not certain:
                found = found._replace(median=before.median)
            found = self._moved(found, before.median, self._why(compared, known, certain), len(compared))
        self._shown = found
        return found

    def _moved(self, found: StopAt, before: float, why: str, done: int) -> StopAt:
        """Return ``found``, but not far from ``before`` if there is no reason."""
        move, run = found.median - before, max(found.low, done + 1.0)
        if abs(move) > _LEAP_SHARE * run and why:
            self.reason = why
        elif abs(move) > _MAX_MOVE_SHARE * run and not why:
            if self._leapt:
                near = max(before + math.copysign(_MAX_MOVE_SHARE * run, move), done + 1.0)
                return StopAt(near, min(found.low, near), max(found.high, near))
            self._leapt = True
        return found

    def _why(self, compared: Floats, known: int, certain: bool) -> str:
        done, rates = len(compared), self.rates
        best = int(np.argmin(np.where(np.isnan(compared), np.inf, compared))) + 1 if done else 0
        if best > known and (best == done or not certain):
            return f"validation {best} was the best so far"
        if rates is not None and known < min(done + 1, len(rates)):
            change = rates[min(done, len(rates) - 1)] / max(float(rates[max(known - 1, 0)]), 1e-300)
            if not 1 / _MIN_RATE_CHANGE_FACTOR < change < _MIN_RATE_CHANGE_FACTOR:
                return "the learning rate changed"
        return f"the rule stops the run after validation {self.unless_better} unless one improves" if certain else ""

    def restart(self) -> None:
        """Show the next forecast as it is: a setting has changed."""
        self._shown = None

    def _scale(self) -> float:
        """Return a typical first error, for which a rule's ``min_delta`` makes sense."""
        delta = getattr(self.rule, "min_delta", 0.0) if self.metric.kind in ("loss", "max") else 0.0
        return max(self.metric.scale, _SCALE_FACTOR * delta)

    @staticmethod
    def _unless_better(run: FollowedRun, last: int) -> int | None:
        ahead = min(last - len(run.history), _MAX_CERTAIN_POINTS)
        if not run.history or ahead < 1:
            return None
        return int(run.rule.futures(run, np.full((1, ahead), run.worst))[0]) or None


def _lost(raw: Floats) -> int:
    """Return how many validations, up to the last, have not yielded a number."""
    finite = np.flatnonzero(np.isfinite(raw))
    return len(raw) - (int(finite[-1]) + 1 if len(finite) else 0)
