"""`Progress`: estimates when training will end, from three lines in the loop."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from looptap.streams.forwarding import facade
from looptap.streams.loop.loop_place import LoopPlace, is_left, place_of_loop
from looptap.training.progress import arguments
from looptap.training.progress.clock_ledger import OTHER, TRAIN, VALIDATION, Ledger, steady
from looptap.training.progress.estimate import Estimator
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stopping_rules import StopRule
from looptap.training.progress.loader_size import EpochLength, Sizes, validated_instances
from looptap.training.progress.observables import ProgressObservables, Setting, ShownEstimate
from looptap.training.progress.plan import TrainingPlan, point_near
from looptap.training.progress.run_end import RunEnd
from looptap.training.progress.step_counter import StepCounter
from looptap.training.progress.validation_subsets import Inserting
from looptap.training.saved_state import require_state

ESTIMATE_SECONDS = 1.0
"""Seconds for which an estimate is reused."""
_STEP_GROUP_SECONDS = 0.25  # seconds of training counted together, so that a step of a millisecond costs little
_REFRESH_SECONDS = 0.4  # before an estimate expires: it is made again, so that a look seldom has to
_RETRY_SECONDS = 0.05  # the same while there is no estimate
_FORECAST_PACE_FACTOR = 1000  # times the duration of the last forecast, until the next


@facade
class Progress(ProgressObservables):
    """Estimator of when a training loop will end.

    ``train`` is the training loader, or the number of batches of an epoch; None: unknown until the first epoch has
    ended. A run ends after ``epochs``, ``max_steps`` optimizer steps, each of ``accumulate`` batches, ``budget``
    instances (tokens, with a ``size``) or ``max_time`` seconds, whichever comes first. ``validation`` is the
    validation loader, or a number of instances. ``validate_every`` is the number of batches between two validations,
    by default an epoch. ``rule`` is the early-stopping rule; None: none. ``metric`` is the kind of the validated
    metric, see `Metric`. ``rates`` are the mean learning rates before each raw point, if known. ``history`` are the
    curves of earlier runs of this job: lists of validation results; without, an agent with a config finds those of its
    stored runs. ``size`` returns the instances of a batch, by default the length of its first tensor. ``on_update`` is
    called with this object about every ``every`` seconds, on the loop thread. ``insert`` adds validations: see
    `Inserting`.

    Raises ValueError and TypeError for invalid arguments, but never later: in the loop a value that is not a number is
    reported in `note` and leaves the estimate unchanged.

    >>> progress = Progress(10, epochs=2, validation=100)
    >>> for epoch in range(2):
    ...     for batch in progress.train(range(10)):
    ...         pass
    ...     for batch in progress.validate(range(10)):
    ...         pass
    ...     stop = progress.validated(0.5)
    >>> progress.finished()
    >>> progress.fraction
    1.0
    """

    _place = LoopPlace()  # of the loop that counts
    epochs = Setting(int, minimum=1, default=1, doc="number of epochs after which training ends")
    patience = Setting(int, minimum=0, default=0, doc="validations without improvement that stop the run")

    def __init__(
        self,
        train: Any = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        budget: float | None = None,
        max_time: float | None = None,
        validation: Any = None,
        validate_every: int | None = None,
        rule: StopRule | Callable[[list[float]], object] | None = None,
        metric: str = "error",
        rates: Sequence[float] | None = None,
        history: Sequence[Sequence[float]] = (),
        size: Callable[[Any], float] | None = None,
        on_update: Callable[[Progress], object] | None = None,
        every: float = 5.0,
        accumulate: int = 1,
        insert: Inserting | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ready = False  # settings take no effect yet
        arguments.check_counts(epochs=epochs, max_steps=max_steps, validate_every=validate_every, accumulate=accumulate)
        arguments.check_positive(budget=budget, max_time=max_time, every=every)
        arguments.callables(size=size, on_update=on_update, clock=clock)
        if epochs is None and max_steps is None and budget is None and max_time is None:
            raise ValueError("Nothing says when training ends: pass epochs=, max_steps=, budget= or max_time=.")
        self._length, sizes = EpochLength(train), Sizes(train, size)
        if max_steps is None and budget is None and epochs is not None and self._length.present == 0:
            raise ValueError("The training loader is empty: training would never end.")
        self._validation = validated_instances(validation)
        self._every_batches = validate_every
        max_batches = None if max_steps is None else max_steps * accumulate
        self._end = RunEnd(epochs is not None, max_batches, budget, max_time)
        self.epochs = epochs or 1
        self._rule: StopRule = arguments.stop_rule(rule)
        if (patience := getattr(self._rule, "patience", None)) is not None:
            self.patience = patience
        self.metric = Metric(metric)
        self._from = self._resumed = 0  # the step with which the epoch began; batches of it in an earlier process
        exact = size is not None or budget is not None or insert is not None
        clock = self._clock = steady(clock)
        self._counter = StepCounter(
            sizes, clock, exact=exact, each_step=insert is not None, group_seconds=_STEP_GROUP_SECONDS
        )
        super().__init__(Ledger(clock), insert)
        self._began = self.ledger.now
        self._iterating: list[int] | None = None  # the iterator that counts; where it was when it seemed abandoned
        self._handed, self._beside = False, (-1, 0)  # whether it has a batch that is not counted yet; see `_abandoned`
        plan = TrainingPlan(1.0, 0.0, self._validation)
        self.estimator = Estimator(
            plan, self._rule, self.ledger, metric=self.metric, seed=arguments.seed_of(seed),
            rates=arguments.rates_of(rates), earlier=arguments.earlier_from(history),
        )  # fmt: skip
        self._on_update, self._every, self._updated = on_update, every, self._began
        self._point_at, self._ready = 0.0, True
        if insert is not None:
            if not isinstance(insert, Inserting):
                raise TypeError(f"insert={insert!r:.60} must be Inserting(evaluate, model, validation).")
            insert.begin(validate_every or round(self._length.present or 0), sizes.mean, self._validation)
            plan.subset, plan.ahead = float(insert.subset), insert.ahead

    # ------------------------------------------------------------ in the loop

    def train(self, loader: Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield and count the batches of an epoch; one counts at the next request.

        Those of an iterator within the loop of another one, or beside it, are part of its steps and do not count.
        """
        loader = self._length.loader if loader is None else loader
        place, run = place_of_loop(sys._getframe(1)), list[int]()
        if self._iterating is not None and not self._abandoned(place):
            return (yield from self._beside_another(loader))
        self._iterating, self._place = run, place
        self._ignored()
        if self._in_epoch and not self._resumed:  # the loop has left its last epoch early, and may do so again
            self.epoch, self._length.most = self.epoch + 1, self._in_epoch
        self._from, resumed, self._resumed = self.steps - self._resumed, self._resumed, 0
        ends = resumed > 0 and self._length.whole_after(resumed, loader)
        self._length.begin(loader, self._in_epoch)
        self._shown.until = -math.inf
        if self._insert is not None:
            self.estimator.check_speed(self._insert.first_speed())
        self._phase(TRAIN)
        self._counter.begin(self.steps)
        left = 1
        try:
            for batch in loader:  # on cold caches: every line costs a microsecond
                if ends:  # the epoch that is resumed had its last batch, and this is the next one
                    ends, self.epoch, self._from = False, self.epoch + 1, self.steps
                self._handed = True
                yield batch
                if self._iterating is not run and not self._come_back(run):
                    continue
                if self._handed:  # else a checkpoint has counted it
                    self.steps += 1
                left -= 1
                if not left:
                    left = self._trained(batch)
            if self._iterating is not run:
                return
            if self.steps > self._counter.sized:
                self._counter.see(batch, self.steps, self._in_epoch)
            self._length.ended(self._in_epoch)
            self.epoch, self._from = self.epoch + 1, self.steps
        finally:
            if self._iterating is run:
                self._iterating, self._handed = None, False
                self._phase(OTHER)

    def validate(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield and count the batches of a validation; then training continues."""
        sizes, before = Sizes(loader, None), self.ledger.current
        self._phase(VALIDATION)
        try:
            for batch in loader:
                yield batch
                self.estimator.count(VALIDATION, sizes.of(batch))
                self._update()
        finally:
            self._phase(before)

    def trained(self, instances: float) -> None:
        """Count a step on ``instances`` instances, in loops without `train`."""
        if begins := self.ledger.current == OTHER:
            self._ignored()
            self._phase(TRAIN)
        self.steps += 1
        self._counter.add(instances, self.steps)
        if begins and not self.ledger.seconds[TRAIN]:  # how long the first step took is not known
            self._flush()
            self.ledger.resume(self.ledger.counts[TRAIN], begun=True)
        if self._length.present and self._in_epoch >= self._length.present:
            self.epoch, self._from = self.epoch + 1, self.steps
        if self._insert is not None or self._clock() >= self._counter.due:
            self._look()

    def _trained(self, batch: Any) -> int:
        """Count done steps, the last on ``batch``; return after how many to check again."""
        following, due = self._counter.check(batch, self.steps, self._in_epoch)
        if due:
            self._look()
        return following

    def _look(self) -> None:
        """Count what was trained, and insert a validation or update if due."""
        self._flush()
        if self._insert is not None and self._insert.due():
            self._inserted(self._insert)
        self._turned()
        if self._length.moved():
            self._shown.until = -math.inf
        self._renew()
        self._update()
        if self._shown.until - self.ledger.now < _REFRESH_SECONDS:
            self._refresh()

    def _turned(self) -> None:
        """Expect another speed if a command or the loader has changed it."""
        if (change := self._watch.changed(self._length.loader)) is not None:
            self.ledger.turned(*change)

    def validated(self, value: float) -> bool:
        """Record the result of a validation; True if the rule stops training here."""
        number = arguments.as_float(value)
        self._ignored()
        self._flush()
        if not math.isfinite(number):
            self._say(f"The validation yielded {value!r:.60}: it counts as no improvement.")
        plan = self.estimator.plan
        plan.validation = self._validation = plan.checked_at_point() or self._validation
        self._length.update()
        self._point_at = self._position()
        self.estimator.observed(number)
        if self._insert is not None:
            self._insert.next_point(None if self._every_batches else self._length.later)
            if self._insert.reason:
                plan.ahead = []
        stop = self.estimator.stopping.decide(self.rule, plan.last)
        self._renew()
        self._shown.until = -math.inf
        return stop

    def _ignored(self) -> None:
        """Forecast no stop in a loop that trains on after the rule has fired."""
        stopping = self.estimator.stopping
        if stopping.fired:
            self._say(arguments.ignored_rule(self.rule, stopping.fired))
            stopping.fired, stopping.given_up = 0, True
            self.estimator.changed()
            self._shown.until = -math.inf

    def finished(self) -> None:
        """Record that training is over: `fraction` is 1 and nothing remains."""
        self._phase(OTHER)
        self._over, self._shown.until = True, -math.inf
        self._update(now=True)

    # ------------------------------------------------------------ observables

    @property
    def rule(self) -> StopRule:
        """The active rule, with the current `patience`."""
        if getattr(self._rule, "patience", self.patience) != self.patience:
            self._rule = dataclasses.replace(self._rule, patience=self.patience)  # type: ignore[type-var]
        return self._rule

    @rule.setter
    def rule(self, rule: StopRule | Callable[[list[float]], object] | None) -> None:
        self._rule = arguments.stop_rule(rule)
        self.patience = getattr(self._rule, "patience", self.patience)
        self.set_up()

    @property
    def reason(self) -> str:
        """Why the estimate has just moved by more than a tenth of the run, if it has."""
        return self.estimator.stopping.reason or ("the speed changed" if self.estimator.speed_changed else "")

    # ------------------------------------------------------------ a resumed run

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: counters, values, shares of time.

        A batch that the loop has now counts as done.
        """
        if self._handed:
            self.steps, self._handed = self.steps + 1, False
        self._flush()
        return {
            "epoch": self.epoch, "steps": self.steps, "in_epoch": self._in_epoch, "elapsed": self.elapsed,
            "length": self._length.present, "size": self._counter.sizes.mean, "validation": self._validation,
            **self.estimator.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, even inside an epoch. Raises ValueError."""
        require_state(state, self.state_dict(), "a Progress")
        self.epoch, self.steps, self._resumed = state["epoch"], state["steps"], state["in_epoch"]
        self._from, self._before = self.steps - self._resumed, state["elapsed"]
        self._length.known(state["length"] if self._length.present is None else self._length.present)
        self._counter.resume(self.steps, state["size"])
        self._validation = self._validation or state["validation"]
        self.estimator.load_state_dict(state)
        size = (self._every_batches or self._length.later or 0) * self._counter.size
        self._point_at = point_near(self._position() - (state["since"] / size if size else 0.0))
        self._shown.until = -math.inf

    # ------------------------------------------------------------ inside

    def _beside_another(self, loader: Iterable[Any]) -> Iterator[Any]:
        begun, batches = self.steps, 0
        for batches, batch in enumerate(loader, 1):  # noqa: B007 - counted after the loop
            yield batch
        self._beside = begun, batches

    def _abandoned(self, place: LoopPlace) -> bool:
        """Return True if the loop does not come back to an iterator that is there.

        Its loop is left; or it has had no step since another one began, which has ended and is counted now.
        """
        begun, batches, run = *self._beside, self._iterating
        again = self._in_epoch > 0 and is_left(self._place, place)
        if run is None or not (again or begun == self.steps):
            return False
        run[:] = self.steps, self.epoch, self._from
        if again:
            self._flush()
            self.ledger.leave()
        else:
            self._from = self.steps = self.steps + batches
            self.epoch += 1
        self._beside = -1, 0
        return True

    def _come_back(self, run: list[int]) -> bool:
        """Continue with one that seemed abandoned; return False for one in its step."""
        if not run:
            return False
        self._flush()
        self._iterating, self._handed = run, True
        self.steps, self.epoch, self._from = run
        run.clear()
        self._counter.resume(self.steps, self._counter.size)
        self._phase(TRAIN)
        return True

    @property
    def _in_epoch(self) -> int:
        """Batches of the current epoch."""
        return self.steps - self._from

    def _flush(self) -> None:
        """Count what was trained since the last call."""
        if instances := self._counter.flush(self.steps):
            self.estimator.count(TRAIN, instances)
        self._counter.due = self.ledger.now + self._counter.group_seconds

    def _phase(self, phase: int) -> None:
        self._flush()
        self.estimator.phase(phase)

    def _position(self) -> float:
        """Return the progress of training in raw points, as if without early stopping."""
        every = self._every_batches
        return self.steps / every if every else self.epoch + self._length.passed(self._in_epoch)

    def _left(self) -> float | None:
        """Return the instances left to train if nothing stops the run; None: unknown."""
        batches = self._length.left(self.epochs - self.epoch, self._in_epoch)
        return self._end.left(batches, self.steps, self.ledger.counts[TRAIN], self._counter.sizes.mean)

    def set_up(self) -> None:
        """Take a changed setting into account."""
        if self._ready:
            self.estimator.stopping.rule = self.rule  # raises ValueError for a patience that it cannot have
            self.estimator.changed()
            self._restart_fraction()
            self._renew()

    def _plan(self) -> float | None:
        """Bring the plan up to date; return the instances left; None: unknown."""
        self._flush()
        self._turned()
        plan, batches = self.estimator.plan, self._length.plan()
        batches, left = self._every_batches or batches, None if self._over else self._left()
        if left is None:
            return None
        whole = left if math.isfinite(left) else self.ledger.counts[TRAIN] + 1.0
        plan.left, plan.point = whole, batches * self._counter.sizes.mean if batches else max(whole, 1.0)
        if batches:  # in these units a change of length keeps the number of points
            plan.since = (self._position() - self._point_at) * plan.point
        return left

    def _renew(self) -> None:
        """Forecast again, if there is something new and it is time."""
        estimator, begun = self.estimator, time.perf_counter()
        estimator.follow_speed()
        if not estimator.due(_FORECAST_PACE_FACTOR):
            return
        if self._plan() is not None:
            estimator.stopping.rule = self.rule
            try:
                estimator.renew()
            except Exception as error:  # a rule of the host's that cannot take simulated futures
                estimator.stopping.given_up = True
                estimator.renew()
                self._say(f"The rule raised {type(error).__name__}: {error}; early stopping is no longer forecast.")
            self._shown.until = -math.inf
        self._spent += time.perf_counter() - begun

    def _refresh(self) -> ShownEstimate:
        """Estimate again by the last forecast, and show it."""
        begun, left = time.perf_counter(), self._plan()
        found = None if left is None else self.estimator.estimate()
        found = found and self._end.in_time(found, left or 0.0, self.elapsed)
        until = self._clock() + (_RETRY_SECONDS if found is None else ESTIMATE_SECONDS)
        self._show(found, self.ledger.now, until, self.estimator.most_ahead(ESTIMATE_SECONDS))
        self._spent += time.perf_counter() - begun
        return self._shown

    def _update(self, now: bool = False) -> None:
        if self._on_update is None or not (now or self.ledger.now - self._updated >= self._every):
            return
        self._updated = self.ledger.now
        try:
            self._on_update(self)
        except Exception as error:  # an error in on_update must not affect the loop
            self._on_update = None
            self._say(f"on_update raised {type(error).__name__}: {error}; it is not called again.")

    def _inserted(self, insert: Inserting) -> None:
        self._phase(VALIDATION)
        found = insert.run()
        if found is not None:
            value, spread, instances = found
            self.estimator.count(VALIDATION, instances)
            x = self.estimator.plan.done + insert.place
            self.estimator.observed(value, x=x, variance=insert.variance(value, spread, self.metric))
        if insert.reason:
            self._say(insert.reason)
        self._phase(TRAIN)
