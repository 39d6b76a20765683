"""A guess of when a run without `Progress` will be done.

It follows one thing that counts: a number of the events, a variable of the job, or the progress bar around its loop.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from looptap.client.estimates import commonest
from looptap.client.run import Run
from looptap.streams.counts import numbers_named
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Record

if TYPE_CHECKING:
    from looptap.client.streams.live import LiveStream

_MAX_EPOCH_SHARE = 0.99
MAX_FRACTION = 0.999
"""The largest fraction of a guess: only the job knows that it is done."""
SIGHT_TIMEOUT_SECONDS = 5.0
"""How long to wait for an event at which to look what the job has."""
_BAR_INTERVAL_SECONDS = 0.5
"""Seconds between two looks at a bar."""
ONE_PASS = "These are the times of one pass over the data; how many follow is not known."
"""The note of a bar that is not around the whole loop."""

STEPS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "n_iter", "batch_idx", "i")
"""Names of numbers of events that count steps, the likeliest first."""
STEP_VARIABLES = ("global_step", "completed_steps", "iteration", "n_iter", "iter_num", "step")
"""The same of variables of a script; a number that begins again in each epoch counts for less."""
EPOCHS = ("epoch", "trainer/epoch", "current_epoch", "ep")
STEP_TOTALS = (
    "max_steps",
    "total_steps",
    "num_steps",
    "n_steps",
    "train_steps",
    "num_train_steps",
    "num_training_steps",
    "max_train_steps",
    "steps",
    "max_iters",
    "max_iterations",
    "iterations",
)
"""Names of settings, or of numbers that are exposed, that say how many steps there are."""
EPOCH_TOTALS = ("epochs", "max_epochs", "num_epochs", "n_epochs", "total_epochs", "num_train_epochs", "train_epochs")
EPISODES = ("episode", "i_episode")
EPISODE_TOTALS = ("episodes", "num_episodes", "n_episodes", "max_episodes", "total_episodes")
"""The same of episodes, in variables of a script that learns from them."""
HOLDERS = ("args", "config", "cfg", "conf", "opt", "opts", "options", "hparams", "settings", "params", "training_args")
"""What scripts call the object that has them."""

IN_EVENTS = (STEPS, STEP_TOTALS), (EPOCHS, EPOCH_TOTALS)
IN_VARIABLES = (EPOCHS, EPOCH_TOTALS), (STEP_VARIABLES, STEP_TOTALS), (EPISODES, EPISODE_TOTALS)
"""Names of what counts, with those of its totals, the surest first."""

Totals: TypeAlias = dict[str, tuple[float, str]]
"""Numbers that limit a run, and where they come from, by name."""
Number: TypeAlias = tuple[str, str, float | None]
"""The first fields of `Counted`."""


class CountedPlace(NamedTuple):
    """How far the thing that counts was at one event."""

    number: float
    total: float
    source: str
    """What the guess is made from, for people."""
    done: float
    """How much of the total is done, if this is the first place that is read."""
    initial: float
    """What was done when the thing began, which is when its speed begins."""
    began: float = 0.0
    """Another value for another thing, such as the next bar."""
    elapsed: float = 0.0
    """Seconds since it began."""
    note: str = ""


class Counted(NamedTuple):
    """A number at the events of a run that counts towards its end."""

    name: str
    """The query that reads it."""
    on: str
    done: float | None
    """What was over at the first value; None: what it says, or nothing at the first event."""
    total: float
    source: str
    """Where the total comes from."""

    def place(self, record: Record) -> CountedPlace:
        """Return how far the run was at a value of the number."""
        number = float(record.value)
        done = self.done
        if done is None:
            done = 0.0 if record.event <= 1 and number <= 1 else number
        source = f"{self.name} of {self.on!r} and {self.source}, {self.total:,.0f}"
        return CountedPlace(number, self.total, source, done, done)


def guess_of(run: Run, every: float) -> Guess | None:
    """Return guesses of when ``run`` is done, at most one in ``every`` s.

    None: nothing says when it ends.
    """
    what = counted(run)
    if what is None:
        return bar_guess(run, every)
    return Guess(run.stream(what.name, on=what.on, history=True), what.on, what.place, every)


def counted(run: Run) -> Counted | None:
    """Return the number that counts towards the end of ``run``, or None.

    Numbers of events and of the config come first; without, the variables and exposed objects are asked at one event.
    """
    by_count = sorted(run.scalars, key=lambda one: one.last)  # of several with a name the commonest event's counts
    numbers: dict[str, Number] = {one.name: (one.query, one.on, None) for one in by_count if not one.exposed}
    totals = _totals(run)
    if found := _matched(numbers, totals, IN_EVENTS):
        return found
    sight, on = _in_sight(run), commonest(run)
    totals = _by_last_name(sight, "{} of the job") | totals
    epochs = run.events().get("epoch")
    variables: dict[str, Number] = {name: (name, on, epochs if name in EPOCHS else None) for name in sight}
    return _matched(numbers, totals, IN_EVENTS) or _matched(variables, totals, IN_VARIABLES)


def _matched(
    numbers: Mapping[str, Number], totals: Totals, names: Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
) -> Counted | None:
    """Return the first of the numbers that has a total."""
    for counting, limiting in names:
        number = next((numbers[name] for name in counting if name in numbers), None)
        total = next((totals[name] for name in limiting if name in totals), None)
        if number is not None and total is not None:
            return Counted(*number, *total)
    return None


def _in_sight(run: Run) -> dict[str, float]:
    """Return numbers under names that count or limit, at the next event."""
    totals = (*STEP_TOTALS, *EPOCH_TOTALS, *EPISODE_TOTALS)
    names = [*STEPS, *EPOCHS, *STEP_VARIABLES, *EPISODES, *totals, *(name.upper() for name in totals)]
    found = _asked(run, functools.partial(numbers_named, names=names, holders=HOLDERS))
    return found if isinstance(found, dict) else {}


def _asked(run: Run, query: Callable[..., Any]) -> Any:
    """Return the value of a query at the next common event; None without one."""
    with contextlib.suppress(LooptapError):  # of an older agent, or no event
        stream = run.stream(query, on=commonest(run))
        value = stream.wait(1, SIGHT_TIMEOUT_SECONDS)[0]
        stream.detach()
        return value
    return None


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
        name.rpartition(".")[2].lower(): (float(value), source.format(name))
        for name, value in [*numbers.items()][::-1]
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }


def bar_guess(run: Run, every: float) -> Guess | None:
    """Return guesses from the outermost open bar of tqdm; None: there is none.

    A bar that began after the first event, or goes over a DataLoader, is one pass: then the next one begins again.
    """
    from looptap.integrations.tee.bars import outer_bar

    if not isinstance(_asked(run, outer_bar), Mapping):
        return None
    on = commonest(run)
    place = functools.partial(bar_place, first_event=_first_event(run, on))
    return Guess(run.stream(outer_bar, on=on, throttle=_BAR_INTERVAL_SECONDS), on, place, every)


def bar_place(record: Record, first_event: float) -> CountedPlace | None:
    """Return how far a bar was, of a run with its first event at ``first_event``."""
    bar = record.value
    if not isinstance(bar, Mapping):
        return None
    name = f" {bar['name']!r}" if bar["name"] else ""
    source = f"the bar{name} of tqdm, {bar['done']:,.0f} of {bar['total']:,.0f}"
    note = ONE_PASS if bar["loader"] or bar["began"] > first_event else ""
    done = bar["done"]
    return CountedPlace(done, bar["total"], source, done, bar["initial"], bar["began"], bar["elapsed"], note)


def _first_event(run: Run, on: str) -> float:
    """Return the wall time of the first kept event; infinity: unknown."""
    with contextlib.suppress(LooptapError):
        query = next((one.query for one in run.scalars if one.on == on and not one.exposed), None)
        if query is not None:
            kept = run.stream(query, on=on, history=True)
            kept.wait(1, SIGHT_TIMEOUT_SECONDS)
            first = kept.records_after(0)[0].wall
            kept.detach()
            return first
    return math.inf


class Passed:
    """How much of what counts is done, with parts that are between two numbers."""

    def __init__(self, done: float = 0.0) -> None:
        self._done = done
        """What was done at the first event."""
        self._first: float | None = None
        self._number = self._begin = self._length = 0.0

    def at(self, number: float, event: float) -> float:
        """Return what is done at an event that has ``number``.

        Parts of one count as soon as its number of events is known.

        >>> epochs = Passed()
        >>> [epochs.at(event // 4, event) for event in (0, 1, 3, 4, 6, 8)]
        [0.0, 0.0, 0.0, 1.0, 1.5, 2.0]
        """
        if self._first is None:
            self._first, self._number, self._begin = number, number, event
        elif number > self._number:
            self._length = (event - self._begin) / (number - self._number)
            self._number, self._begin = number, event
        inside = (event - self._begin) / self._length if self._length else 0.0
        return self._done + number - self._first + min(max(inside, 0.0), _MAX_EPOCH_SHARE)


class CountedTask:
    """One thing that counts, from when it began, with the estimate of its end."""

    def __init__(self, at: float, place: CountedPlace, note: str) -> None:
        from looptap.training.progress import Progress

        self.place, self._note = place, note
        self._now, self._done, self._passed = at, place.initial, Passed(place.done)
        self._progress = Progress(budget=max(place.total - place.initial, 1e-6), clock=lambda: self._now)
        self._progress.trained(0.0)  # the time of training begins here

    def advance(self, record: Record, place: CountedPlace) -> None:
        """Count up to a place, if that is further than before."""
        self.place = place
        done = self._passed.at(place.number, record.event)
        if done > self._done:
            self._now = max(self._now, record.time)
            self._progress.trained(done - self._done)
            self._done = done

    def report(self) -> dict[str, Any]:
        """Return a report like that of a job's `Progress`."""
        place, report = self.place, self._progress.report
        fraction = min(self._done / place.total, MAX_FRACTION)
        own = {"fraction": fraction, "overhead": 0.0, "stop_at": None, "guess": place.source}
        return {**report, **own, "note": place.note or self._note or report["note"]}


class Guess:
    """Reports like those of a job's `Progress`, made here from one stream of a run.

    ``place`` returns how far the run was at a value of it.
    """

    title, traceback, error_count = "a guess", "", 0

    def __init__(
        self, stream: LiveStream, on: str, place: Callable[[Record], CountedPlace | None], every: float
    ) -> None:
        self.on = on
        self._stream, self._place = stream, place
        self._every, self._shown = every, -math.inf
        self._task: CountedTask | None = None
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
            if (place := self._place(record)) is not None:
                self._follow(record, place)
        if self._task is None or not records or time.monotonic() - self._shown < self._every:
            return []
        self._shown, self._number = time.monotonic(), self._number + 1
        return [records[-1]._replace(number=self._number, value=self._task.report())]

    def _follow(self, record: Record, place: CountedPlace) -> None:
        task = self._task
        if task is None or place.began != task.place.began:
            note = ONE_PASS if task else ""  # another one follows: neither is the whole run
            self._task = task = CountedTask(record.time - place.elapsed, place, note)
        task.advance(record, place)
