"""A guess of when a run without `Progress` will be done, from its events."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from looptap.client.estimates import commonest
from looptap.client.run import Run
from looptap.streams.counts import numbers_named
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Record

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream
    from looptap.store.kept_scalars import ScalarInfo
    from looptap.training.progress import Progress

_MAX_EPOCH_SHARE = 0.99
MAX_FRACTION = 0.999
"""The largest fraction of a guess: only the job knows that it is done."""
SIGHT_TIMEOUT_SECONDS = 5.0
"""How long to wait for an event at which to look what the job has."""

STEPS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "n_iter", "batch_idx", "i")
"""Names of numbers of events that count steps, the likeliest first."""
STEP_VARIABLES = ("global_step", "completed_steps", "iteration", "n_iter", "iter_num", "step")
"""The same of variables of a script; a number that begins again in each epoch counts for less."""
EPOCHS = ("epoch", "trainer/epoch", "current_epoch", "ep")
STEP_TOTALS = ("max_steps", "total_steps", "num_steps", "n_steps", "train_steps", "num_train_steps",
               "num_training_steps", "max_train_steps", "steps", "max_iters", "max_iterations",
               "iterations")  # fmt: skip
"""Names of settings, or of numbers that are exposed, that say how many steps there are."""
EPOCH_TOTALS = ("epochs", "max_epochs", "num_epochs", "n_epochs", "total_epochs", "num_train_epochs", "train_epochs")
EPISODES = ("episode", "i_episode")
EPISODE_TOTALS = ("episodes", "num_episodes", "n_episodes", "max_episodes", "total_episodes")
"""The same of episodes, in variables of a script that learns from them."""
HOLDERS = ("args", "config", "cfg", "conf", "opt", "opts", "options", "hparams", "settings", "params", "training_args")
"""What scripts call the object that has them."""


Totals: TypeAlias = dict[str, tuple[float, str]]
"""Numbers that limit a run, and where they come from, by name."""


class Counted(NamedTuple):
    """What counts towards the end of a run: a number of its events, and its total."""

    name: str
    """The query that reads it."""
    on: str
    total: float
    source: str
    """Where the total comes from."""
    epochs: bool = False
    """True if it counts epochs."""
    done: float | None = None
    """Epochs that were over at the first value; None: all before the number it has, unless it is the first event's."""


def counted(run: Run) -> Counted | None:
    """Return what counts towards the end of ``run``; None: nothing says when it ends.

    Numbers of events and of the config come first; without, the variables and exposed objects are asked at one event.
    """
    scalars = [one for one in run.scalars if not one.exposed]
    totals, sight = _totals(run), None
    for _ in range(2):
        for names, wanted in ((STEPS, STEP_TOTALS), (EPOCHS, EPOCH_TOTALS)):
            number = _first(scalars, names)
            total = next((totals[name] for name in wanted if name in totals), None)
            if number is not None and total is not None:
                return Counted(number.query, number.on, *total, names is EPOCHS)
        if sight is None:
            sight = _in_sight(run)
            totals = _by_last_name(sight, "{} of the job") | totals
    return _of_variables(run, sight or {}, totals)


def _in_sight(run: Run) -> dict[str, float]:
    """Return numbers under names that count or limit, at the next event."""
    totals = (*STEP_TOTALS, *EPOCH_TOTALS, *EPISODE_TOTALS)
    names = [*STEPS, *EPOCHS, *STEP_VARIABLES, *EPISODES, *totals, *(name.upper() for name in totals)]
    try:
        asked = run.stream(functools.partial(numbers_named, names=names, holders=HOLDERS), on=commonest(run))
        found = asked.wait(1, SIGHT_TIMEOUT_SECONDS)[0]
        asked.detach()
    except LooptapError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_variables(run: Run, sight: Mapping[str, float], totals: Totals) -> Counted | None:
    """Return what variables of a script count towards, which events do not carry."""
    on = commonest(run)
    for names, wanted in ((EPOCHS, EPOCH_TOTALS), (STEP_VARIABLES, STEP_TOTALS), (EPISODES, EPISODE_TOTALS)):
        number = next((name for name in names if name in sight), None)
        total = next((totals[name] for name in wanted if name in totals), None)
        if number is not None and total is not None:
            done = float(run.events().get("epoch", sight[number])) if names is EPOCHS else None
            return Counted(number, on, *total, names is EPOCHS, done)
    return None


def _first(scalars: Iterable[ScalarInfo], names: Iterable[str]) -> ScalarInfo | None:
    """Return the scalar with the first of ``names``, on the commonest events."""
    by_name: dict[str, list[ScalarInfo]] = {}
    for one in scalars:
        by_name.setdefault(one.name, []).append(one)
    found = next((by_name[name] for name in names if name in by_name), [])
    return max(found, key=lambda one: one.last, default=None)


def _totals(run: Run) -> Totals:
    """Return positive numbers of the config and of exposed things, by last name."""
    found = _by_last_name({one.name: one.value for one in run.scalars}, "{} of the job")
    with contextlib.suppress(LooptapError):  # of an older agent, or one that does not answer
        found |= _by_last_name(dict(run.config), "{} of the config")
    return found


def _by_last_name(numbers: Mapping[str, Any], source: str) -> Totals:
    """Return the numbers above 0, by last name.

    Of several the first counts: a variable rather than an argument.
    """
    return {
        name.rpartition(".")[2].lower(): (float(value), source.format(name)) for name, value in [*numbers.items()][::-1]
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }  # fmt: skip


class EpochPlace:
    """How many epochs are done, from the epoch and the number of each event."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._epoch = self._begin = self._length = 0.0

    def done(self, epoch: float, event: float) -> float:
        """Return the epochs that are done since the first event.

        Parts of one count as soon as the events of an epoch are known.

        >>> place = EpochPlace()
        >>> [place.done(event // 4, event) for event in (0, 1, 3, 4, 6, 8)]
        [0.0, 0.0, 0.0, 1.0, 1.5, 2.0]
        """
        if self._first is None:
            self._first, self._epoch, self._begin = epoch, epoch, event
        elif epoch > self._epoch:
            self._length = (event - self._begin) / (epoch - self._epoch)
            self._epoch, self._begin = epoch, event
        inside = (event - self._begin) / self._length if self._length else 0.0
        return epoch - self._first + min(max(inside, 0.0), _MAX_EPOCH_SHARE)


class Guess:
    """Reports like those of a job's `Progress`, made here from one stream of a run."""

    title, traceback, error_count = "a guess", "", 0

    def __init__(self, stream: LiveStream, on: str, every: float) -> None:
        self.on = on
        self._stream = stream
        self._every, self._shown = every, -math.inf
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
            self._read = record.number
            self.count(record)
        if self._progress is None or not records or time.monotonic() - self._shown < self._every:
            return []
        self._shown, self._number = time.monotonic(), self._number + 1
        report = {**self._progress.report, "overhead": 0.0, "stop_at": None, **self.basis()}
        return [records[-1]._replace(number=self._number, value=report)]

    def count(self, record: Record) -> None:
        """Take a value of the stream into account, by `begin` and `advance`."""
        raise NotImplementedError

    def basis(self) -> Mapping[str, Any]:
        """Return what the guess is made from, and the fraction that is done."""
        raise NotImplementedError

    def begin(self, at: float, left: float, counted: float) -> None:
        """Begin at a time with this much to count."""
        from looptap.training.progress import Progress

        self._now, self._counted = at, counted
        self._progress = Progress(budget=max(left, 1e-6), clock=lambda: self._now)
        self._progress.trained(0.0)  # the time of training begins here

    def advance(self, at: float, counted: float) -> None:
        """Count up to ``counted``, if that is more than before."""
        if self._progress is not None and counted > self._counted:
            self._now = max(self._now, at)
            self._progress.trained(counted - self._counted)
            self._counted = counted


class GuessedReports(Guess):
    """Reports from the steps or epochs of events, whose history has the speed."""

    def __init__(self, run: Run, what: Counted, every: float) -> None:
        super().__init__(run.stream(what.name, on=what.on, history=True), what.on, every)
        self.what, self._place, self._before = what, EpochPlace(), 0.0

    def basis(self) -> Mapping[str, Any]:
        """See `Guess.basis`."""
        what = self.what
        return {
            "guess": f"{what.name} of {what.on!r} and {what.source}, {what.total:,.0f}",
            "fraction": min(self._counted / what.total, MAX_FRACTION),
        }  # fmt: skip

    def count(self, record: Record) -> None:
        """See `Guess.count`."""
        what, done = self.what, float(record.value)
        if what.epochs:
            if self._progress is None:
                before = 0.0 if record.event <= 1 else done
                self._before = before if what.done is None else what.done
            done = self._before + self._place.done(done, record.event)
        if self._progress is None:  # from here on there is a speed
            self.begin(record.time, what.total - done, done)
        self.advance(record.time, done)
