"""Finding runs by their connection files, and attaching to one."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from looptap.client.directory.listing import RunListing
from looptap.client.directory.ranks_of_job import group_by_job
from looptap.client.directory.select import as_path, listings_by_rank, one_role_each, refuse_stored, select
from looptap.client.directory.wait_for_run import LOOK_AFAR_SECONDS, POLL_INTERVAL_SECONDS, wait_for_run
from looptap.client.rank_numbers import numbered
from looptap.client.ranks.ranks import Ranks
from looptap.client.run import Run
from looptap.client.session.session import disconnect_abandoned
from looptap.client.transport.failover import FailoverTransport
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.client.transport.tunnel.process import START_TIMEOUT_SECONDS, CommandRoute, is_remote, over_ssh, relay_of
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol.errors import (
    LimitReached,
    NoAnswer,
    NoDirectory,
    NoSuchRun,
    NotLooptap,
    RefusedKey,
    RunEnded,
    WrongServer,
)
from looptap.protocol.file_names import as_text
from looptap.protocol.files.connection import Found, Known, listing, read_connection_file, runtime_dir
from looptap.protocol.files.ended_runs import ended
from looptap.protocol.messages import RunInfo
from looptap.protocol.process.identity import GONE
from looptap.protocol.values.number_checks import is_real
from looptap.store.layout.run_path import SUFFIX
from looptap.streams.errors import QueryError

_RELAY_START_TIMEOUT_SECONDS = 20.0  # seconds more for a relay to start

logger = logging.getLogger("looptap")


def runs(directory: str | os.PathLike[str] | None = None) -> list[RunListing]:
    """List the runs announced in ``directory``, newest first; by default here.

    A job on several ranks is one run: ``members`` are its ranks, ``missing`` the ranks without an agent. The list also
    has runs whose process is gone, with ``alive`` False, and files that cannot be used.

    Args:
        directory: The directory to search; by default ``LOOPTAP_DIR``, or the standard one.

    Raises NoDirectory and UnsafeFile for a directory that is missing or that others can change.
    """
    return scan(directory, None)


def scan(directory: str | os.PathLike[str] | None, known: Known | None) -> list[RunListing]:
    """List runs as `runs` does, without rereading unchanged files of ``known``."""
    place = runtime_dir() if directory is None else Path(directory)
    return group_by_job(_listed(found) for found in listing(place, known))


def attach(
    name: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    timeout: float = REPLY_SECONDS,
    wait: float | None = None,
    follow: bool = False,
) -> Run:
    """Attach to a running job: the newest, or the one that ``name`` names.

    For a job on several ranks, this is the run of rank 0, or of the lowest rank with an agent; `Run.ranks` has the
    others, and `Run.stream` reads several with ``ranks=``. A lost connection is restored as long as the run exists.

    Args:
        name: A run's name, its id, the beginning of either, a pattern such as ``"digits-*"``, or the path of a
            connection file. A run on another machine is ``"ssh://host/run"``, ``"ssh://login/host/run"`` through
            another host, or ``"command:srun --jobid=17 --overlap looptap bridge run"``: any command that ends in
            `looptap bridge`. A command has 30 seconds more to start.
        rank: A rank other than the lowest with an agent.
        directory: The directory in which runs announce themselves; by default the one that ``LOOPTAP_DIR`` names, or
            the standard one.
        timeout: Seconds to wait for an answer of the run.
        wait: Seconds to wait for a job that has not started yet (`math.inf`: forever); the logger ``looptap`` says so
            at once and then every minute. By default it does not wait, with ``follow`` for ``timeout`` seconds. A job
            that begins and ends in that time raises RunEnded, unless ``follow`` is set.
        follow: True makes the returned run outlive its job: it waits for the next one of the same name and rank in the
            same directory, and attaches the same queries. Its streams continue until ``run.close()``; `Stream.seams`
            says where one run ends and the next begins. Unanswered requests of one run (`Run.call`) are not sent to
            the next.

    Raises, within about ``timeout`` seconds after that, NoSuchRun, SeveralRuns, RunEnded, RefusedKey,
    WrongServer, NotLooptap, VersionMismatch, NoAnswer, UnsafeFile or NoDirectory, each with a suggestion.
    """
    if wait is not None and not (is_real(wait) and wait >= 0):
        raise QueryError(f"wait={wait!r} must be a number of seconds, math.inf for as long as it takes.")
    patience = wait if wait is not None else timeout if follow else 0.0
    answering = timeout if timeout < math.inf else START_TIMEOUT_SECONDS

    def look() -> Run:
        return _attach(
            resolve(name, rank=rank, directory=directory, timeout=answering + START_TIMEOUT_SECONDS), answering, follow
        )

    if not patience or not comes(name, directory):
        return look()
    pause = LOOK_AFAR_SECONDS if is_remote(name) else POLL_INTERVAL_SECONDS
    return wait_for_run(look, patience, logger.warning, follow=follow, pause=pause)


def comes(name: str | os.PathLike[str] | None, directory: str | os.PathLike[str] | None = None) -> bool:
    """Return True if a run named ``name`` may start later."""
    if is_remote(name):
        return True
    if (isinstance(name, str) and name.endswith(SUFFIX)) or as_path(name):
        return False
    with contextlib.suppress(NoDirectory):  # it may be made meanwhile
        place = runtime_dir() if directory is None else Path(directory)
        return name not in {*(run.id for run in runs(place)), *(run.id for run in ended(place))}
    return True


def resolve(
    name: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    timeout: float = START_TIMEOUT_SECONDS,
) -> RunListing:
    """Return the run that ``name`` means to `attach`. Blocks up to ``timeout`` s."""
    if is_remote(name):
        return _remote(str(name), rank, timeout)
    path = as_path(name)
    if path is not None or (isinstance(name, str) and name.endswith(SUFFIX)):
        refuse_stored(path or Path(str(name)))
    if path is not None:
        return _of_file(path)
    place = runtime_dir() if directory is None else Path(directory)
    return select(runs(place), None if name is None else as_text(str(name)), rank, place)


# ---------------------------------------------------------------- choosing


def _of_file(path: Path) -> RunListing:
    file = read_connection_file(path)
    return _listed(Found(path, file, file.process.alive()))


def _remote(name: str, rank: int | None, timeout: float) -> RunListing:
    route = CommandRoute(name, rank)
    try:
        heading = route.open(timeout)
        if heading.file is None or rank not in (None, heading.file.run.rank):
            raise NoSuchRun(
                f"{name} leads to a rank other than {rank}. Name the rank in the command: looptap bridge "
                f"--rank {rank} …"
            )
    except BaseException:
        route.close()
        raise
    return replace(_listed(Found(Path(heading.path), heading.file, True)), route=route)


def _listed(found: Found) -> RunListing:
    file = found.file
    if file is None:
        return RunListing("", "", 0, 0, "", 0, 0.0, "", None, found.path, found.problem)
    run = file.run
    about = (run.name, run.id, run.rank, run.ranks, run.host, run.pid, run.started, file.role)
    return RunListing(*about, found.alive, found.path, file=file, opener=_attach)


# ---------------------------------------------------------------- attaching


def _attach(listed: RunListing, timeout: float, follow: bool, ranks: Ranks[Run] | None = None) -> Run:
    """Attach; sessions that this process let go of without closing them make room."""
    deadline, leaving = time.monotonic() + timeout, False
    while True:
        try:
            return _attached(listed, timeout, follow, ranks)
        except LimitReached:
            leaving = leaving or disconnect_abandoned(listed.id)
            if not leaving or time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_SECONDS)


def _attached(listed: RunListing, timeout: float, follow: bool, ranks: Ranks[Run] | None) -> Run:
    file = listed.usable()
    link = _link(listed, follow)
    following = FailoverTransport(link, file.run, functools.partial(_successor, listed), _pause(listed))
    siblings = _RanksByFile(listed) if listed.route is None else _RanksByCommand(listed, listed.route)
    try:
        run = Run(
            following if follow else link,
            run=file.run,
            timeout=timeout,
            follow=follow,
            siblings=siblings,
            ranks=ranks,
        )
    except (RunEnded, NoAnswer, NotLooptap, WrongServer, RefusedKey) as error:  # the port may be another's here
        raise listed.unreachable(error) from None
    run.session.vitals.process = file.process
    return run


class _RanksByFile:
    """A rank directory that reads connection files."""

    def __init__(self, listed: RunListing) -> None:
        self._listed = listed

    def known(self, run: RunInfo) -> dict[int, bool | None]:
        """Return the ranks with an agent, and whether each is alive (None: unknown)."""
        return {rank: each.alive for rank, each in self._members(run).items()}

    def boot(self, run: RunInfo, rank: int) -> str:
        """Return the boot id of a rank's machine, empty if unknown: one boot, one clock."""
        return _boot(self._members(run).get(rank))

    def hosts(self, run: RunInfo) -> dict[int, str]:
        """Return the known hosts of the ranks."""
        return {rank: each.host for rank, each in self._members(run).items()}

    def relay(self, run: RunInfo, ranks: tuple[int, ...], timeout: float) -> Run:
        """Start a relay for ``ranks`` and attach to it. Raises NoSuchRun, NoAnswer."""
        lowest = self._members(run)[ranks[0]]
        # Its path says in which directory, there as here.
        words = ["relay", str(lowest.path), "--ranks", ",".join(map(str, ranks))]
        here = [sys.executable, "-m", "looptap.cli", *words]
        return _relayed(here if lowest.alive is not None else over_ssh([lowest.host], words), timeout)

    def attach(self, run: RunInfo, rank: int, timeout: float, ranks: Ranks[Run]) -> Run:
        """Attach to another of the ``ranks``. Raises what `attach` raises, and NoSuchRun."""
        members = self._members(run)
        if rank not in members:
            there = numbered(members)
            raise NoSuchRun(f"The run {run.id} has no agent on rank {rank}; there is one on: {there}.")
        return _attach(members[rank], timeout, ranks.follow, ranks)

    def _members(self, run: RunInfo) -> Mapping[int, RunListing]:
        """Return the ranks according to their present files."""
        found = runs(self._listed.path.parent) if run.ranks > 1 else []
        of_job = (one.members for one in found if one.role == self._listed.role)
        return next((members for members in of_job if run.id in {each.id for each in members.values()}), {})


class _RanksByCommand:
    """A rank directory that asks the command that leads to the run."""

    def __init__(self, listed: RunListing, route: CommandRoute) -> None:
        self._name = route.name
        self._reached = {listed.rank: listed}

    def known(self, run: RunInfo) -> dict[int, bool | None]:
        """Return all ranks: whether each is alive is unknown."""
        return dict.fromkeys(range(run.ranks))

    def boot(self, run: RunInfo, rank: int) -> str:
        """Return the boot id of a rank's machine, empty until it was reached."""
        return _boot(self._reached.get(rank))

    def hosts(self, run: RunInfo) -> dict[int, str]:
        """Return for each rank the host that the command leads to."""
        return dict.fromkeys(range(run.ranks), self._name)

    def relay(self, run: RunInfo, ranks: tuple[int, ...], timeout: float) -> Run:
        """Start a relay for ``ranks`` and attach to it. Raises NoSuchRun, NoAnswer."""
        return _relayed(relay_of(self._name, run.id, ",".join(map(str, ranks))), timeout)

    def attach(self, run: RunInfo, rank: int, timeout: float, ranks: Ranks[Run]) -> Run:
        """Attach to another of the ``ranks``. Raises what `attach` raises, and NoSuchRun."""
        self._reached[rank] = _remote(self._name, rank, timeout + START_TIMEOUT_SECONDS)
        return _attach(self._reached[rank], timeout, ranks.follow, ranks)


def _boot(listed: RunListing | None) -> str:
    if listed is None or listed.file is None:
        return ""
    process = listed.file.process
    return f"{process.machine} {process.boot}" if process.boot else ""


def _relayed(command: list[str], timeout: float) -> Run:
    from looptap.client.ranks.merge_relay import MergeRelayTransport  # not at the top: see `looptap.client.query`

    return Run(MergeRelayTransport(command), timeout=timeout + _RELAY_START_TIMEOUT_SECONDS)


def _link(listed: RunListing, follow: bool) -> ZmqTransport:
    """Return a link to the run, not started yet."""
    file, path, route = listed.usable(), listed.path, listed.route
    server = file.server_public.encode("ascii")
    if route is not None:
        return ZmqTransport([route.name], server, file.client, route=route)

    def how_ended() -> str:
        end = file.process.end()
        with contextlib.suppress(OSError):  # a shared directory that is away for a while
            if not end and not path.exists() and path.parent.exists():
                return "The run has ended."  # an agent removes its file; a directory that vanished with it says nothing
            if end is None and follow and _next(path.parent, file.run) is not None:
                end = GONE  # it cannot be known, there is no answer, and another run has taken its place
        return f"The run's process {end}." if end else ""

    return ZmqTransport(file.endpoints, server, file.client, ended=how_ended)


def _successor(listed: RunListing, run: RunInfo) -> tuple[ZmqTransport, RunInfo] | None:
    """Return a link to the run that follows ``run`` in its directory; None if none."""
    found = _next(listed.path.parent, run) if listed.route is None else _next_by_command(listed.route, run)
    return None if found is None else (_link(found, True), found.usable().run)


def _next(directory: Path, run: RunInfo) -> RunListing | None:
    """Return the next run of the same name and rank as ``run``, or None."""
    later = [
        other
        for job in one_role_each(runs(directory))
        for other in listings_by_rank(job).values()
        if (other.name, other.rank) == (run.name, run.rank) and other.started > run.started and other.alive is not False
    ]
    return min(later, key=lambda other: other.started, default=None)


def _next_by_command(route: CommandRoute, run: RunInfo) -> RunListing | None:
    """Return the run that a command leads to now, if it started after ``run``."""
    found = _remote(route.name, run.rank, START_TIMEOUT_SECONDS)
    if found.started > run.started:
        return found
    if found.route is not None:
        found.route.close()
    return None


def _pause(listed: RunListing) -> float:
    """Return the seconds between two searches for the next run."""
    return 0.25 if listed.route is None else listed.route.longest
