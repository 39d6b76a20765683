"""Selects the run that a name means."""

from __future__ import annotations

import fnmatch
import glob
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from pathlib import Path
from typing import TypeVar

from looptap.client.directory.listing import RunListing
from looptap.client.rank_numbers import numbered
from looptap.protocol.errors import RUN_ENDED, LinkError, NoSuchRun, RunEnded, SeveralRuns, UnsafeFile
from looptap.protocol.file_names import on_disk
from looptap.protocol.files.connection import MAX_FILE_BYTES
from looptap.protocol.files.ended_runs import Ended, ended
from looptap.protocol.files.regular_files import read_regular
from looptap.protocol.keys import OPERATOR
from looptap.store.layout.run_path import kept
from looptap.streams.errors import LooptapError
from looptap.streams.expressions import nearest

Found = TypeVar("Found")


def select(listed: Sequence[RunListing], name: str | None, rank: int | None, directory: Path) -> RunListing:
    """Return the one run of ``listed`` that ``name`` means."""
    usable = one_role_each(listed)
    meant = usable if name is None else matching(usable, name, _known_as, lambda run: run.alive is not False)
    living = [run for run in meant if run.alive is not False]
    if not living:
        raise _nothing(listed, usable, meant, name, directory)
    if name is not None and len(living) > 1:
        raise SeveralRuns(
            f"{len(living)} runs match {name!r}; name one by its id:\n" + "\n".join(f"  {run}" for run in living)
        )
    run = living[0]
    ranks = listings_by_rank(run)
    if rank is None:
        return next((each for each in ranks.values() if each.id == name), run)
    if rank not in ranks:
        raise NoSuchRun(f"The run {run.id} has no agent on rank {rank}; there is one on: {numbered(ranks)}.")
    return ranks[rank]


def as_path(name: str | os.PathLike[str] | None) -> Path | None:
    """Return ``name`` as a path if it looks like one: names of runs have no slash."""
    if name is None:
        return None
    path = Path(name)
    if isinstance(name, str) and not any(separator in name for separator in filter(None, (os.sep, os.altsep))):
        return path if name.endswith(".json") and _has_keys(path) else None
    return path.expanduser()


def _has_keys(path: Path) -> bool:
    """Return False for a missing file, or one that is no connection file."""
    try:
        return b'"server_public"' in read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def refuse_stored(path: Path) -> None:
    """Raise NoSuchRun if a stored run is at ``path``."""
    from looptap.store.reader import is_stored  # not at the top: a listing needs no store

    if is_stored(path):
        raise NoSuchRun(
            f"{path} is a stored run, and only live runs can be attached to. looptap.open({str(path)!r}) gives its "
            f"streams and commands; in the shell: looptap open, watch, plot, commands, compare or export "
            f"{shlex.quote(str(path))}."
        )


def listings_by_rank(run: RunListing) -> Mapping[int, RunListing]:
    """Return the listings of a run's ranks."""
    return run.members or {run.rank: run}


def one_role_each(listed: Sequence[RunListing]) -> list[RunListing]:
    """Return for each run and rank the usable file of the most powerful role."""
    best: dict[tuple[str, int], RunListing] = {}
    for run in listed:
        if run.problem:
            continue
        key = run.id, run.rank
        if key not in best or run.role == OPERATOR:
            best[key] = run
    return list(best.values())


def matching(
    runs: Sequence[Found],
    name: str,
    known_as: Callable[[Found], Iterable[tuple[str, str]]],
    usable: Callable[[Found], bool],
) -> list[Found]:
    """Return the runs that match best: by id, name, pattern, or beginning of an id.

    ``known_as`` gives the ids and names of a run, one for each of its ranks. A run that is not ``usable``, such as an
    ended one, does not hide others.
    """
    ways: tuple[Callable[[str, str], bool], ...] = (
        lambda id, title: id == name,
        lambda id, title: title == name,
        lambda id, title: fnmatch.fnmatchcase(id, name) or fnmatch.fnmatchcase(title, name),
        lambda id, title: id.startswith(name),
    )
    found = [[run for run in runs if any(fits(*known) for known in known_as(run))] for fits in ways]
    return next((some for some in found if any(map(usable, some))), next(filter(None, found), []))


def _known_as(run: RunListing) -> list[tuple[str, str]]:
    return [(rank.id, rank.name) for rank in listings_by_rank(run).values()]


def _nothing(
    listed: Sequence[RunListing],
    usable: Sequence[RunListing],
    meant: Sequence[RunListing],
    name: str | None,
    directory: Path,
) -> LinkError:
    """Return the error of a name that means no living run."""
    living = [run for run in usable if run.alive is not False]
    alive = f"Alive: {_names(living)}." if living else ""
    past = [_past(run.started, _ran(run), alive, _stored(run.id, run.store)) for run in _over(directory, name)[:1]]
    newest = nlargest(1, meant, key=lambda run: run.started)
    past += [_past(run.started, _gone(run), alive, _stored(run.id)) for run in newest]
    if past:
        return max(past, key=lambda error: error.started)
    problems = [run.problem for run in listed if run.problem]
    if name is None and problems:
        return UnsafeFile(problems[0])
    what, place = "No runs found" if name is None else f"No run matches {name!r}", _place(directory)
    near, elsewhere = nearest(name or "", {run.name for run in living}), _kept(name or "")
    if alive or elsewhere:
        looked = "" if near else f"Looked in {place}."
        return NoSuchRun(_sentences(f"{what}.", near, alive, looked, elsewhere))
    unusable = f". A file there cannot be used: {problems[0]}" if problems else "."
    return NoSuchRun(
        f"{what} ({place}). A run is listed while its process has a looptap.Agent, in the directory that its "
        "own LOOPTAP_DIR names. If the job has another one, say so: export LOOPTAP_DIR=…, or directory=…; where jobs "
        f"run on other machines, let both sides share a directory{unusable}"
    )


def _sentences(*texts: str) -> str:
    return " ".join(filter(None, texts))


def _past(started: float, *texts: str) -> RunEnded:
    error = RunEnded(_sentences(*texts))
    error.started = started
    return error


def _over(directory: Path, name: str | None) -> list[Ended]:
    return [run for run in ended(directory) if _fits(run, name)]


def _fits(run: Ended, name: str | None) -> bool:
    """Return True if ``name`` means a run that has ended."""
    if name is None or name in (run.id, run.name):
        return True
    fits = [fnmatch.fnmatchcase(text, name) for text in (run.id, run.name)]
    return any(fits) or run.id.startswith(f"{name}-")


def _ran(run: Ended) -> str:
    reason = f": {run.reason.rstrip('.')}" if run.reason not in ("", RUN_ENDED) else ""
    return f"The run {run.id} ran from {_day(run.started)} to {_day(run.ended)} and has ended{reason}."


def _gone(run: RunListing) -> str:
    return f"The run {run.id} has ended: {run.end}. It began {_day(run.started)}."


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _stored(id: str, path: str = "") -> str:
    """Describe where an ended run is stored; empty if it is not."""
    files = [Path(on_disk(path))] if path else kept(glob.escape(id))
    if not files or not files[0].exists():
        return ""
    return f"To see what it stored: looptap open, or looptap plot {shlex.quote(str(files[0]))}"


def _place(directory: Path) -> str:
    """Describe the directory that was searched, and why that one."""
    named = os.environ.get("LOOPTAP_DIR")
    if not named:
        return f"{directory}, on {socket.gethostname()}, as LOOPTAP_DIR is not set"
    named_it = Path(named).expanduser().absolute() == directory
    return f"{directory}, which LOOPTAP_DIR names" if named_it else str(directory)


def _kept(name: str) -> str:
    """Describe the newest stored run of this name; empty if there is none."""
    escaped = glob.escape(name)
    files = [*kept(escaped), *kept(f"{escaped}-[0-9]*")] if name else []
    if not files:
        return ""
    from looptap.store.reader import open as open_stored

    path = shlex.quote(str(files[0]))
    try:
        with open_stored(files[0]) as stored:
            facts, alive = stored.metadata, stored.alive
    except LooptapError:
        return f"A run of that name is stored; see: looptap open {path}"
    if not alive:
        return f"A run of that name has ended; see: looptap open {path}"
    where = facts.get("announced")
    return (
        f"A run of that name, {facts.get('id', name)}, process {facts.get('pid')} on {facts.get('host')}, is alive "
        f"and writes to {path}. It announces itself in another directory: export LOOPTAP_DIR="
        f"{shlex.quote(str(where)) if where else '…'}"
    )


def _names(listed: Sequence[RunListing]) -> str:
    ids = list(dict.fromkeys(run.id for run in listed))
    return ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
