"""A guess of when a run without `Progress` will be done, from its events."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from looptap.client.run import Run
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Record

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream
    from looptap.store.kept_scalars import ScalarInfo
    from looptap.training.progress import Progress

_MAX_EPOCH_SHARE = 0.99

STEPS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "n_iter", "batch_idx", "i")
"""Names of numbers of events that count steps, the likeliest first."""
EPOCHS = ("epoch", "trainer/epoch")
STEP_TOTALS = ("max_steps", "total_steps", "num_steps", "n_steps", "train_steps", "num_train_steps",
               "num_training_steps", "steps", "max_iters", "max_iterations", "iterations")  # fmt: skip
"""Names of settings, or of numbers that are exposed, that say how many steps there are."""
EPOCH_TOTALS = ("epochs", "max_epochs", "num_epochs", "n_epochs", "total_epochs", "num_train_epochs", "train_epochs")


class Counted(NamedTuple):
    """What counts towards the end of a run: a number of its events, and its total."""

    name: str
    on: str
    total: float
    source: str
    """Where the total comes from."""
    step: str = ""
    """For epochs: the number of the same events that counts steps, if there is one."""


def counted(run: Run) -> Counted | None:
    """Return what counts towards the end of ``run``; None: nothing says when it ends."""
    scalars = [one for one in run.scalars if not one.exposed]
    totals = _totals(run)
    for names, wanted in ((STEPS, STEP_TOTALS), (EPOCHS, EPOCH_TOTALS)):
        number = _first(scalars, names)
        total = next((totals[name] for name in wanted if name in totals), None)
        if number is not None and total is not None:
            value, source = total
            step = _first([one for one in scalars if one.on == number.on], STEPS) if names is EPOCHS else None
            return Counted(number.name, number.on, value, source, "" if step is None else step.name)
    return None


def _first(scalars: Iterable[ScalarInfo], names: Iterable[str]) -> ScalarInfo | None:
    """Return the scalar with the first of ``names``, on the commonest events."""
    by_name: dict[str, list[ScalarInfo]] = {}
    for one in scalars:
        by_name.setdefault(one.name, []).append(one)
    found = next((by_name[name] for name in names if name in by_name), [])
    return max(found, key=lambda one: one.last, default=None)


def _totals(run: Run) -> dict[str, tuple[float, str]]:
    """Return positive numbers of the config and of exposed things, by last name."""
    found = {one.name.rpartition(".")[2]: (one.value, f"{one.name} of the job") for one in run.scalars}
    with contextlib.suppress(LooptapError):  # of an older agent, or one that does not answer
        found |= {name.rpartition(".")[2]: (value, f"{name} of the config") for name, value in run.config.items()}
    return {
        name: (float(value), source) for name, (value, source) in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }  # fmt: skip


class EpochPlace:
    """How many epochs are done, from the epoch of events and the step within."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._epoch = self._begin = self._newest = self._length = 0.0

    def done(self, epoch: float, step: float) -> float:
        """Return the epochs that are done since the first event.

        Parts of one count as soon as the steps of an epoch are known.

        >>> place = EpochPlace()
        >>> [place.done(step // 4, step) for step in (0, 1, 3, 4, 6, 8)]
        [0.0, 0.0, 0.0, 1.0, 1.5, 2.0]
        """
        if self._first is None:
            self._first, self._epoch, self._begin = epoch, epoch, step
        elif epoch > self._epoch:
            self._length = (step - self._begin if step > self._begin else self._newest - self._begin + 1) / (
                epoch - self._epoch
            )
            self._epoch, self._begin = epoch, step
        self._newest = step
        inside = (step - self._begin) / self._length if self._length else 0.0
        return epoch - self._first + min(max(inside, 0.0), _MAX_EPOCH_SHARE)


class GuessedReports:
    """Reports like those of a job's `Progress`, made here from its steps or epochs.

    The history of these numbers gives the speed since the run began.
    """

    title, traceback, error_count = "a guess", "", 0

    def __init__(self, run: Run, what: Counted, every: float) -> None:
        self.what, self.on = what, what.on
        self._stream: LiveStream = run.stream(", ".join(filter(None, (what.name, what.step))), on=what.on)
        self._place, self._every, self._shown = EpochPlace(), every, -math.inf
        self._progress: Progress | None = None
        self._now = self._counted = 0.0
        self._read = self._number = 0

    @property
    def state(self) -> str:
        """The state of the stream it reads."""
        return self._stream.state

    @property
    def reason(self) -> str:
        """Why that stream has ended."""
        return self._stream.reason

    def records_after(self, number: int) -> list[Record]:
        """Return a report if there are new events, and it is time."""
        records = [record for record in self._stream.records_after(self._read) if record.error is None]
        for record in records:
            self._count(record)
        if self._progress is None or not records or time.monotonic() - self._shown < self._every:
            return []
        self._shown, self._number = time.monotonic(), self._number + 1
        what = self.what
        report: Mapping[str, Any] = {
            **self._progress.report, "guess": f"{what.name} of {what.on!r} and {what.source}, {what.total:,.0f}",
        }  # fmt: skip
        return [records[-1]._replace(number=self._number, value=report)]

    def _count(self, record: Record) -> None:
        from looptap.training.progress import Progress

        self._read, what = record.number, self.what
        done = self._place.done(*record.value) if what.step else float(record.value)
        if self._progress is None:  # from here on there is a speed
            self._now, self._counted = record.time, done
            left = what.total - done
            self._progress = Progress(budget=max(left, 1e-6), clock=lambda: self._now)
            self._progress.trained(0.0)  # the time of training begins here
        elif done > self._counted:
            self._now = max(self._now, record.time)
            self._progress.trained(done - self._counted)
            self._counted = done
