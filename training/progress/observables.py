"""The observables of a `Progress`, and what clients set of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from looptap.streams.control import Control
from looptap.streams.durations import duration
from looptap.streams.loop_observer import LoopObserver
from looptap.training.noted import Noted
from looptap.training.progress.clock_ledger import TRAIN, Ledger
from looptap.training.progress.estimate import Estimate, Estimator, Remaining
from looptap.training.progress.forecast.earlier_runs import curves_in, facts_of
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stop_forecast import StopAt
from looptap.training.progress.speed_change import SpeedWatch
from looptap.training.progress.validation_subsets import Inserting

_FRACTION_HYSTERESIS = 0.02  # a longer run lowers the fraction by so much at most: then it waits


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

    def __init__(self, ledger: Ledger, insert: Inserting | None) -> None:
        self.ledger = ledger
        """The ledger of the training time."""
        self._insert, self._watch = insert, SpeedWatch()
        self.epoch = 0
        """Epochs of training that have ended."""
        self.steps = 0
        """Batches that were trained."""
        self._before = 0.0  # seconds of earlier processes
        self._spent = self._shown = self._peak = 0.0
        self._over = False
        self._until = -math.inf  # by the clock, until when the estimate holds

    def on_command(self) -> None:
        """Expect another speed after a client's command. Called by the exposing agent."""
        self._watch.commands += 1
        self._until = -math.inf

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
        """How many earlier runs of this job the forecast knows."""
        return len(self.estimator.stopping.earlier)

    def _left(self) -> float | None:
        """Return the instances left to train if nothing stops the run; None: unknown."""
        raise NotImplementedError

    def estimate(self) -> Estimate | None:
        """Return the estimate; None while the epoch length or speed is unknown.

        It is at most a second old, and reads the last forecast of the stop. One is made after a validation, later if
        forecasts would otherwise take more than 0.1% of the time, and after a change of the epochs or the patience.
        """
        found, passed = self._current()
        return None if found is None else found.after(passed)

    def _current(self) -> tuple[Estimate | None, float]:
        """Return the last estimate, and the seconds of work since."""
        raise NotImplementedError

    @property
    def remaining(self) -> Remaining:
        """Seconds until training ends, with an 80% band; NaN while unknown."""
        return self._remaining_of(*self._current())

    def _remaining_of(self, found: Estimate | None, passed: float = 0.0) -> Remaining:
        if self._over:
            return Remaining(0.0, 0.0, 0.0)
        if found is None:
            return Remaining(math.nan, math.nan, math.nan)
        rest, low, high = found.remaining - passed, found.low - passed, found.high - passed
        return Remaining(max(rest, 0.0), max(low, 0.0), max(high, 0.0))

    @property
    def fraction(self) -> float:
        """Fraction of the total time that has passed, 0 to 1; 1 only at the end."""
        return self._fraction_of(self.remaining.median)

    def _fraction_of(self, rest: float) -> float:
        if self._over:
            return 1.0
        if math.isnan(rest):
            return self._shown
        now = self._done_share(self.elapsed, rest)
        if now > self._shown:
            self._shown = now
        elif now < self._peak - _FRACTION_HYSTERESIS:
            self._shown = self._peak - _FRACTION_HYSTERESIS
        self._peak = max(self._peak, self._shown)
        return self._shown

    def _restart_fraction(self) -> None:
        """Show the fraction as it is: a setting has changed."""
        self._shown = self._peak = 0.0

    def _done_share(self, done: float, rest: float) -> float:
        return min(done / (done + rest), 0.999) if done + rest > 0 else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start, earlier processes included, pauses excluded."""
        return self._before + self.ledger.elapsed() - self.ledger.suspended

    @property
    def stop_at(self) -> StopAt | None:
        """The validation after which training stops (median, low, high), or None."""
        found, _ = self._current()
        return None if found is None else StopAt(found.stop, found.stop_low, found.stop_high)

    @property
    def unless_better(self) -> int | None:
        """In how many validations the rule stops training if none improves, or None."""
        found, _ = self._current()
        return None if found is None else found.unless_better

    @property
    def reason(self) -> str:
        """Why the estimate has just moved by more than a tenth of the run, if it has."""
        raise NotImplementedError

    @property
    def train_speed(self) -> float | None:
        """Instances trained per second; None before the first."""
        found, _ = self._current()
        return self.ledger.rate(TRAIN, 60.0) if found is None else found.train_speed

    @property
    def validation_speed(self) -> float | None:
        """Instances validated per second; None before the first."""
        found, _ = self._current()
        return None if found is None else found.validation_speed

    @property
    def train_cost(self) -> float | None:
        """Remaining training instances."""
        found, _ = self._current()
        return None if found is None else found.train_cost

    @property
    def validation_cost(self) -> float | None:
        """Remaining validation instances."""
        found, _ = self._current()
        return None if found is None else found.validation_cost

    @property
    def report(self) -> dict[str, Any]:
        """All observables as plain data for a bar; None if unknown."""
        found = self.estimate()  # once: a query of a report costs little, too
        rest = self._remaining_of(found)
        return {
            "fraction": self._fraction_of(rest.median), "over": self._over, "elapsed": self.elapsed,
            "remaining": None if math.isnan(rest.median) else list(rest),
            "stop_at": found and [found.stop, found.stop_low, found.stop_high],
            "unless_better": found and found.unless_better, "reason": self.reason,
            "epoch": self.epoch, "steps": self.steps,
            "train_speed": found.train_speed if found else self.train_speed,
            "validation_speed": found and found.validation_speed, "train_cost": found and found.train_cost,
            "validation_cost": found and found.validation_cost, "overhead": self.overhead, "note": self.note,
            "earlier_runs": self.earlier_runs,
        }  # fmt: skip

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
