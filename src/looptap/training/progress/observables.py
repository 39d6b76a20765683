"""The observables of a `Progress`, and what clients set of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from looptap.streams.control import Control
from looptap.streams.durations import duration
from looptap.streams.loop.loop_observer import LoopObserver
from looptap.training.noted import Noted
from looptap.training.progress.clock_ledger import SHORT_WINDOW_SECONDS, TRAIN, Ledger
from looptap.training.progress.estimate import Estimate, Estimator, Remaining
from looptap.training.progress.forecast.earlier_runs import curves_in, facts_of
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stop_forecast import StopAt
from looptap.training.progress.speed_change import SpeedWatch
from looptap.training.progress.validation_subsets import Inserting

_FRACTION_HYSTERESIS = 0.02  # a longer run lowers the fraction by so much at most: then it waits
_MAX_FRACTION = 0.999  # before the end


@dataclass(slots=True)
class ShownEstimate:
    """All that a look reads, in one place: caches are cold after a training step.

    It is replaced about once a second, and time passes in between.
    """

    until: float = -math.inf
    """When it has expired, by the clock of the run."""
    at: float = 0.0
    """When the estimate was true; from then on up to ``most`` seconds of work pass."""
    most: float = 0.0
    remaining: float = math.nan
    low: float = math.nan
    high: float = math.nan
    done: float = 0.0
    """The time so far, of the ``whole`` that is expected."""
    whole: float = 1.0
    fraction: float = 0.0
    """The least that is shown."""
    stop_at: StopAt | None = None
    estimate: Estimate | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """The report, of which the time and what is counted are missing."""

    def fraction_at(self, now: float) -> float:
        """Return the share that is done at ``now``."""
        passed = now - self.at
        share = (self.done + (passed if passed < self.most else self.most)) / self.whole
        if share > _MAX_FRACTION:
            share = _MAX_FRACTION
        return share if share > self.fraction else self.fraction


class Setting(Control):
    """A control that calls ``set_up`` of its object, which may refuse the value."""

    def __set__(self, instance: Any, value: Any) -> None:
        before = self.__get__(instance)
        super().__set__(instance, value)
        if self.__get__(instance) != before:
            try:
                instance.set_up()
            except ValueError:
                super().__set__(instance, before)
                raise


class ProgressObservables(Noted, LoopObserver):
    """The part of a `Progress` that clients read; observes commands and pauses."""

    __looptap_panel__ = (
        ("seconds that remain", "self.remaining"),
        ("share that is done", "self.fraction"),
        ("instances a second", "{'training': self.train_speed, 'validation': self.validation_speed}"),
    )

    estimator: Estimator
    """Estimates where the run stops, and when."""
    metric: Metric
    """The kind of the validated metric."""
    _clock: Callable[[], float]

    def __init__(self, ledger: Ledger, insert: Inserting | None) -> None:
        self.ledger = ledger
        """The ledger of the training time."""
        self._insert, self._watch = insert, SpeedWatch()
        self.epoch = 0
        """Epochs of training that have ended."""
        self.steps = 0
        """Batches that were trained."""
        self._before = 0.0  # seconds of earlier processes
        self._spent = self._peak = 0.0
        self._over = False
        self._shown = ShownEstimate()

    def on_command(self) -> None:
        """Expect another speed after a client's command. Called by the exposing agent."""
        self._watch.commands += 1
        self._shown.until = -math.inf

    def on_pause(self, seconds: float) -> None:
        """Leave a pause of ``seconds`` out of all speeds. Called by the exposing agent."""
        self.ledger.pause(seconds)

    def facts_to_keep(self) -> dict[str, Any]:
        """Return the validations so far, for later runs. Called by the exposing agent."""
        finished = self._over or self.estimator.stopping.fired > 0 or self._left() == 0.0
        return facts_of(self.metric, self.estimator.stopping.values, finished=finished)

    def on_earlier_runs(self, kept: Sequence[Any]) -> None:
        """Expect validations like those of earlier runs. Called by the exposing agent."""
        self.estimator.offer(curves_in(kept, self.metric))

    @property
    def earlier_runs(self) -> int:
        """The number of earlier runs of this job that the forecast uses."""
        return len(self.estimator.stopping.earlier)

    def _left(self) -> float | None:
        """Return the instances left to train if nothing stops the run; None: unknown."""
        raise NotImplementedError

    def estimate(self) -> Estimate | None:
        """Return the estimate; None while the epoch length or speed is unknown.

        It is at most a second old, and reads the last forecast of the stop. One is made after a validation, later if
        forecasts would otherwise take more than 0.1% of the time, and after a change of the epochs or the patience.
        """
        shown = self._latest()
        return None if shown.estimate is None else shown.estimate.after(min(self._clock() - shown.at, shown.most))

    def _latest(self) -> ShownEstimate:
        """Return what is shown, made again if it has expired."""
        shown = self._shown
        return shown if self._clock() < shown.until else self._refresh()

    def _refresh(self) -> ShownEstimate:
        """Estimate again by the last forecast, and show it."""
        raise NotImplementedError

    @property
    def remaining(self) -> Remaining:
        """Seconds until training ends, with an 80% band; NaN while unknown."""
        shown, now = self._shown, self._clock()
        if now >= shown.until:
            shown = self._refresh()
        passed = now - shown.at  # here, since each function called costs microseconds on cold caches
        if passed > shown.most:
            passed = shown.most
        rest, low, high = shown.remaining - passed, shown.low - passed, shown.high - passed
        if low < 0.0:
            rest, low, high = max(rest, 0.0), 0.0, max(high, 0.0)
        return tuple.__new__(Remaining, (rest, low, high))

    @property
    def fraction(self) -> float:
        """Fraction of the total time that has passed, 0 to 1; 1 only at the end."""
        shown, now = self._shown, self._clock()
        return (shown if now < shown.until else self._refresh()).fraction_at(now)

    def _show(self, found: Estimate | None, now: float, until: float, most: float) -> None:
        """Show an estimate that was true at ``now``; the shares never fall by much."""
        stop_at = self.estimator.stop_at if found is None else StopAt(found.stop, found.stop_low, found.stop_high)
        before, facts = self._shown.fraction_at(now), self._facts(found, stop_at)
        if self._over:
            self._shown = ShownEstimate(math.inf, now, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, stop_at, found, facts)
        elif found is None:
            self._shown = ShownEstimate(until, now, fraction=before, stop_at=stop_at, facts=facts)
        else:
            done, rest = self.elapsed, found.remaining
            share = min(done / (done + rest), _MAX_FRACTION) if done + rest > 0 else 0.0
            self._peak = max(self._peak, before)
            if share < before:  # it waits, or falls a little
                share = before if share >= self._peak - _FRACTION_HYSTERESIS else self._peak - _FRACTION_HYSTERESIS
            self._peak = max(self._peak, share)
            self._shown = ShownEstimate(
                until,
                now,
                most,
                *found[:3],
                done,
                whole=(done + rest) or 1.0,
                fraction=share,
                stop_at=stop_at,
                estimate=found,
                facts=facts,
            )

    def _facts(self, found: Estimate | None, stop_at: StopAt | None) -> dict[str, Any]:
        """Return a report on an estimate; a look adds the time and what is counted."""
        return {
            "fraction": 0.0,
            "over": False,
            "elapsed": 0.0,
            "remaining": None,
            "stop_at": stop_at and list(stop_at),
            "unless_better": found and found.unless_better,
            "reason": self.reason,
            "epoch": 0,
            "steps": 0,
            "train_speed": found.train_speed if found else self.ledger.rate(TRAIN, SHORT_WINDOW_SECONDS),
            "validation_speed": found and found.validation_speed,
            "train_cost": found and found.train_cost,
            "validation_cost": found and found.validation_cost,
            "overhead": self.overhead,
            "note": "",
            "earlier_runs": self.earlier_runs,
        }

    def _restart_fraction(self) -> None:
        """Show the fraction as it is: a setting has changed."""
        self._shown, self._peak = ShownEstimate(), 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start, earlier processes included, pauses excluded."""
        return self._before + self.ledger.elapsed() - self.ledger.suspended - self.ledger.paused

    @property
    def stop_at(self) -> StopAt | None:
        """The validation after which training stops (median, low, high), or None."""
        return self._latest().stop_at

    @property
    def unless_better(self) -> int | None:
        """The validations until the rule stops training if none improves, or None."""
        found = self._latest().estimate
        return None if found is None else found.unless_better

    @property
    def reason(self) -> str:
        """Why the estimate has just moved by more than a tenth of the run, if it has."""
        raise NotImplementedError

    @property
    def train_speed(self) -> float | None:
        """Instances trained per second; None before the first."""
        found = self._latest().estimate
        return self.ledger.rate(TRAIN, SHORT_WINDOW_SECONDS) if found is None else found.train_speed

    @property
    def validation_speed(self) -> float | None:
        """Instances validated per second; None before the first."""
        found = self._latest().estimate
        return None if found is None else found.validation_speed

    @property
    def train_cost(self) -> float | None:
        """Remaining training instances."""
        found = self._latest().estimate
        return None if found is None else found.train_cost

    @property
    def validation_cost(self) -> float | None:
        """Remaining validation instances."""
        found = self._latest().estimate
        return None if found is None else found.validation_cost

    @property
    def report(self) -> dict[str, Any]:
        """All observables as plain data for a bar; None if unknown."""
        rest, found = self.remaining, self._shown.facts.copy()
        found["fraction"], found["over"], found["elapsed"] = self.fraction, self._over, self.elapsed
        found["remaining"] = None if math.isnan(rest.median) else list(rest)
        found["epoch"], found["steps"], found["note"] = self.epoch, self.steps, self.note
        return found

    @property
    def overhead(self) -> float:
        """Share of time since the start spent on estimates and inserted validations."""
        inserted = 0.0 if self._insert is None else self._insert.seconds
        return (self._spent + inserted) / max(self.ledger.elapsed(), 1e-9)

    def __repr__(self) -> str:
        rest = self.remaining
        if self._over:
            return f"<Progress: done after {duration(self.elapsed)}>"
        if math.isnan(rest.median):
            return f"<Progress: {self.steps:,} steps in {duration(self.elapsed)}; what remains is not known yet>"
        band = f"{duration(rest.low)} to {duration(rest.high)}"
        return f"<Progress: {self.fraction:.0%}, {duration(rest.median)} to go ({band})>"
