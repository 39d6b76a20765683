"""Estimate the remaining time: remaining work by speed, with uncertainty."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from looptap.training.progress.clock_ledger import OTHER, SHORT_WINDOW_SECONDS, TRAIN, VALIDATION, Ledger
from looptap.training.progress.forecast.earlier_runs import newest_curves
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.speed_trend import SpeedTrend, trend_of
from looptap.training.progress.forecast.stop_forecast import StopAt, StopForecast
from looptap.training.progress.forecast.stopping_rules import Floats, StopRule
from looptap.training.progress.plan import TrainingPlan
from looptap.training.saved_state import require_state

PRIOR_SPEED_RATIO = 3.0
"""Assumed speed of validation relative to training, before the first validation."""
_MAX_REACH = 2.0  # times the work so far: how far ahead a trend of the speed is followed
_UNKNOWN_RATIO_FACTORS = (1.0, 4.0, 1 / 3)
"""Times that ratio before it is measured: for the median, the low and the high end."""
_HASTE_SHARE = 0.1  # of the usual time between two forecasts, where the last one is about to be wrong
_NEAR_END_SHARE = 0.1  # of the run, at the end of which the rule is about to stop it
_SPEED_CHANGE_SHARE = 0.06  # of the remaining time or of the run, by which another speed moves the end
_RECENT_SHARE = 0.01  # of the run, for which a change of the speed is named: readers look that often
_STDEVS_FOR_80_PERCENT = 1.35  # standard deviations on either side of the 80% band, as found on recorded runs
_REMEASURE_FACTOR, _REMEASURE_SECONDS = 1.1, 0.5  # of training, after which noise and trend of the speed are renewed


class Remaining(NamedTuple):
    """Seconds until training ends: the median, and a band with about 80% of runs."""

    median: float
    low: float
    high: float


class Estimate(NamedTuple):
    """The remaining seconds (median, low, high) and where a run stops, in raw points.

    ``train_cost`` and ``validation_cost`` are remaining instances, the speeds are instances per second, or None before
    the first. The band contains the truth in about 80% of runs.
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
    unless_better: int | None = None
    """In how many validations the rule stops the run if none of them improves; None: it does not."""

    def after(self, seconds: float) -> Estimate:
        """Return this estimate ``seconds`` later."""
        if seconds <= 0:
            return self
        rest, low, high = self[:3]
        return Estimate(max(0.0, rest - seconds), max(0.0, low - seconds), max(0.0, high - seconds), *self[3:])

    def at_most(self, seconds: float) -> Estimate:
        """Return this estimate for a run that ends after ``seconds`` at the latest."""
        return self._replace(
            remaining=min(seconds, self.remaining), low=min(seconds, self.low), high=min(seconds, self.high)
        )


class Estimator:
    """Estimator of where a run stops, and when, from the validations so far."""

    def __init__(
        self,
        plan: TrainingPlan,
        rule: StopRule,
        ledger: Ledger,
        *,
        rates: Floats | None = None,
        earlier: Sequence[Floats] = (),
        seed: int = 0,
        metric: Metric | None = None,
    ) -> None:
        self.plan, self.ledger = plan, ledger
        self.stopping = StopForecast(rule, metric or Metric(), rates=rates, earlier=earlier, seed=seed)
        """The forecast of early stopping, with the validations so far."""
        self.cycles = 0
        """Raw points of this process."""
        self.made = self.took = 0.0
        """When the last forecast was made, in seconds since the ledger was opened, and how long it took."""
        self.ratio, self.rest = PRIOR_SPEED_RATIO, 0.0
        """Until measured in this process: speed of validation relative to training, other time per second of work."""
        self.speed_changed = False
        """True if the last minute is faster or slower than before, or the speed has just moved the end."""
        self._end = (math.nan, math.nan, 0.0)  # the stop and the end by an estimate, and when it was made
        self._changed = -math.inf  # when the speed was seen to have changed
        self.forecasts = 0
        """How many were made."""
        self._offered: list[Floats] | None = None
        self._stop: StopAt | None = None
        self.first_speed: float | None = None
        """The speed of validation that was measured ahead of training; None: it was not."""
        self._stale, self._last = False, 0
        self._trend, self._measured = SpeedTrend(), 0.0  # and after how many seconds of training it was measured

    def state_dict(self) -> dict[str, Any]:
        """Return validations, position and shares of the time as plain data."""
        plan = self.plan
        return {
            "done": plan.done,
            "since": plan.since,
            "checked": plan.checked,
            "trained": self.ledger.counts[TRAIN],
            "seen": [list(one) for one in self.stopping.seen],
            "shares": list(self.shares()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state_dict`; speeds are measured again."""
        require_state(state, self.state_dict(), "an Estimator")
        self.plan.done, self.plan.since, self.plan.checked = state["done"], state["since"], state["checked"]
        self.stopping.forget()
        for x, value, variance in state["seen"]:
            self.stopping.see(float(x), float(value), float(variance))
        self.ratio, self.rest = state["shares"]
        self.ledger.resume(state["trained"])
        self.changed()

    # ------------------------------------------------------------ events

    def phase(self, phase: int) -> None:
        """Book time to ``phase`` from now on: TRAIN, VALIDATION or OTHER."""
        self.ledger.phase(phase)

    def count(self, phase: int, instances: float) -> None:
        """Count a batch."""
        self.ledger.count(instances)
        if phase == TRAIN:
            self.plan.trained(instances)
        else:
            self.plan.checked += instances

    def check_speed(self, speed: float | None) -> None:
        """Expect validations at ``speed`` instances a second, until one is measured."""
        if speed is not None:
            self.first_speed = speed

    def observed(self, value: float, *, x: float | None = None, variance: float = 0.0) -> None:
        """Record a validation's ``value``: a raw point, or one inserted at ``x``.

        An inserted one has a known ``variance``.
        """
        if x is None:
            self.plan.reached()
            self.cycles += 1
            x = float(self.plan.done)
        self.stopping.see(x, value, variance)
        self._stale = True

    def changed(self) -> None:
        """Drop the forecast: the rule or the learning rates have changed."""
        self._stop = None
        self.stopping.restart()

    def offer(self, curves: list[Floats]) -> None:
        """Take these curves of earlier runs, unless some were given. Any thread."""
        if not self.stopping.earlier:
            self._offered = curves

    # ------------------------------------------------------------ estimates

    def due(self, pace: float) -> bool:
        """Return True if there is no forecast, or time for one with a new validation.

        That is ``pace`` times as long after the last as it took; ten times sooner if the run has outlived that, or if
        the rule is about to stop the run before it.
        """
        if (curves := self._offered) is not None:
            self._offered, self.stopping.earlier = None, newest_curves(curves)
            self.changed()
        if self.stopping.fired:
            return False
        if (stop := self._stop) is None:
            return True
        done, certain = self.plan.done, self.stopping.unless_better or math.inf
        early = certain < stop.median and certain - done <= _NEAR_END_SHARE * certain
        wait = pace * self.took * (_HASTE_SHARE if early or stop.median <= done else 1.0)
        return self._stale and self.ledger.elapsed() - self.made >= wait

    def renew(self) -> None:
        """Forecast where the run stops."""
        begun, self._last = time.perf_counter(), self.plan.last
        self._stop = self.stopping.make(self._last)
        taken = time.perf_counter() - begun if self.forecasts else 0.0  # the first one also imports and allocates
        self._stale, self.forecasts = False, self.forecasts + 1
        self.made, self.took = self.ledger.elapsed(), taken

    def follow_speed(self) -> None:
        """Measure the speed's trend and noise again after a tenth more of training."""
        trained = self.ledger.seconds[TRAIN]
        if trained > _REMEASURE_FACTOR * self._measured + _REMEASURE_SECONDS:
            self._trend, self._measured = trend_of(*self.ledger.training()), trained

    @property
    def stop_at(self) -> StopAt | None:
        """Where the run stops by the last forecast; None before the first.

        What nothing stopped ends with the plan: with a shorter one that is exact. What the rule has stopped is over.
        """
        last = self.plan.last
        if self.stopping.fired or self.stopping.nothing_to_guess:
            place = float(self.stopping.fired or last)
            return StopAt(place, place, place)
        if self._stop is None:
            return None
        return self._stop.within(last, self.stopping.earliest(self.plan.done) if self._stale else 0, self._last)

    def estimate(self) -> Estimate | None:
        """Estimate what remains by the last forecast; None before the first batch.

        That is what remained when the ledger was booked.
        """
        if self.ledger.current == OTHER:
            self.ledger.settle()
        if (stop := self.stop_at) is None:
            return None
        train, validation = (list(of) for of in zip(*map(self.plan.remaining, stop), strict=True))
        seconds, speeds = self.timed(stop, train, validation)
        if seconds is None:
            return None
        certain = self.stopping.unless_better
        certain = None if certain is None or certain > self.plan.last else certain - self.plan.done
        rest, low, high = seconds
        self._follow_end(stop.median, rest, low)
        return Estimate(rest, low, high, *stop, train[0], validation[0], *speeds, certain)

    def _follow_end(self, stop: float, rest: float, low: float) -> None:
        """Note whether the end has just moved though the stop has not."""
        elapsed, (before, then, made) = self.ledger.elapsed(), self._end
        end = elapsed + rest
        if stop == before and abs(end - then) > _SPEED_CHANGE_SHARE * (elapsed + low):
            self._changed = elapsed
        if stop != before or elapsed - made > _RECENT_SHARE * end:
            self._end = stop, end, elapsed
        self.speed_changed = elapsed - self._changed <= _RECENT_SHARE * end

    def timed(self, stop: StopAt, train: list[float], validation: list[float]) -> Timed:
        """Return the seconds that remaining instances take: median, low and high end."""
        ledger = self.ledger
        near = self._seconds(stop, train, validation, SHORT_WINDOW_SECONDS)
        if near is None:
            return None, (None, None)
        window = max(SHORT_WINDOW_SECONDS, near[0])
        far = self._seconds(stop, train, validation, window)
        assert far is not None
        noise = _STDEVS_FOR_80_PERCENT * math.hypot(ledger.unsure(window), self._trend.noise)
        median, low, high = (math.sqrt(max(a, 1e-9) * max(b, 1e-9)) for a, b in zip(near, far, strict=True))
        if abs(math.log(max(near[0], 1e-9) / max(far[0], 1e-9))) > _SPEED_CHANGE_SHARE:
            self._changed = ledger.elapsed()
        seconds = [median, low * math.exp(-noise), high * math.exp(noise)]  # the ends are often certain: the last epoch
        return seconds, (ledger.rate(TRAIN, SHORT_WINDOW_SECONDS), ledger.rate(VALIDATION, SHORT_WINDOW_SECONDS))

    def _seconds(self, stop: StopAt, train: list[float], validation: list[float], window: float) -> list[float] | None:
        ledger = self.ledger
        if self.cycles:
            window = max(window, sum(ledger.seconds) / self.cycles)
        fast = ledger.rate(TRAIN, window)
        if fast is None:
            return None
        checks = [ledger.rate(VALIDATION, window) or self.first_speed or self.ratio * fast] * 3
        if not self.cycles and not ledger.counts[VALIDATION] and not self.first_speed:
            checks = [speed * factor for speed, factor in zip(checks, _UNKNOWN_RATIO_FACTORS, strict=True)]
        behind, seen = window * fast / 2, ledger.counts[TRAIN] / 2
        work = [
            a / fast * self._trend.factor(min(behind, seen), reach - reach * reach / max(2 * a, 1e-9)) + b / checked
            for a, b, reach, checked in zip(train, validation, self._reaches(train), checks, strict=True)
        ]
        if not self.cycles:
            return [one * (1 + self.rest) for one in work]
        other, done = ledger.seconds[OTHER] / self.cycles, self.plan.done
        return [one + other * max(0.0, place - done - 1) for one, place in zip(work, stop, strict=True)]

    def most_ahead(self, seconds: float) -> float:
        """Return how much of the next ``seconds`` may be work without a count."""
        return self.ledger.most_ahead(seconds)

    def _reaches(self, train: list[float]) -> list[float]:
        """Return how far ahead a trend of the speed goes: median, low and high end."""
        median, low, high = train
        reaches = [min(median, _MAX_REACH * self.ledger.counts[TRAIN]), 0.0, high]
        return reaches if self._trend.growth >= 0 else [reaches[0], low, 0.0]

    def shares(self) -> tuple[float, float]:
        """Return `ratio` and `rest`, which survive a restart better than speeds do."""
        fast, checked = (self.ledger.rate(phase, math.inf) for phase in (TRAIN, VALIDATION))
        train, validation, other = self.ledger.seconds
        whole = self.cycles and train + validation
        return checked / fast if fast and checked else self.ratio, other / whole if whole else self.rest


Timed: TypeAlias = tuple[list[float] | None, tuple[float | None, float | None]]
"""Remaining seconds (median, low, high), and the speeds of training and validation."""
