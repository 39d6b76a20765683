"""Publishes and renews a run's connection file; removes those of dead runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.errors import UnsafeFile
from looptap.protocol.files.connection import ConnectionFile, publish, remake, sweep
from looptap.protocol.files.ended_runs import Ended, note
from looptap.protocol.keys import RoleKeys
from looptap.protocol.messages import RunInfo

STALE_FILE_SECONDS = 3600.0
"""Seconds since its last touch for which the file of a dead run stays, unless a user runs looptap ls --clean."""


def announce(run: RunInfo, keys: RoleKeys, link: ServerThread, directory: Path) -> Path:
    """Publish a connection file in ``directory``; renew it while ``link`` lives."""
    file = ConnectionFile.of(run, keys, link.endpoints)
    path = publish(file, directory)
    link.watch_file(path, lambda: _renew(file, directory))
    link.post(lambda: _tidy(directory))
    return path


def note_end(run: RunInfo, files: Iterable[Path], reason: str, store: Path | None) -> None:
    """Record the end of a run next to its connection ``files``, for late clients."""
    kept = str(store) if store is not None and store.exists() else ""
    for path in files:
        with contextlib.suppress(OSError, UnsafeFile):
            note(Ended(run.id, run.name, run.rank, run.started, time.time(), reason, kept), path.parent)


def _renew(file: ConnectionFile, directory: Path) -> None:
    """Publish a run again whose file, or whole directory, has vanished."""
    remake(directory)
    publish(file, directory)


def _tidy(directory: Path) -> None:
    """Remove old files of dead runs, which later clients could still ask for."""
    with contextlib.suppress(OSError):
        sweep(directory, older=STALE_FILE_SECONDS, at_most=200)
