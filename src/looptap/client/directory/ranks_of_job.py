"""Groups connection files by job: those of its ranks belong together.

A job is known by the id that its launcher gave to all of its ranks (`RunInfo.job`). Files of dead ranks with the same
id may be left after a restart or a kill: the newest of each rank counts, the living before the dead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from looptap.client.directory.listing import RunListing

Members: TypeAlias = dict[int, RunListing]


def group_by_job(listed: Iterable[RunListing]) -> list[RunListing]:
    """Return one listing a job, newest first: its lowest rank that may be alive."""
    found: list[RunListing] = []
    together: defaultdict[tuple[str, str, int, str], list[RunListing]] = defaultdict(list)
    for run in listed:
        if run.ranks > 1 and run.file is not None:
            together[run.name, run.file.run.job, run.ranks, run.role].append(run)
        else:
            found.append(run)
    for (_, job, _, _), files in together.items():
        newest, *earlier = _by_attempt(files)
        found += [_led(newest), *(_led(_ended(members) if job else members) for members in earlier)]
    return sorted(found, key=lambda run: (bool(run.problem), -run.started))


def _by_attempt(files: Sequence[RunListing]) -> list[Members]:
    """Split one launcher's files by job: an earlier or restarted job has its own."""
    found: list[Members] = []
    for run in sorted(files, key=lambda run: (run.alive is False, -run.started)):
        fitting = (members for members in found if run.rank not in members and not _superseded(run, members))
        members = next(fitting, None)
        if members is None:
            found.append(members := {})
        members[run.rank] = run
    return found


def _ended(members: Members) -> Members:
    """Mark members of unknown state as ended if others have taken their place."""
    return {rank: replace(run, alive=False) if run.alive is None else run for rank, run in members.items()}


def _superseded(run: RunListing, members: Members) -> bool:
    """Return True for a dead rank of an earlier attempt than the living ones."""
    if run.alive is not False or run.file is None:
        return False
    attempts = [other.file.run.attempt for other in members.values() if other.file and other.host == run.host]
    return any(attempt > run.file.run.attempt for attempt in attempts)


def _led(members: Members) -> RunListing:
    leader = min(members.values(), key=lambda run: (run.alive is False, run.rank))
    return replace(leader, members=dict(sorted(members.items())))
