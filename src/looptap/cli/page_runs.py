"""The runs that `looptap web` shows: announced ones, and stored ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from looptap.cli.sources import is_stored_path
from looptap.client.attach import attach, resolve, runs
from looptap.client.directory.listing import RunListing
from looptap.client.directory.select import as_path, matching, one_role_each
from looptap.client.transport.tunnel.process import is_remote
from looptap.protocol.errors import NoDirectory
from looptap.store.layout.run_path import kept
from looptap.store.reader import open as open_stored
from looptap.streams.errors import LooptapError
from looptap.visualizers.surfaces.web.run_shelf import LIVE_RUN, STORED_RUN, ShelfEntry

MAX_STORED_RUNS = 200
"""Stored runs that a page lists, the newest."""


class PageRuns:
    """Lists runs: all, or those of ``names``. Raises LooptapError for an unknown one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._fixed: list[Callable[[], ShelfEntry]] = []
        self._patterns: list[str] = []
        self._files: dict[Path, tuple[float, ShelfEntry]] = {}
        for name in names:
            self._add(name)
        every = self._every() if self._patterns else []
        for name in self._patterns:
            if not _meant(every, name):
                resolve(name)  # says why not

    def _add(self, name: str) -> None:
        if is_remote(name):
            self._fixed.append(lambda: ShelfEntry(name, name, LIVE_RUN, "", lambda: attach(name)))
        elif is_stored_path(name):
            path = Path(name).expanduser()
            self._stored(path)  # what cannot be read is reported at once
            self._fixed.append(lambda: self._stored(path))
        elif as_path(name) is not None:
            listed = resolve(name)
            self._fixed.append(lambda: _live(listed))
        else:
            self._patterns.append(name)

    def __call__(self) -> list[ShelfEntry]:
        """Return the runs as they are now."""
        found = [entry() for entry in self._fixed]
        if self._patterns:
            every = self._every()
            found += [entry for name in self._patterns for entry in _meant(every, name)]
        elif not found:
            found = self._every()
        return list({entry.key: entry for entry in found}.values())

    def _every(self) -> list[ShelfEntry]:
        """Return the runs that announce themselves, then the stored ones that do not."""
        stored = {entry.key: entry for path in kept()[:MAX_STORED_RUNS] for entry in self._readable(path)}
        live = {entry.key: entry for entry in map(_live, _listed()) if not (entry.problem and entry.key in stored)}
        return [*live.values(), *(entry for key, entry in stored.items() if key not in live)]

    def _readable(self, path: Path) -> list[ShelfEntry]:
        """Return the entry of a stored run; none if it cannot be read."""
        with suppress(LooptapError, OSError):
            return [self._stored(path)]
        return []

    def _stored(self, path: Path) -> ShelfEntry:
        changed = path.stat().st_mtime if path.exists() else 0.0
        before, entry = self._files.get(path, (-1.0, None))
        if entry is None or before != changed:
            with open_stored(path) as run:
                host = str(run.metadata.get("host", ""))
                entry = ShelfEntry(run.id, run.name, STORED_RUN, "stored", lambda: open_stored(path), host, run.started)
            self._files[path] = changed, entry
        return entry


def _listed() -> list[RunListing]:
    with suppress(NoDirectory):
        return one_role_each(runs())
    return []


def _live(listed: RunListing) -> ShelfEntry:
    ended = listed.alive is False
    state, problem = ("ended", f"The run {listed.id} has ended: {listed.end}.") if ended else ("live", "")
    place = listed.host, listed.started, listed.ranks
    return ShelfEntry(listed.id, listed.name, LIVE_RUN, state, listed.attach, *place, problem)


def _meant(entries: Sequence[ShelfEntry], name: str) -> list[ShelfEntry]:
    """Return the runs that ``name`` means."""
    return matching(entries, name, lambda run: [(run.key, run.name)], lambda run: not run.problem)
