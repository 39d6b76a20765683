"""`ComparedRun`: one run of a comparison, live or stored, read once."""

from __future__ import annotations

import contextlib
import glob
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from looptap.client.directory.listing import RunListing
from looptap.client.exported_run import ExportedFile, ExportedRun
from looptap.client.line_figures import Figures, NumberLines, largest_is_best, lines_of
from looptap.client.run import Run
from looptap.client.run_expressions import UNKNOWN
from looptap.protocol.errors import NotAllowed
from looptap.protocol.run_config import RunConfig
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_run import event_folders, is_event_file
from looptap.store.kept_scalars import SPEED, ScalarInfo, Scalars
from looptap.store.layout.run_path import SUFFIX
from looptap.store.queue import COMMANDS
from looptap.store.reader import open as open_stored
from looptap.store.run import StoredRun
from looptap.streams.counts import counts
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Stream

ComparedSource: TypeAlias = Run | StoredRun | RunListing | ExportedRun | ExportedFile | str | Path
"""A run, live or stored or listed, or where stored ones are."""
FACTS = ("name", "id", "state", "started", "duration", "host", "commit")
"""What is known of each run besides its settings and its lines."""
_OF_CONFIG = ("host", "commit")
ATTACH_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for a run that is attached for a comparison."""
_MAX_READERS = 8  # runs that are read at once
_MAX_SCALARS = 24  # of a run whose history is read, besides its declared or kept streams


@dataclass(frozen=True)
class ComparedRun:
    """One run: its settings, and the figures of its lines of numbers."""

    name: str
    id: str
    state: str
    started: float | None
    """Seconds since the epoch; None if unknown."""
    duration: float | None
    """Seconds so far, or until its end."""
    config: RunConfig = field(repr=False)
    lines: Mapping[str, Figures] = field(default_factory=dict, repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    ways: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Whether the best of a line is its min or max, where that was said."""
    problem: str = ""
    """Why something of the run could not be read, if so."""

    def value(self, name: str) -> Any:
        """Return a setting, a fact, or the newest number of a line; or `UNKNOWN`."""
        if name in self.config:
            return self.config[name]
        line = self.line(name)
        found = getattr(self.config if name in _OF_CONFIG else self, name) if name in FACTS else line and line.final
        return UNKNOWN if found is None else found

    def figure(self, function: str, line: str) -> Any:
        """Return a figure of a line; or `UNKNOWN`."""
        found = self.line(line)
        if found is None:
            return UNKNOWN
        if function in ("count", "first", "final"):
            return getattr(found, function)
        value = found.best(function == "max" or (function == "best" and self.largest_is_best(line)))
        return UNKNOWN if math.isnan(value) else value

    def line(self, name: str) -> Figures | None:
        """Return the line of a name or of another name of it."""
        return self.lines.get(name) or self.lines.get(self.aliases.get(name, ""))

    def largest_is_best(self, name: str) -> bool:
        """Return whether the best of a line is its largest number."""
        said = self.ways.get(name) or self.ways.get(self.aliases.get(name, ""))
        return said == "max" if said else largest_is_best(name)

    def plain(self) -> dict[str, Any]:
        """Return the row as plain data, for JSON."""
        row = {name: getattr(self, name) for name in ("name", "id", "state", "started", "duration")}
        figures = {name: self._plain_line(name, line) for name, line in self.lines.items()}
        row |= {"config": dict(self.config), "commit": self.config.commit, "figures": figures}
        return {**row, "problem": self.problem} if self.problem else row

    def _plain_line(self, name: str, line: Figures) -> dict[str, Any]:
        largest = self.largest_is_best(name)
        best, at, best_is = line.best(largest), line.best_at(largest), "max" if largest else "min"
        return {"final": line.final, "best": best, "at": at, "best_is": best_is, "values": line.count}


def compared_runs(sources: Iterable[ComparedSource], ways: Mapping[str, str]) -> list[ComparedRun]:
    """Read runs, several at once.

    A text is the path of a stored run, a folder of them, or a pattern. Of several files, one that cannot be read is a
    row with its problem. Raises TypeError for what is no run, StoreError.
    """
    found = [one for source in sources for one in (_paths(source) if isinstance(source, str | Path) else [source])]
    if strangers := [one for one in found if not isinstance(one, ComparedSource)]:
        raise TypeError(
            "looptap.compare takes a list of runs, of paths of stored runs or of what looptap.runs() lists, not of "
            f"{type(strangers[0]).__name__}."
        )
    if not found:
        return []
    with ThreadPoolExecutor(min(_MAX_READERS, len(found)), "looptap-compare") as pool:
        return list(pool.map(lambda run: _read(run, ways, alone=len(found) == 1), found))


def _paths(text: str | Path) -> list[str | Path]:
    """Return the stored runs that a path, a folder or a pattern means."""
    place = Path(text).expanduser()
    if place.is_dir():
        found = [one for one in sorted(place.glob(f"*{SUFFIX}")) if one.is_file() and not is_event_file(one)]
        inside = [one for one in found if "-rank" not in one.stem] + event_folders(place)
        return [*inside] or [place]
    if glob.has_magic(str(text)):
        return [Path(one) for one in sorted(glob.glob(str(place)))]
    return [place]


def _read(run: Any, ways: Mapping[str, str], *, alone: bool) -> ComparedRun:
    if isinstance(run, RunListing):
        return _of_listing(run, ways)
    if isinstance(run, str | Path):
        try:
            with open_stored(run) as stored:
                return _of_stored(stored, ways)
        except StoreError as error:
            if alone:
                raise
            name = Path(run).stem
            return ComparedRun(name, name, "unusable", None, None, RunConfig(), problem=str(error))
    return _of_stored(run, ways) if isinstance(run, StoredRun | ExportedFile) else _of_live(run, ways)


def _of_listing(listed: RunListing, ways: Mapping[str, str]) -> ComparedRun:
    try:
        with listed.attach(ATTACH_TIMEOUT_SECONDS) as run:
            return _of_live(run, ways)
    except LooptapError as error:
        problem = str(error)
    state = "ended" if listed.alive is False else "unusable" if listed.problem else "silent"
    name = listed.name or listed.path.name
    return ComparedRun(name, listed.id, state, listed.started or None, None, RunConfig(), problem=problem)


def _of_live(run: Run | ExportedRun, ways: Mapping[str, str]) -> ComparedRun:
    problems: list[str] = []
    config = RunConfig()
    try:
        config = run.config
    except NotAllowed:  # a viewer, with whom it is not shared
        problems.append("its config is not shared")
    except LooptapError as error:
        problems.append(str(error))

    @contextlib.contextmanager
    def noting() -> Iterator[None]:
        """Note an error, and go on without what it is about."""
        try:
            yield
        except LooptapError as error:
            problems.append(str(error))

    def reading(query: str, **how: Any) -> Iterator[Stream]:
        """Yield a stream with its history, and close it."""
        with noting(), contextlib.closing(run.stream(query, **how)) as stream:
            yield stream

    def opened() -> Iterator[Stream]:
        known: set[str] = set()
        for one in run.streams:
            if one.name != COMMANDS:
                known.update((one.name, *(one.fields or ())))
                yield from reading(one.name)
        with contextlib.suppress(NotAllowed):  # a viewer reads what is exported
            for scalar in _compared(run.scalars, known):
                yield from reading(scalar.query, on=scalar.on, history=True, name=scalar.name)

    lines, started = NumberLines({}, {}), run.info.started
    with noting():
        lines = lines_of(opened())
    duration, problem = max(0.0, time.time() - started), " ".join(problems)
    return ComparedRun(run.name, run.id, run.state, started, duration, config, *lines, ways, problem)


def _compared(scalars: Scalars, known: set[str]) -> list[ScalarInfo]:
    """Return the scalars that are compared besides streams with ``known`` names.

    Of the speeds there is that of the busiest type of events, after all others.
    """
    found = [
        one
        for one in scalars
        if not (one.name in known or counts(one.name) or one.name == SPEED or isinstance(one.value, bool))
    ]
    speeds = sorted((one for one in scalars if one.name == SPEED), key=lambda one: -one.last)
    return [*found[: _MAX_SCALARS - 1], *speeds[:1]]


def _of_stored(run: StoredRun | ExportedFile, ways: Mapping[str, str]) -> ComparedRun:
    known = {name for one in run.streams for name in (one.name, one.text, *(one.fields or ()))}
    kept = (run.history(one.name, one.on) for one in _compared(run.scalars, known))
    lines = lines_of([*run.streams, *filter(None, kept)])
    started, ended = run.started, run.until if not run.alive else time.time()
    duration = None if started is None or ended is None else max(0.0, ended - started)
    return ComparedRun(run.name, run.id, run.state, started, duration, run.config, *lines, ways)
