"""Rules of early stopping, for one history or vectorized over many paths.

A rule sees errors: the metric if smaller is better, its negative if larger is. All comparisons are then exactly those
of the trainers it stands for.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
State: TypeAlias = dict[str, NDArray[Any]]

_MAX_SLOW_PATHS = 60  # paths for which a user's function is called


class StopRule:
    """A rule on when training stops; subclasses implement `begin` and `step`."""

    def begin(self, paths: int) -> State:
        """Return the rule's state before the first point: arrays of ``paths`` rows."""
        raise NotImplementedError

    def step(self, state: State, errors: Floats, point: int) -> Bools:
        """Process the errors of ``point`` (from 1), one per path; return which stop."""
        raise NotImplementedError

    def for_negatives(self) -> StopRule:
        """Return the rule for negatives of the metric, of which larger is better.

        The limits of this one are metrics.
        """
        return self

    def stops(self, history: Sequence[float]) -> int:
        """Return the point (from 1) at which this ``history`` stops; 0 if it does not.

        >>> Patience(2).stops([0.5, 0.4, 0.45, 0.41, 0.3])
        4
        """
        run = FollowedRun(self)
        for error in history:
            run.see(error)
            if run.stop:
                break
        return run.stop

    def stops_at(self, state: State, history: Sequence[float], error: float) -> bool:
        """Process the ``error`` after a ``history``; return whether it stops the run."""
        return bool(self.step(state, np.array([error], float), len(history) + 1)[0])

    def stops_after(self, history: Sequence[float], paths: Floats) -> NDArray[np.int64]:
        """Return where each row of ``paths``, futures of ``history``, stops; 0: nowhere."""
        run = FollowedRun(self)
        for error in history:
            run.see(error)
        return self.futures(run, paths)

    def futures(self, run: FollowedRun, paths: Floats) -> NDArray[np.int64]:
        """Return where each row of ``paths``, futures of a ``run``, stops; 0: nowhere."""
        count, length = paths.shape
        state = {name: np.repeat(kept, count, axis=0) for name, kept in run.state.items()}
        found = np.zeros(count, np.int64)
        for ahead in range(length):
            point = len(run.history) + ahead + 1
            found[self.step(state, paths[:, ahead], point) & (found == 0)] = point
            if found.all():
                break
        return found


class FollowedRun:
    """A rule and what it has seen of a run, each of whose errors it processes once."""

    def __init__(self, rule: StopRule) -> None:
        self.rule, self.state = rule, rule.begin(1)
        self.history: list[float] = []
        """The errors so far."""
        self.worst = math.nan
        """The largest of them that is finite; NaN without one."""
        self.stop = 0
        """The point (from 1) at which the rule has stopped the run; 0: it has not."""

    def see(self, error: float) -> None:
        """Process the next ``error``."""
        stops = self.rule.stops_at(self.state, self.history, error)
        self.history.append(error)
        if stops and not self.stop:
            self.stop = len(self.history)
        if math.isfinite(error) and not error <= self.worst:
            self.worst = error


def _positive(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of validations, {least} or more.")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name}={value!r} must be a number, 0 or more.")


def _metric(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be a number, as validations yield it.")


@dataclass(frozen=True)
class Paper(StopRule):
    """The rule to stop when none of ``patience`` points improved on the one before.

    Point k stops if the error of point k - patience is less than ``min_delta`` above each one since. Source: Dong &
    Luo, progress estimation (2024), section II.
    """

    patience: int
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        _positive("patience", self.patience)
        _number("min_delta", self.min_delta)

    def begin(self, paths: int) -> State:
        """See `StopRule.begin`."""
        return {"last": np.full((paths, self.patience), np.nan)}

    def step(self, state: State, errors: Floats, point: int) -> Bools:
        """See `StopRule.step`."""
        last, place = state["last"], (point - 1) % self.patience
        before = last[:, place].copy()  # the error patience points ago
        last[:, place] = errors
        if point <= self.patience:
            return np.zeros(len(errors), bool)
        return np.asarray((before[:, None] - last < self.min_delta).all(axis=1))


@dataclass(frozen=True)
class Patience(StopRule):
    """The rule to stop after ``patience`` validations without an improvement.

    An improvement is larger than ``min_delta``. ``like`` selects the trainer to imitate: "keras" (3; the first point
    never stops), "lightning" (2; a metric that is not finite stops at once unless ``check_finite`` is False) or
    "huggingface" (its callback compares with a best that any improvement moves). ``warm_up`` points are ignored
    (Keras: start_from_epoch). ``baseline`` is a metric that an improvement has to beat, too (Keras); ``good`` and
    ``diverged`` are metrics at which to stop at once (Lightning: stopping_threshold and divergence_threshold). Raises
    ValueError for values out of range.
    """

    patience: int
    min_delta: float = 0.0
    like: str = "keras"
    check_finite: bool = True
    warm_up: int = 0
    baseline: float | None = None
    good: float | None = None
    diverged: float | None = None

    def __post_init__(self) -> None:
        _positive("patience", self.patience, 0 if self.like == "keras" else 1)
        _positive("warm_up", self.warm_up, 0)
        _number("min_delta", self.min_delta)
        for name in ("baseline", "good", "diverged"):
            if (value := getattr(self, name)) is not None:
                _metric(name, value)
        if self.like not in ("keras", "lightning", "huggingface"):
            raise ValueError(f"like={self.like!r} must be 'keras', 'lightning' or 'huggingface'.")

    def begin(self, paths: int) -> State:
        """See `StopRule.begin`."""
        known = np.full(paths, self.like == "lightning")  # Lightning begins with a best of infinity
        return {"best": np.full(paths, np.inf), "known": known, "wait": np.zeros(paths, np.int64)}

    def step(self, state: State, errors: Floats, point: int) -> Bools:
        """See `StopRule.step`."""
        if point <= self.warm_up:
            return np.zeros(len(errors), bool)
        best, wait = state["best"], state["wait"]
        first = ~state["known"]
        state["known"][:] = True
        stop = np.zeros(len(errors), bool)
        decided = stop.copy()
        if self.like == "lightning":
            if self.check_finite:
                stop |= ~np.isfinite(errors)
            if self.good is not None:
                stop |= errors < self.good
            if self.diverged is not None:
                stop |= errors > self.diverged
            decided = stop.copy()
        if self.like == "huggingface":
            with np.errstate(invalid="ignore"):  # two infinities are equally bad
                better = first | ((errors < best) & (np.abs(errors - best) > self.min_delta))
            best[:] = np.fmin(best, errors)
        else:
            better = first | self._beats(errors, best)
            best[better & ~decided] = errors[better & ~decided]
        wait[~decided] += 1
        restarts = better if self.baseline is None else better & self._beats(errors, np.float64(self.baseline))
        wait[restarts & ~decided] = 0
        late = ~better & ~decided & (wait >= self.patience)
        if self.like == "keras" and point == 1:
            late[:] = False
        return np.asarray(stop | late)

    def for_negatives(self) -> Patience:
        """See `StopRule.for_negatives`."""
        limits = {name: getattr(self, name) for name in ("baseline", "good", "diverged")}
        negated: dict[str, Any] = {name: -value for name, value in limits.items() if value is not None}
        return replace(self, **negated) if negated else self

    def _beats(self, errors: Floats, best: Floats | np.float64) -> Bools:
        if self.like == "keras":  # Keras compares in single precision
            return np.asarray(np.float32(errors + self.min_delta) < np.float32(best))
        return np.asarray(errors + self.min_delta < best)


@dataclass(frozen=True)
class Threshold(StopRule):
    """The rule to stop as soon as the error is below ``error``."""

    error: float

    def __post_init__(self) -> None:
        _metric("error", self.error)

    def begin(self, paths: int) -> State:
        """See `StopRule.begin`."""
        return {}

    def step(self, state: State, errors: Floats, point: int) -> Bools:
        """See `StopRule.step`."""
        return np.asarray(errors < self.error)


@dataclass(frozen=True)
class Never(StopRule):
    """The rule that never stops early."""

    def begin(self, paths: int) -> State:
        """See `StopRule.begin`."""
        return {}

    def step(self, state: State, errors: Floats, point: int) -> Bools:
        """See `StopRule.step`."""
        return np.zeros(len(errors), bool)


@dataclass(frozen=True)
class Function(StopRule):
    """The rule to stop when ``function(history)`` is true for all errors so far.

    It is called only for some of the predicted paths, since it is slow.
    """

    function: Callable[[list[float]], object]

    def begin(self, paths: int) -> State:
        """See `StopRule.begin`."""
        return {}

    def stops_at(self, state: State, history: Sequence[float], error: float) -> bool:
        """See `StopRule.stops_at`."""
        return bool(self.function([*history, error]))

    def futures(self, run: FollowedRun, paths: Floats) -> NDArray[np.int64]:
        """See `StopRule.futures`; the first 60 paths represent all."""
        found = np.zeros(len(paths), np.int64)
        for index, path in enumerate(paths[:_MAX_SLOW_PATHS]):
            seen = list(run.history)
            for error in path:
                seen.append(float(error))
                if self.function(seen):
                    found[index] = len(seen)
                    break
        return np.asarray(np.resize(found[:_MAX_SLOW_PATHS], len(paths)))
