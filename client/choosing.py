"""Which of the runs that announce themselves a name means."""

from __future__ import annotations

import fnmatch
import glob
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from looptap.client.jobs import numbered
from looptap.protocol.errors import LinkError, NoSuchRun, RunEnded, SeveralRuns, UnsafeFile
from looptap.protocol.keys import OPERATOR
from looptap.store.places import kept
from looptap.streams.syntax import nearest

if TYPE_CHECKING:
    from looptap.client.discover import RunListing


def chosen(listed: Sequence[RunListing], name: str | None, rank: int | None) -> RunListing:
    """The one run that ``name`` means."""
    usable = one_role_each([run for run in listed if not run.problem])
    matching = usable if name is None else _matching(usable, name)
    living = [run for run in matching if run.alive is not False]
    if not living:
        raise _nothing(listed, usable, matching, name)
    if name is not None and len(living) > 1:
        raise SeveralRuns(
            f"{len(living)} runs match {name!r}; name one by its id:\n" + "\n".join(f"  {run}" for run in living)
        )
    run = living[0]
    ranks = ranks_of(run)
    if rank is None:
        return next((each for each in ranks.values() if each.id == name), run)
    if rank not in ranks:
        raise NoSuchRun(f"The run {run.id} has no agent on rank {rank}; there is one on: {numbered(ranks)}.")
    return ranks[rank]


def ranks_of(run: RunListing) -> Mapping[int, RunListing]:
    """The listings of its ranks."""
    return run.members or {run.rank: run}


def one_role_each(listed: Sequence[RunListing]) -> list[RunListing]:
    """For each run and rank the file that allows most."""
    best: dict[tuple[str, int], RunListing] = {}
    for run in listed:
        key = run.id, run.rank
        if key not in best or run.role == OPERATOR:
            best[key] = run
    return list(best.values())


def _matching(listed: Sequence[RunListing], name: str) -> list[RunListing]:
    """The runs that ``name`` means most exactly: by id, name, pattern, or the beginning of one."""
    for fits in (
        lambda run: run.id == name,
        lambda run: run.name == name,
        lambda run: fnmatch.fnmatchcase(run.id, name) or fnmatch.fnmatchcase(run.name, name),
        lambda run: run.id.startswith(name),
    ):
        found = [run for run in listed if any(map(fits, ranks_of(run).values()))]
        if any(run.alive is not False for run in found):  # an ended run must not hide a living one
            return found
    return [run for run in listed if run.id.startswith(name) or run.name == name]


def _nothing(
    listed: Sequence[RunListing], usable: Sequence[RunListing], matching: Sequence[RunListing], name: str | None
) -> LinkError:
    living = [run for run in usable if run.alive is not False]
    problems = [run for run in listed if run.problem]
    if matching:
        return RunEnded(
            f"The run {matching[0].id} has ended: its process {matching[0].pid} is gone."
            + (f" Alive: {_names(living)}." if living else "")
        )
    if name is None and problems:
        return UnsafeFile(problems[0].problem)
    what = "No run announces itself" if name is None else f"No run matches {name!r}"
    over = _ended(name or "")
    if living:
        near = nearest(name or "", {run.name for run in living})
        return NoSuchRun(f"{what}; alive: {_names(living)}.{' ' * bool(near)}{near}{over}")
    if over:
        return NoSuchRun(f"{what}.{over}")
    where = os.environ.get("LOOPTAP_DIR") or f"{socket.gethostname()}, for this user"
    return NoSuchRun(
        f"{what} ({where}). A run announces itself while its process has a looptap.Agent; where jobs run on other "
        "machines, let both sides share a directory: export LOOPTAP_DIR=…"
        + (f" A file there cannot be used: {problems[0].problem}" if problems else "")
    )


def _ended(name: str) -> str:
    """A sentence on the newest run of this name that is stored here, if there is one."""
    escaped = glob.escape(name)
    files = [*kept(escaped), *kept(f"{escaped}-[0-9]*")] if name else []
    return f" A run of that name has ended; see: looptap open {shlex.quote(str(files[0]))}" if files else ""


def _names(listed: Sequence[RunListing]) -> str:
    ids = list(dict.fromkeys(run.id for run in listed))
    return ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
