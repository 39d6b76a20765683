"""The published methods, reconstructed from their papers, as baselines.

*former* forecasts the stop with one inverse power law that is fitted to the errors, whose future is simulated, and has
one speed of work in which an instance of validation is a third of one of training. *paper* has the same forecast, and a
speed for each phase, over a window of ten seconds. Sources: Dong & Luo, progress estimation for deep learning with
early stopping (2022), and with online data preprocessing (2024).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looptap.training.progress import Progress
from looptap.training.progress.clock_ledger import TRAIN, VALIDATION, Ledger
from looptap.training.progress.estimate import PRIOR_SPEED_RATIO, Estimate, Estimator, Timed
from looptap.training.progress.forecast.curve_ensemble import HORIZON_POINTS, Stops
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.observations import Observations
from looptap.training.progress.forecast.stop_forecast import StopAt, StopForecast
from looptap.training.progress.forecast.stopping_rules import Floats, StopRule
from looptap.training.progress.plan import TrainingPlan
from looptap.training.progress.step_counter import StepCounter

WINDOW_SECONDS = 10.0
"""K, the seconds that both methods look back."""
_PATH_COUNT = 300
_POWERS = np.linspace(0.05, 3.0, 60)
_MIN_OBSERVATIONS = 4  # observations from which the curve is fitted
_ITERATIONS = 3
_MIN_NOISE_VARIANCE = 1e-8


class PowerLawForecast(StopForecast):
    """The forecast of both methods: the mean over 300 simulated futures.

    It is the end of the plan before the 4th observation.
    """

    def decide(self, rule: StopRule, last: int) -> bool:
        """Return whether ``rule`` stops the run; no other stop is certain."""
        stop = super().decide(rule, last)
        self.unless_better = None
        return stop

    @np.errstate(all="ignore")
    def make(self, last: int) -> StopAt:
        """Forecast the stop of a run with at most ``last`` raw points."""
        if self.nothing_to_guess:
            return StopAt(float(last), float(last), float(last))
        run, rng = self._follow(self.metric.comparing(self.rule)), np.random.default_rng(self._seed)
        known, values = self.observations()

        def stops(errors: Floats) -> NDArray[np.int64]:
            return run.rule.futures(run, self.metric.back(errors, values))

        found = power_law_stops(known, len(self.values), stops, last, rng)
        return StopAt(found.median, *found.band())


class FormerEstimator(Estimator):
    """Estimator with the forecast of both methods.

    ``units`` has it take the former speed, else ours.
    """

    def __init__(
        self, plan: TrainingPlan, rule: StopRule, ledger: Ledger, *, metric: Metric | None = None, units: bool = True
    ) -> None:
        super().__init__(plan, rule, ledger, metric=metric)
        self.stopping = PowerLawForecast(rule, metric or Metric())
        self._units = units
        self._recent: list[tuple[float, float, float]] = []

    def estimate(self) -> Estimate | None:
        """Estimate what remains at this moment, not when a batch was counted last."""
        if self._units:
            self.ledger.settle()
        return super().estimate()

    def timed(self, stop: StopAt, train: list[float], validation: list[float]) -> Timed:
        """Return the seconds that remaining instances take: median, low and high end."""
        if not self._units:
            return super().timed(stop, train, validation)
        now = (self.ledger.now, self.ledger.counts[TRAIN], self.ledger.counts[VALIDATION])
        self._recent.append(now)
        while len(self._recent) > 2 and self._recent[1][0] <= now[0] - WINDOW_SECONDS:
            self._recent.pop(0)
        then = self._recent[0]
        speed = _units(now[1] - then[1], now[2] - then[2]) / (now[0] - then[0]) if now[0] > then[0] else 0.0
        if not speed:
            return None, (None, None)
        return [_units(a, b) / speed for a, b in zip(train, validation, strict=True)], (speed, None)


class PaperEstimator(FormerEstimator):
    """Estimator as in the paper of 2024. ``skip``: see `SpeedWindow`."""

    def __init__(
        self, plan: TrainingPlan, rule: StopRule, ledger: Ledger, *, metric: Metric | None = None, skip: int = 1
    ) -> None:
        super().__init__(plan, rule, ledger, metric=metric)
        self.window = SpeedWindow(skip)

    def phase(self, phase: int) -> None:
        """Book time to ``phase`` from now on."""
        super().phase(phase)
        self.window.phase(phase)

    def count(self, phase: int, instances: float) -> None:
        """Count a batch."""
        super().count(phase, instances)
        self.window.count(self.ledger.now, instances)

    def timed(self, stop: StopAt, train: list[float], validation: list[float]) -> Timed:
        """Return the seconds that remaining instances take: median, low and high end."""
        fast, checked = self.window.speeds
        if fast is None:
            return None, (None, checked)
        slow = checked or PRIOR_SPEED_RATIO * fast
        speeds = (fast, None) if self.ledger.current == TRAIN else (None, checked)  # an idle phase has none
        return [a / fast + b / slow for a, b in zip(train, validation, strict=True)], speeds

    def most_ahead(self, seconds: float) -> float:
        """Return 0: an estimate does not move until the next one."""
        return 0.0


class FormerProgress(Progress):
    """A `Progress` with the forecast of both methods, and our speed."""

    def __init__(self, train: Any, **how: Any) -> None:
        super().__init__(train, **how)
        plan = self.estimator.plan
        self.estimator = FormerEstimator(plan, self.rule, self.ledger, metric=self.metric, units=False)


class PaperProgress(Progress):
    """A `Progress` as in the paper of 2024, which sees each batch by itself."""

    def __init__(self, train: Any, **how: Any) -> None:
        super().__init__(train, **how)
        sizes, plan = self._counter.sizes, self.estimator.plan
        self._counter = StepCounter(sizes, self._clock, exact=True, each_step=False, group_seconds=0.0)
        ahead = (getattr(train, "num_workers", 0) or 0) * (getattr(train, "prefetch_factor", None) or 0)
        self.estimator = PaperEstimator(plan, self.rule, self.ledger, metric=self.metric, skip=ahead or 1)


class SpeedWindow:
    """Instances per second in the last ten of a phase; other phases keep their value.

    The timer of a phase starts when its first batch, which does not count, has left the pipeline. ``skip`` batches are
    left out at each start, since workers have prefetched that many. Source: Dong & Luo 2024, IV-A.
    """

    def __init__(self, skip: int = 1) -> None:
        self.skip = skip
        self.speeds: list[float | None] = [None, None]
        self._phase, self._left, self._start = TRAIN, skip, 0.0
        self._done: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def phase(self, phase: int) -> None:
        """Begin a phase."""
        if phase in (TRAIN, VALIDATION) and phase != self._phase:
            self._phase, self._left = phase, self.skip
            self._done.clear()
            self._sum = 0.0

    def count(self, now: float, instances: float) -> None:
        """Count a batch that ended at ``now``."""
        if self._left > 0:
            self._left -= 1
            self._start = now
            return
        done = self._done
        done.append((now, instances))
        self._sum += instances
        while done and done[0][0] <= now - WINDOW_SECONDS:
            self._start, gone = done.popleft()
            self._sum -= gone
        taken = now - max(self._start, now - WINDOW_SECONDS)
        if taken > 0:
            self.speeds[self._phase] = self._sum / taken


def power_law_stops(
    seen: Observations, done: int, stops: Callable[[Floats], NDArray[np.int64]], last: int, rng: np.random.Generator
) -> Stops:
    """Forecast where a run stops: one draw, the mean over 300 simulated futures.

    It is ``last`` before the 4th observation. The arguments are those of `curve_ensemble.forecast`.
    """
    if done >= last or len(seen.x) < _MIN_OBSERVATIONS:
        return Stops(np.full(1, float(last)))
    a, b, c, variance = fit(seen)
    x = np.arange(done + 1, min(last, done + HORIZON_POINTS) + 1, dtype=float)
    paths = c + a * x**-b + np.sqrt(variance) * rng.standard_normal((_PATH_COUNT, len(x)))
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


def _units(trained: float, validated: float) -> float:
    """Return work in instances trained; validating one is a third of that."""
    return trained + validated / PRIOR_SPEED_RATIO
