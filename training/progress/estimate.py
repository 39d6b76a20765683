"""Estimate the remaining time: remaining work by speed, with uncertainty."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress.clock_ledger import OTHER, SHORT_WINDOW_SECONDS, TRAIN, VALIDATION, Ledger
from looptap.training.progress.forecast import curve_ensemble, power_law
from looptap.training.progress.forecast.curve_ensemble import Earlier, Observations, Stops
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stopping_rules import Floats, Never, StopRule
from looptap.training.progress.loader_size import MOVED_SHARE
from looptap.training.progress.plan import TrainingPlan
from looptap.training.progress.speed import SpeedWindow, units
from looptap.training.saved_state import require_state

PRIOR_SPEED_RATIO = 3.0
"""Assumed speed of validation relative to training, before the first validation."""
_OUTLIVED_SHARE = 0.25
_STDEVS_FOR_80_PERCENT = 1.28  # standard deviations on either side of the 80 % band
_MIN_BAND_SHARE = 0.02  # minimum of the band on either side, as a share of the remaining time


class Remaining(NamedTuple):
    """Seconds until training ends: the median, and a band with about 80 % of runs."""

    median: float
    low: float
    high: float


class StopAt(NamedTuple):
    """The validation after which training stops: the median, and the same band."""

    median: float
    low: float
    high: float


class Estimate(NamedTuple):
    """The remaining seconds (median, low, high) and where a run stops, in raw points.

    ``train_cost`` and ``validation_cost`` are remaining instances, the speeds are instances per second, or None before
    the first. The band contains the truth in about 80 % of runs.
    """

    remaining: float
    low: float
    high: float
    stop: float
    stop_low: float
    stop_high: float
    train_cost: float
    validation_cost: float
    train_speed: float | None
    validation_speed: float | None

    def at_most(self, seconds: float) -> Estimate:
        """Return this estimate for a run that ends after ``seconds`` at the latest."""
        return self._replace(
            remaining=min(seconds, self.remaining), low=min(seconds, self.low), high=min(seconds, self.high)
        )


class Estimator:
    """Estimator of where a run stops, and when, from the validations so far.

    ``forecast`` is "ensemble", "former" or "none" (no early stopping), ``speed`` is "ledger", "paper" or "former".
    """

    def __init__(
        self,
        plan: TrainingPlan,
        rule: StopRule,
        ledger: Ledger,
        *,
        forecast: str = "ensemble",
        speed: str = "ledger",
        rates: Floats | None = None,
        earlier: Sequence[Earlier] = (),
        seed: int = 0,
        metric: Metric | None = None,
        skip: int = 1,
    ) -> None:
        if forecast not in ("ensemble", "former", "none"):
            raise ValueError(f"forecast={forecast!r} must be 'ensemble', 'former' or 'none'.")
        if speed not in ("ledger", "paper", "former"):
            raise ValueError(f"speed={speed!r} must be 'ledger', 'paper' or 'former'.")
        self.plan, self.rule, self.ledger, self.rates, self.earlier = plan, rule, ledger, rates, earlier
        self.forecast, self.speed = forecast, speed
        self.window = SpeedWindow(skip)
        self.metric = metric or Metric()
        self.seen: list[tuple[float, float, float]] = []
        """For each validation: position in raw points, value, and known variance."""
        self.cycles = 0
        """Raw points of this process."""
        self.made = self.took = 0.0
        """When the last forecast was made, in seconds since the ledger was opened, and how long it took."""
        self.ratio, self.rest = PRIOR_SPEED_RATIO, 0.0
        """Until measured in this process: speed of validation relative to training, other time per second of work."""
        self._rng = np.random.default_rng(seed)
        self.forecasts = 0
        """How many were made."""
        self._stops: Stops | None = None
        self._stale, self._last = False, 0
        self._recent: list[tuple[float, float, float]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return validations, position and shares of the time as plain data."""
        plan = self.plan
        return {
            "done": plan.done, "since": plan.since, "checked": plan.checked, "trained": self.ledger.counts[TRAIN],
            "seen": [list(one) for one in self.seen], "shares": list(self.shares()),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`; speeds are measured again."""
        require_state(state, self.state_dict(), "an Estimator")
        self.plan.done, self.plan.since, self.plan.checked = state["done"], state["since"], state["checked"]
        self.seen = [(float(x), float(value), float(variance)) for x, value, variance in state["seen"]]
        self.ratio, self.rest = state["shares"]
        self.ledger.resume(state["trained"])
        self.changed()

    # ------------------------------------------------------------ events

    def phase(self, phase: int) -> None:
        """Book time to ``phase`` from now on: TRAIN, VALIDATION or OTHER."""
        self.ledger.phase(phase)
        self.window.phase(phase)

    def count(self, phase: int, instances: float) -> None:
        """Count a batch."""
        self.ledger.count(instances)
        if self.speed == "paper":
            self.window.count(self.ledger.now, instances)
        if phase == TRAIN:
            self.plan.trained(instances)
        else:
            self.plan.checked += instances

    def observed(self, value: float, *, x: float | None = None, variance: float = 0.0) -> None:
        """Record a validation's ``value``: a raw point, or one inserted at ``x``.

        An inserted one has a known ``variance``.
        """
        if x is None:
            self.plan.reached()
            self.cycles += 1
            x = float(self.plan.done)
        self.seen.append((x, value, variance))
        self._stale = True

    @property
    def values(self) -> list[float]:
        """The results of the validations at raw points."""
        return [value for x, value, _ in self.seen if x == int(x)]

    def changed(self) -> None:
        """Drop the forecast: the plan, the rule or the learning rates have changed."""
        self._stops = None

    # ------------------------------------------------------------ estimates

    def stops(self, pace: float = 0.0) -> Stops:
        """Return draws of where the run stops, cached until there is new information.

        New are a validation, or a plan that is longer by more than 5 % and by a whole raw point. Draws are made at the
        earliest after ``pace`` times as long as the last took, four times sooner if the run has outlived most of them.
        Until then the draws that are not over yet are kept, and those that nothing stopped end with the plan: with a
        shorter plan that is exact.
        """
        last, found = self.plan.last, self._stops
        if found is not None and (self._stale or self._longer(found, last)):
            wait = pace * self.took * (_OUTLIVED_SHARE if (found.draws <= self.plan.done).mean() > 0.5 else 1.0)
            found = found if self.ledger.elapsed() - self.made < wait else None
        if found is None:
            begun = time.perf_counter()
            self._stops = found = self._forecast()
            self._stale, self._last, self.forecasts = False, last, self.forecasts + 1
            self.made, self.took = self.ledger.elapsed(), time.perf_counter() - begun
        if not self._stale and last == self._last:
            return found
        least = min(self.plan.done + 1, last) if self._stale else 0
        return Stops(np.clip(np.where(found.draws >= self._last, last, found.draws), least, last))

    def _longer(self, found: Stops, last: int) -> bool:
        """Return True if draws cut off by the end of the plan could lie far beyond it.

        That is after the plan became longer.
        """
        cut = len(found.draws) > 1 and bool((found.draws >= self._last).any())  # one draw: there is nothing to guess
        return cut and last >= self._last + max(1, MOVED_SHARE * self._last)

    def _forecast(self) -> Stops:
        last, metric = self.plan.last, self.metric
        x, values, variances = np.array(self.seen, float).reshape(-1, 3).T
        if self.forecast == "none" or isinstance(self.rule, Never) or not np.isfinite(values).all():
            return Stops(np.full(1, float(last)))
        raw = values[x == np.floor(x)]
        seen, compared = Observations(x, metric.errors(values), variances), metric.compared(raw).tolist()

        def stops(errors: Floats) -> NDArray[np.int64]:
            return self.rule.stops_after(compared, metric.back(errors, values))

        if self.forecast == "former":
            return power_law.forecast(seen, len(raw), stops, last, rng=self._rng)
        return curve_ensemble.forecast(seen, len(raw), stops, last, self.rates, rng=self._rng, earlier=self.earlier)

    def estimate(self, pace: float = 0.0) -> Estimate | None:
        """Estimate what remains, with `stops` at ``pace``; None before the first batch."""
        self.ledger.settle()
        stops = self.stops(pace)
        centre = np.array([stops.median, *stops.band()])
        train, validation = self.plan.remaining(centre)
        if self.speed == "former":
            seconds, speeds = self._by_units(train, validation)
        elif self.speed == "paper":
            seconds, speeds = self._by_window(train, validation)
        else:
            seconds, speeds = self._by_ledger(centre, train, validation)
        if seconds is None:
            return None
        rest, low, high = map(float, seconds)
        stop, first, latest = map(float, centre)
        return Estimate(rest, low, high, stop, first, latest, float(train[0]), float(validation[0]), *speeds)

    def _by_units(self, train: Floats, validation: Floats) -> tuple[Floats | None, tuple[float | None, float | None]]:
        now = (self.ledger.now, self.ledger.counts[TRAIN], self.ledger.counts[VALIDATION])
        self._recent.append(now)
        while len(self._recent) > 2 and self._recent[1][0] <= now[0] - 10.0:
            self._recent.pop(0)
        then = self._recent[0]
        if now[0] <= then[0]:
            return None, (None, None)
        speed = units(now[1] - then[1], now[2] - then[2], now[0] - then[0])
        if not speed:
            return None, (None, None)
        return (train + validation / 3) / speed, (speed, None)

    def _by_window(self, train: Floats, validation: Floats) -> tuple[Floats | None, tuple[float | None, float | None]]:
        fast, checked = self.window.speeds
        if fast is None:
            return None, (None, checked)
        return train / fast + (validation / (checked or PRIOR_SPEED_RATIO * fast)), (fast, checked)

    def _by_ledger(
        self, stop: Floats, train: Floats, validation: Floats
    ) -> tuple[Floats | None, tuple[float | None, float | None]]:
        ledger = self.ledger
        near = self._seconds(stop, train, validation, SHORT_WINDOW_SECONDS)
        if near is None:
            return None, (None, None)
        window = max(SHORT_WINDOW_SECONDS, float(near[0]))
        far = self._seconds(stop, train, validation, window)
        assert far is not None
        both = np.sqrt(near * far)
        spread = np.abs(np.log(np.maximum(near, 1e-9) / np.maximum(far, 1e-9))) / 2 + _MIN_BAND_SHARE
        spread += _STDEVS_FOR_80_PERCENT * ledger.unsure(window)
        seconds = np.array([both[0], both[1] * np.exp(-spread[1]), both[2] * np.exp(spread[2])])
        return seconds, (ledger.rate(TRAIN, SHORT_WINDOW_SECONDS), ledger.rate(VALIDATION, SHORT_WINDOW_SECONDS))

    def _seconds(self, stop: Floats, train: Floats, validation: Floats, window: float) -> Floats | None:
        ledger = self.ledger
        cycle = (ledger.seconds[0] + ledger.seconds[1] + ledger.seconds[2]) / max(1, self.cycles)
        window = max(window, cycle) if self.cycles else window
        fast = ledger.rate(TRAIN, window)
        if fast is None:
            return None
        checked = ledger.rate(VALIDATION, window) or self.ratio * fast
        work = train / fast + validation / checked
        if not self.cycles:
            return np.asarray(work * (1 + self.rest))
        other = ledger.seconds[OTHER] / self.cycles
        return np.asarray(work + other * np.maximum(0.0, stop - self.plan.done - 1))

    def shares(self) -> tuple[float, float]:
        """Return `ratio` and `rest`, which survive a restart better than speeds do."""
        fast, checked = (self.ledger.rate(phase, math.inf) for phase in (TRAIN, VALIDATION))
        train, validation, other = self.ledger.seconds
        whole = self.cycles and train + validation
        return checked / fast if fast and checked else self.ratio, other / whole if whole else self.rest
