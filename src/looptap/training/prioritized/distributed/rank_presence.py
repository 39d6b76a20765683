"""`RankPresence`: says which ranks' processes are gone, by locks on files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: which rank is gone stays unknown
    fcntl = None  # type: ignore[assignment]  # asked for before each use


class LostRank(NamedTuple):
    """A rank whose process is gone."""

    rank: int
    process: str
    """Its number and host."""
    why: str
    """The exception with which it ended; empty if it was killed or crashed."""
    lost: tuple[int, ...]
    """The ranks for whose loss it ended itself."""


class RankPresence:
    """Holds a lock for as long as this process lives, in a folder that all ranks see.

    The kernel drops a lock with its process, however that ends, so no heartbeat is needed. These locks are POSIX locks:
    forked children do not inherit them.
    """

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.rank, self.world, self._folder = rank, world, folder
        self._path = folder / f"rank-{rank}.alive"
        self._file = self._path.open("a+")
        self._hold()
        self._write("", ())

    def end(self) -> None:
        """Say that this rank has ended as it should."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def leave(self, why: str, lost: tuple[int, ...] = ()) -> None:
        """Say why this rank ends before the others."""
        self._write(why, lost)
        self._file.close()

    def missing(self) -> list[LostRank]:
        """Return the other ranks whose processes are gone, except those that ended well."""
        found = []
        for rank in range(self.world):
            path = self._folder / f"rank-{rank}.alive"
            if rank == self.rank or fcntl is None:
                continue
            with contextlib.suppress(OSError, ValueError), path.open() as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises OSError while the rank lives
                known = json.load(file)
                process = f"process {known['pid']} on {known['host']}"
                found.append(LostRank(rank, process, known["why"], tuple(known["lost"])))
        return found

    def _hold(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ValueError(
                f"{self._folder} is in use: a living process is rank {self.rank} there. Give each job a folder of its "
                "own."
            ) from error

    def _write(self, why: str, lost: tuple[int, ...]) -> None:
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "why": why, "lost": lost}, self._file)
        self._file.flush()
