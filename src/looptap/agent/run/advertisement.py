"""Publishes and renews a run's connection file; removes those of dead runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.errors import UnsafeFile
from looptap.protocol.file_names import as_text
from looptap.protocol.files.connection import ConnectionFile, publish, remake, sweep
from looptap.protocol.files.ended_runs import Ended, abandoned, note_ended_run
from looptap.protocol.keys import RoleKeys
from looptap.protocol.messages import RunInfo
from looptap.protocol.process.identity import REPLACED
from looptap.store.layout.run_path import store_path
from looptap.streams.native.surroundings import one_in_process

STALE_FILE_SECONDS = 3600.0
"""Seconds since its last touch for which the file of a dead run stays, unless a user runs looptap ls --clean."""


_open_runs: set[str] = one_in_process("open runs", set)


def announce(run: RunInfo, keys: RoleKeys, link: ServerThread, directory: Path) -> Path:
    """Publish a connection file in ``directory``; renew it while ``link`` lives."""
    file = ConnectionFile.of(run, keys, link.endpoints)
    _open_runs.add(run.id)
    _end_earlier_passes(directory)
    path = publish(file, directory)
    link.watch_file(path, lambda: _renew(file, directory))
    link.post(lambda: _tidy(directory))
    return path


def note_end(run: RunInfo, files: Iterable[Path], reason: str, store: Path | None) -> None:
    """Record the end of a run next to its connection ``files``, for late clients."""
    _open_runs.discard(run.id)
    kept = as_text(str(store)) if store is not None and store.exists() else ""
    for path in files:
        with contextlib.suppress(OSError, UnsafeFile):
            note_ended_run(Ended(run.id, run.name, run.rank, run.started, time.time(), reason, kept), path.parent)


def _renew(file: ConnectionFile, directory: Path) -> None:
    """Publish a run again whose file, or whole directory, has vanished."""
    remake(directory)
    publish(file, directory)


def _end_earlier_passes(directory: Path) -> None:
    """End the runs that this process announced before an exec.

    Its id and its start remain, so clients would take them for alive.
    """
    for path, run in abandoned(directory, _open_runs):
        note_end(run, [path], f"its process {REPLACED}", store_path(run.id, rank=run.rank))


def _tidy(directory: Path) -> None:
    """Remove old files of dead runs, which later clients could still ask for."""
    with contextlib.suppress(OSError):
        sweep(directory, older=STALE_FILE_SECONDS, at_most=200)
