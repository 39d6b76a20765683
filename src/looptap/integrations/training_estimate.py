"""`TrainingEstimate`: the remaining time of a framework's training.

Training thread. An adapter says what is ahead, and then each update and each batch of a validation. The estimate is a
`Progress` of looptap.training, which times them; its unit is the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from looptap.training.progress import Progress


class EarlyStop(NamedTuple):
    """When a framework stops a training early."""

    metric: str
    """The name of the metric, as the framework reports it."""
    patience: int
    min_delta: float
    larger: bool
    """True if larger is better."""
    like: str
    """The framework, as `Patience` calls it."""
    set_patience: Callable[[int], object]
    """Sets that of the framework, after a client has set ``progress.patience``."""
    good: float | None = None
    """A value at which the training stops at once."""
    diverged: float | None = None
    baseline: float | None = None
    """A value that an improvement has to beat, too."""
    warm_up: int = 0
    """Validations before the first that counts."""


class NoEstimate:
    """What an adapter tells where it is not known when the training ends."""

    progress: Progress | None = None
    stops_early = False
    """True if the framework stops the training by a metric."""

    def trained(self) -> None:
        """Count an update."""

    def validating(self) -> None:
        """Count a batch of a validation."""

    def validated(self, metrics: Mapping[str, Any]) -> None:
        """Record a validation."""

    def finished(self) -> None:
        """Record that the training is over."""


class TrainingEstimate(NoEstimate):
    """The estimate of a training with ``steps`` updates ahead.

    ``every`` is the number of updates between two validations; None: there are none.
    """

    def __init__(self, steps: int, every: int | None = None, stop: EarlyStop | None = None) -> None:
        self.progress: Progress = _progress_of(steps, every, stop)
        self._stop, self.stops_early = stop, stop is not None
        self._updates: Iterator[Any] = self.progress.train(itertools.repeat(range(1)))
        self._checks: Iterator[Any] | None = None
        self._validated = -1
        next(self._updates)  # the time of the first update begins here

    def trained(self) -> None:
        """Count an update, and give the trainer the patience that a client has set."""
        self._close_checks()
        next(self._updates)
        if self._stop is not None and self.progress.patience != self._stop.patience:
            self._stop = self._stop._replace(patience=self.progress.patience)
            self._stop.set_patience(self._stop.patience)

    def validating(self) -> None:
        """Count a batch of a validation."""
        if self._checks is None:
            self._checks = self.progress.validate(itertools.repeat(range(1)))
            next(self._checks)
        next(self._checks)

    def validated(self, metrics: Mapping[str, Any]) -> None:
        """Record a validation, once after an update."""
        self._close_checks()
        value = 0.0 if self._stop is None else metrics.get(self._stop.metric)
        if value is not None and self.progress.steps != self._validated:
            self._validated = self.progress.steps
            self.progress.validated(float(value))

    def finished(self) -> None:
        """Record that the training is over."""
        self._close_checks()
        self.progress.finished()

    def _close_checks(self) -> None:
        checks, self._checks = self._checks, None
        if checks is not None:
            checks.close()  # type: ignore[attr-defined]  # a generator


def _progress_of(steps: int, every: int | None, stop: EarlyStop | None) -> Progress:
    from looptap.training.progress import Patience, Progress

    if every is None or stop is None:
        return Progress(max_steps=steps, validate_every=every)
    limits: dict[str, Any] = {name: getattr(stop, name) for name in ("good", "diverged", "baseline", "warm_up")}
    rule = Patience(stop.patience, abs(stop.min_delta), like=stop.like, **limits)
    return Progress(max_steps=steps, validate_every=every, rule=rule, metric="max" if stop.larger else "loss")
