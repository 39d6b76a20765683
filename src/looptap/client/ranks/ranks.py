"""The ranks of a job, as one of them sees its siblings: `Run.ranks`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Never, Protocol, TypeVar

from looptap.client.rank_numbers import numbered
from looptap.client.session.run_handle import RunHandle
from looptap.client.session.session import OPEN
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol.errors import NoSuchRun
from looptap.protocol.messages import RunInfo
from looptap.protocol.values.number_checks import is_whole
from looptap.streams.errors import LooptapError, QueryError

ALL = "all"
"""All ranks that have an agent."""
DEFAULT_LATE_TIMEOUT_SECONDS = 2.0
"""Seconds that a value waits for the ranks that have not reached it, unless ``patience=`` says otherwise."""
_MAX_PARALLEL_ATTACHES = 32  # ranks that are reached at the same time
T = TypeVar("T")
R = TypeVar("R", bound=RunHandle)


class RankDirectory(Protocol[R]):
    """A directory of the ranks of a job."""

    def known(self, run: RunInfo) -> dict[int, bool | None]:
        """Return the ranks with an agent, and whether each is alive (None: unknown)."""

    def boot(self, run: RunInfo, rank: int) -> str:
        """Return the boot id of a rank's machine, empty if unknown: one boot, one clock."""

    def hosts(self, run: RunInfo) -> dict[int, str]:
        """Return the known hosts of the ranks; behind a command, the host it leads to."""

    def relay(self, run: RunInfo, ranks: tuple[int, ...], timeout: float) -> R:
        """Start a relay for ``ranks`` on their host, and attach to it. Raises LinkError."""

    def attach(self, run: RunInfo, rank: int, timeout: float, ranks: Ranks[R]) -> R:
        """Attach to another of the ``ranks``. Raises LinkError."""


class NoRankDirectory:
    """The directory of a run without a connection file: its siblings are unknown."""

    def known(self, run: RunInfo) -> dict[int, bool | None]:
        """Return the run itself."""
        return {run.rank: True}

    def boot(self, run: RunInfo, rank: int) -> str:
        """Return an empty id: it is unknown."""
        return ""

    def hosts(self, run: RunInfo) -> dict[int, str]:
        """Return its own host."""
        return {run.rank: run.host}

    def relay(self, run: RunInfo, ranks: tuple[int, ...], timeout: float) -> Never:
        """Raise NoSuchRun: the other ranks are unknown."""
        raise NoSuchRun(f"It is not known where {numbered(ranks)} of {run.id} are: attach by a name.")

    def attach(self, run: RunInfo, rank: int, timeout: float, ranks: Ranks[Any]) -> Never:
        """Raise NoSuchRun: the other ranks are unknown."""
        raise NoSuchRun(f"It is not known where rank {rank} of {run.id} is: attach by a name or a connection file.")


class Ranks(Mapping[int, R], Generic[R]):
    """The ranks of a job by number, each a `Run` that is attached on first use.

    Its length and its iteration are those that have an agent and are not known to be dead; `size` is that of the job.
    They are closed with the run that they belong to, which is one of them.

    >>> from looptap.testing import pair
    >>> agent, run = pair("doctest")
    >>> run.ranks
    <Ranks: rank 0 of 1>
    >>> run.ranks[0] is run
    True
    """

    def __init__(self, owner: R, siblings: RankDirectory[R]) -> None:
        self._owner = weakref.ref(owner)
        self._siblings = siblings
        self._rank, self.follow = owner.info.rank, owner.session.follow
        """``follow``: whether each rank continues with the next run of the same name."""
        self._reached: dict[int, R] = {}
        self._lock = threading.Lock()
        self._opening: dict[int, threading.Lock] = {}
        self._closed = False
        self._relays: dict[tuple[int, ...], R] = {}
        weakref.finalize(owner, _close, self._reached).atexit = False
        weakref.finalize(owner, _close, self._relays).atexit = False

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return self._run().info.ranks

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have no agent, or whose process is dead."""
        known = self._known()
        return tuple(rank for rank in range(self.size) if known.get(rank, False) is False)

    def reach(self, rank: int, timeout: float = REPLY_SECONDS) -> R:
        """Return the run of ``rank``, attaching to it the first time.

        Raises NoSuchRun where there is no agent, and what `looptap.attach` raises.
        """
        run = self._run()
        if rank == self._rank:
            return run
        with self._lock:
            opening = self._opening.setdefault(rank, threading.Lock())
        with opening:
            sibling = self._reached.get(rank)
            if sibling is None or sibling.state in ("ended", "failed"):
                if not 0 <= rank < run.info.ranks:
                    raise NoSuchRun(f"There is no rank {rank!r}: the run {run.id} has {numbered(range(self.size))}.")
                sibling = self._siblings.attach(run.info, rank, timeout, self)
                with self._lock:
                    self._reached[rank] = sibling
                    closed = self._closed
                if closed:
                    sibling.close()
            return sibling

    def each(
        self, do: Callable[[R], T], ranks: str | int | Iterable[int] = ALL, timeout: float = REPLY_SECONDS
    ) -> dict[int, T | LooptapError]:
        """Call ``do`` with each rank's run at once; return the results or LooptapErrors.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> run.ranks.each(lambda rank: rank.name)
        {0: 'doctest'}
        """

        def one(rank: int) -> T | LooptapError:
            try:
                return do(self.reach(rank, timeout))
            except LooptapError as error:
                return error

        chosen = self.select(ranks)
        if len(chosen) == 1:
            return {chosen[0]: one(chosen[0])}
        with ThreadPoolExecutor(max(1, min(_MAX_PARALLEL_ATTACHES, len(chosen))), "looptap-ranks") as pool:
            return dict(zip(chosen, pool.map(one, chosen), strict=True))

    def select(self, ranks: str | int | Iterable[int]) -> tuple[int, ...]:
        """Return the ranks meant by a number, several, or "all". Raises QueryError.

        >>> from looptap.testing import pair
        >>> agent, run = pair("doctest")
        >>> run.ranks.select("all")
        (0,)
        """
        if isinstance(ranks, str):
            if ranks != ALL:
                raise QueryError(f"ranks={ranks!r} must be a rank, a list of ranks, or 'all'.")
            return tuple(self._there())
        given = [ranks] if isinstance(ranks, int) else list(ranks)
        if not given or not all(is_whole(rank) and 0 <= rank < self.size for rank in given):
            has = numbered(range(self.size))
            if isinstance(ranks, int):
                raise QueryError(f"There is no rank {ranks!r}: the run has {has}.")
            raise QueryError(f"ranks={ranks!r}: the run has {has}; 'all' are those with an agent.")
        return tuple(sorted(set(given)))

    def boot(self, rank: int) -> str:
        """Return the boot id of a rank's machine, empty if unknown: one boot, one clock."""
        return self._siblings.boot(self._run().info, rank)

    def nodes(self, ranks: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """Group ``ranks`` by host, with the lowest of each as the key."""
        hosts: dict[str, list[int]] = {}
        found = self._siblings.hosts(self._run().info)
        for rank in sorted(ranks):
            hosts.setdefault(found.get(rank, f"of rank {rank}"), []).append(rank)
        return {together[0]: tuple(together) for together in hosts.values()}

    def relay(self, ranks: tuple[int, ...], timeout: float = REPLY_SECONDS) -> R:
        """Return the relay for ``ranks`` on their host, started once. Raises LinkError."""
        run = self._run()
        with self._lock:
            opening = self._opening.setdefault(-1 - ranks[0], threading.Lock())
        with opening:
            reached = self._relays.get(ranks)
            if reached is None or reached.state != "live":
                reached = self._relays[ranks] = self._siblings.relay(run.info, ranks, timeout)
            return reached

    def close(self) -> None:
        """Close the other ranks."""
        with self._lock:
            self._closed = True
        _close(self._relays)
        _close(self._reached)

    def belong_to(self, run: RunHandle) -> bool:
        """Return True if they are closed with this run."""
        return self._owner() is run

    def __getitem__(self, rank: int) -> R:
        return self.reach(rank)

    def __contains__(self, rank: object) -> bool:
        return rank in self._there()

    def __iter__(self) -> Iterator[int]:
        return iter(self._there())

    def __len__(self) -> int:
        return len(self._there())

    def __repr__(self) -> str:
        without = f", without {numbered(self.missing)}" if self.missing else ""
        return f"<Ranks: {numbered(self)} of {self.size}{without}>"

    def _there(self) -> list[int]:
        return sorted(rank for rank, alive in self._known().items() if alive is not False)

    def _known(self) -> dict[int, bool | None]:
        run = self._run()
        known = self._siblings.known(run.info)
        known.setdefault(run.info.rank, run.state in OPEN)
        for rank, sibling in [(run.info.rank, run), *self._reached.items()]:
            if known.get(rank, True) is None and sibling.state in ("ended", "failed"):
                known[rank] = False
        return known

    def _run(self) -> R:
        run = self._owner()
        if run is None:
            raise NoSuchRun("The run of these ranks no longer exists; attach again.")
        return run


def split_replies(replies: Mapping[int, T | LooptapError]) -> tuple[dict[int, T], dict[int, LooptapError]]:
    """Return the results of `Ranks.each` by rank, and its errors by rank."""
    errors = {rank: reply for rank, reply in replies.items() if isinstance(reply, LooptapError)}
    return {rank: reply for rank, reply in replies.items() if not isinstance(reply, LooptapError)}, errors


def _close(reached: Mapping[Any, RunHandle]) -> None:
    for sibling in list(reached.values()):
        sibling.close()


class RankHandle(RunHandle, Protocol):
    """The part of a run that the streams over its ranks use."""

    @property
    def ranks(self) -> Ranks[Any]:
        """The ranks of its job."""
