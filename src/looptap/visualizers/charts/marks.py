"""`Marks`: commands and restarts as vertical lines of a chart."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from looptap.client.control.controls import CommandRecord, command_name
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.legends import run_of
from looptap.visualizers.charts.series import Series
from looptap.visualizers.drawing.picture import VerticalLine

MAX_MARKS = 200
"""Vertical lines that a chart shows; of more, the newest."""
SETTLE_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for the commands of the runs before a picture is saved."""
_QUERY_INTERVAL_SECONDS = 1.0  # seconds between two questions for the commands of a run


class CommandMark(NamedTuple):
    """A vertical line: its text, and an event number or time as its place."""

    text: str
    event: str
    number: int
    wall: float
    run: Any = None
    """The run it was for, if known: other runs have other events and times."""


class WatchedCommands:
    """The commands of one run, requested at most once per second. Does not block."""

    def __init__(self) -> None:
        self.known: list[CommandMark] = []
        self._asked: Future[Any] | None = None
        self._looked = -_QUERY_INTERVAL_SECONDS

    def look(self, run: Any) -> None:
        """Read the reply if it has arrived; request again once per second."""
        answer = self._asked
        if answer is not None and answer.done():
            self._asked = None
            if answer.exception() is None:
                self.known = command_marks(answer.result())[-MAX_MARKS:]
        if self._asked is not None or time.monotonic() - self._looked < _QUERY_INTERVAL_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            if hasattr(run, "commands_soon"):
                self._asked = asked = run.commands_soon()
                if asked.done():
                    self.look(run)
            else:
                self.known = command_marks(run.commands)[-MAX_MARKS:]
        except Exception:  # the run is gone or its file closed: what is known stays
            return

    def ask(self, run: Any) -> None:
        """Request again: an earlier reply lacks the newest commands."""
        self._asked, self._looked = None, -_QUERY_INTERVAL_SECONDS
        self.look(run)

    def wait(self, run: Any, seconds: float) -> None:
        """Read the reply if it arrives within ``seconds``."""
        asked = self._asked
        if asked is not None:
            wait([asked], max(0.0, seconds))
            self.look(run)


_watched: weakref.WeakKeyDictionary[Any, WatchedCommands] = weakref.WeakKeyDictionary()  # charts of a run ask it once


class Marks:
    """The commands that a chart marks, from streams, lists and runs."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[Stream, int]] = {}
        self._runs: list[tuple[Any, WatchedCommands]] = []
        self._fixed: list[CommandMark] = []
        self._shown: list[CommandMark] = []

    def add(self, source: Any) -> None:
        """Show the commands of ``source``: a run, or a stream or list of mappings.

        A mapping has name, old, new and outcome, and one of ``number``, ``time`` and ``wall`` as its place.
        """
        if isinstance(source, Stream):
            self._streams.setdefault(id(source), (source, 0))
        elif hasattr(type(source), "commands"):
            if not any(run is source for run, _ in self._runs):
                try:
                    self._runs.append((source, _watched.setdefault(source, WatchedCommands())))
                except TypeError:  # it cannot be a key
                    self._runs.append((source, WatchedCommands()))
        else:
            self._fixed += command_marks(source)

    def forget_runs(self) -> None:
        """Show no commands of runs: for readers who may see streams only."""
        self._runs.clear()

    def pull(self) -> bool:
        """Read new commands; return whether there were any."""
        for key, (stream, taken) in self._streams.items():
            if stream.newest > taken:
                self._streams[key] = (stream, stream.newest)
                for record in stream.records_after(taken):
                    for command in command_marks([record.value]):
                        placed = command.number or command.wall
                        here = command._replace(event=stream.on, number=record.event, wall=record.wall)
                        self._fixed.append(command if placed else here)
        del self._fixed[:-MAX_MARKS]
        known = list(self._fixed)
        for run, watched in self._runs:
            watched.look(run)
            known += [command._replace(run=run) for command in watched.known]
        changed, self._shown = known != self._shown, known
        return changed

    def rules(self, series: list[Series]) -> tuple[VerticalLine, ...]:
        """Return a line for each change of the overhead limit, restart and command.

        Where there is no room for the words of all, the later ones have theirs.
        """
        events, limits = list[VerticalLine](), list[VerticalLine]()
        for command in self._shown:
            at = _place(command, [one for one in series if command.run in (None, run_of(one.stream))])
            if at is not None:
                events.append(VerticalLine(at, command.text))
        for one in series:
            for found, changes in ((events, _restarts(one.stream)), (limits, _limits(one.stream))):
                for number, text in changes:
                    at = one.layer.place(one, "number", number)
                    if at is not None:
                        found.append(VerticalLine(at, text))
        rules = [*sorted(limits, key=lambda rule: rule.x), *sorted(events, key=lambda rule: rule.x)]
        return tuple({(rule.x, rule.text): rule for rule in rules}.values())[-MAX_MARKS:]


def _restarts(stream: Stream) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each item of a stream after a restart."""
    for seam in stream.seams:
        yield seam.after + 1, f"restart: {seam.new}"


def _limits(stream: Stream) -> Iterator[tuple[int, str]]:
    """Yield (number, text) for each item of a stream where its budget changed."""
    for stretch in stream.limited:
        yield stretch.first, "budget: fewer events"
        if stretch.last is not None:
            yield stretch.last + 1, "budget: all events"


def settle(several: Iterable[Marks], seconds: float = SETTLE_TIMEOUT_SECONDS) -> None:
    """Wait up to ``seconds`` for the newest commands of all runs."""
    watched = {id(one): (run, one) for marks in several for run, one in marks._runs}
    for run, one in watched.values():
        one.ask(run)
    deadline = time.monotonic() + seconds
    for run, one in watched.values():
        one.wait(run, deadline - time.monotonic())


def _place(command: CommandMark, series: list[Series]) -> float | None:
    """Return the x of a command: by event if a stream has that type, else by time."""
    for one in series:
        if command.number and command.event in ("", one.stream.on):
            at = one.layer.place(one, "event", command.number)
            if at is not None:
                return at
    for one in series:
        if command.wall:
            at = one.layer.place(one, "wall", command.wall)
            if at is not None:
                return at
    return None


def command_marks(source: Iterable[Any]) -> list[CommandMark]:
    """Return the marks of records, mappings or store rows, except refused commands.

    >>> command_marks([{"name": "lr", "old": 0.1, "new": 0.01, "outcome": "done", "number": 7}])[0].text
    'lr 0.1 → 0.01'
    """
    marks = (_mark_of_record(one) if isinstance(one, CommandRecord) else _mark_of_mapping(one) for one in source)
    return [mark for mark in marks if mark is not None]


def _mark_of_record(record: CommandRecord) -> CommandMark | None:
    what = command_name(record.what, record.name)
    return _mark(what, record.old, record.new, record.outcome, record.event, record.number, record.time)


def _mark_of_mapping(one: Any) -> CommandMark | None:
    if not isinstance(one, Mapping):
        if not hasattr(one, "_asdict"):
            return None
        one = one._asdict()
    get = one.get
    name, what = str(get("name") or ""), str(get("what") or "command")
    what = command_name(what, name).removeprefix("set ")  # a store has both in one
    number, wall = get("number"), get("wall") or get("time") or get("start")
    return _mark(
        what,
        get("old"),
        get("new"),
        str(get("outcome") or "done"),
        str(get("event") or ""),
        number if isinstance(number, int) else 0,
        float(wall) if isinstance(wall, int | float) else 0.0,
    )


def _mark(what: str, old: Any, new: Any, outcome: str, event: str, number: int, wall: float) -> CommandMark | None:
    """Return the mark of a command; None if it was refused and changed nothing."""
    if outcome.startswith("refused"):
        return None
    change = f"{new!r:.20}" if old is None else f"{old!r:.20} → {new!r:.20}"
    text = what if new is None else f"{what} {change}"
    text = text if outcome == "done" else f"{text} ({outcome:.40})"
    return CommandMark(text[:120], event, number, wall)
