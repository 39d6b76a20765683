"""`RunShelf`: the runs that pages show, open while a viewer looks at one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from looptap.client.exported_run import ExportedRun, exported
from looptap.client.run import Run
from looptap.streams.errors import LooptapError
from looptap.streams.stream.stream import Stream

LIVE_RUN, STORED_RUN = "live", "stored"
"""Kinds of runs: one to attach to, and the file of one."""

Shared = TypeVar("Shared")


@dataclass(frozen=True)
class ShelfEntry:
    """A run that a page may open, with the facts known without opening it."""

    key: str
    """What the page calls it: its id, or the name of its file."""
    name: str
    kind: str
    state: str
    opener: Callable[[], Any] = field(repr=False, compare=False)
    host: str = ""
    started: float | None = None
    """Seconds since 1970."""
    ranks: int = 1
    problem: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        return {
            "key": self.key,
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "host": self.host,
            "started": self.started,
            "ranks": self.ranks,
            "problem": self.problem,
        }


class _Entry(Generic[Shared]):
    def __init__(self) -> None:
        self.users = 0
        self.lock = threading.Lock()  # held while it is made
        self.made: list[Shared] = []


class SharedPool(Generic[Shared]):
    """Objects by key, made by their first user and closed after the last.

    >>> pool = SharedPool(print)
    >>> pool.take("a", lambda: "one"), pool.take("a", lambda: "another")
    ('one', 'one')
    >>> pool.give_back("a")
    >>> pool.give_back("a")
    one
    """

    def __init__(self, close: Callable[[Shared], object]) -> None:
        self._close = close
        self._guard = threading.Lock()
        self._entries: dict[Hashable, _Entry[Shared]] = {}

    def take(self, key: Hashable, make: Callable[[], Shared]) -> Shared:
        """Return the object of ``key``. Raises what ``make`` raises."""
        with self._guard:
            entry = self._entries.setdefault(key, _Entry())
            entry.users += 1
        try:
            with entry.lock:
                if not entry.made:
                    entry.made.append(make())
                return entry.made[0]
        except BaseException:
            self.give_back(key)
            raise

    def give_back(self, key: Hashable) -> None:
        """Note that a user is done with the object of ``key``."""
        with self._guard:
            entry = self._entries[key]
            entry.users -= 1
            if entry.users:
                return
            del self._entries[key]
        for made in entry.made:
            self._close(made)

    def held(self) -> list[Shared]:
        """Return the objects that have users."""
        with self._guard:
            return [made for entry in self._entries.values() for made in entry.made]


class UnknownRun(LooptapError):
    """A page has named a run that it does not show."""


class RunShelf:
    """The runs found by ``look``; all viewers share the open ones.

    So are their streams and their facts: a query that ten viewers look at is one query in the job. Without ``operate``
    the runs are as viewers of a share see them, with ``config`` their settings too, with ``own`` as their owner does.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[ShelfEntry]],
        *,
        operate: bool = False,
        config: bool = False,
        own: bool = False,
    ) -> None:
        self._look = look
        self.operate, self._config, self._own = operate, config, own
        self._guard = threading.Lock()
        self._entries: dict[str, ShelfEntry] = {}
        self.runs: SharedPool[Any] = SharedPool(lambda run: run.close())
        self.streams: SharedPool[Stream] = SharedPool(close_stream)
        self.facts: SharedPool[Any] = SharedPool(lambda facts: facts.close())
        self.version = 0
        """Counts the changes of what `entries` returns."""

    def refresh(self) -> None:
        """Look for runs; call this now and then."""
        found = {entry.key: entry for entry in self._look()}
        with self._guard:
            if found != self._entries:
                self.version += 1
            self._entries = found
        for run in self.runs.held():
            if isinstance(run, ExportedRun) and run.alive:
                with contextlib.suppress(LooptapError):
                    run.streams  # noqa: B018 - streams that are no longer exported end

    def entries(self) -> list[ShelfEntry]:
        """Return the runs that were last found."""
        with self._guard:
            return list(self._entries.values())

    def open(self, key: str) -> Any:
        """Return a run, until `close`. Raises LooptapError."""
        with self._guard:
            entry = self._entries.get(key)
        if entry is None:
            raise UnknownRun(f"There is no run {key!r} here any more.")
        if entry.problem:
            raise UnknownRun(entry.problem)
        return self.runs.take(key, partial(self._opened, entry))

    def _opened(self, entry: ShelfEntry) -> Any:
        run = entry.opener()
        return run if self.operate else exported(run, config=self._config, own=self._own)

    def close(self, key: str) -> None:
        """Note that a viewer no longer looks at a run."""
        self.runs.give_back(key)


def is_live(run: Any) -> bool:
    """Return whether a run is live, rather than a file."""
    return isinstance(run, Run | ExportedRun)


def close_stream(stream: Stream) -> None:
    """Detach a query from its job; streams of a file end with the file."""
    detach = getattr(stream, "detach", None)
    source = getattr(stream, "source", None)
    if detach is not None:
        stream.close()
    elif source is not None:
        stream.close()
        close_stream(source)
