"""`WrittenFile`: the SQLite file of a run while it is written.

A file that is removed, moved or replaced lives on while it is open. So whatever was written to it is copied to a new
file, and nothing is lost. It is lost only if the file is damaged, went while it was closed (the disk was full), or if
there is no room for the copy.

Guarantees: a file that is not this one is never written, replaced or removed. Assumes: used by one thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from looptap.store.errors import StoreError
from looptap.store.layout.database import address
from looptap.store.layout.run_path import GONE, absolute, is_local
from looptap.store.layout.schema import check, create

BUSY_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for a reader that locks the file; only without a write-ahead log."""
MAX_FILES = 100
"""Files of one run: the name ends with -2, -3, … if something else is at its path."""

_LOGS = ("-wal", "-shm", "-journal")  # beside a file, while it is open
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TRANSIENT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY,
}  # fmt: skip
_COUNT = 'SELECT (SELECT count(*) FROM items) + (SELECT coalesce(sum("count"), 0) FROM pages)'


class Renewal(NamedTuple):
    """Why and where a file was made again."""

    former: Path
    what: str
    """Such as "was removed or moved"."""
    lost: bool
    """True if the new file has nothing of the former one."""


class WrittenFile:
    """The file at ``path``, which ``begin`` fills when it is new.

    `ready` creates, opens and mends it; `committed` is called after each commit, `failed` after an error of the disk.
    """

    def __init__(self, path: Path, begin: Callable[[sqlite3.Connection], None]) -> None:
        self.path = self._wanted = absolute(path)
        self._begin = begin
        self._connection: sqlite3.Connection | None = None
        self._seen: os.stat_result | None = None  # the file after the last commit; None before there is one
        self._logs: dict[str, os.stat_result | None] = {}
        self._local = True
        self._damaged = False

    def ready(self, items: int) -> tuple[sqlite3.Connection, Renewal | None]:
        """Return the connection to a file that has the ``items`` that were committed.

        Raises StoreError, OSError or sqlite3.Error; then call `failed`.
        """
        if not self.path.is_absolute():
            raise StoreError(f"{GONE}; name a folder for runs: LOOPTAP_STORE")
        renewal = None
        if self._seen is None:
            if os.path.lexists(self.path):
                raise StoreError(f"{self.path} exists already, and a run never writes into another's file.")
            self._create()
        elif what := self._change(items):
            renewal = self._renew(what)
        self._mend_logs()
        if self._connection is None:
            self._connection = self._opened()
        return self._connection, renewal

    def committed(self) -> None:
        """Take the file and its logs as they are now for what was written."""
        now = _status(self.path)
        if now is not None and _same(now, self._seen):
            self._seen = now
        path = str(self.path)
        self._logs = {path + suffix: _status(path + suffix) for suffix in _LOGS}

    def failed(self, error: Exception) -> None:
        """Close the connection, unless only it has what was written."""
        self._damaged = self._damaged or _code(error) in _DAMAGED
        with contextlib.suppress(OSError):
            if not self.adrift():
                self._close()

    def adrift(self) -> bool:
        """Return True if what was written is no longer at the path."""
        return self._seen is not None and not _same(_status(self.path), self._seen)

    def end(self) -> None:
        """Close the file, as one that reads from read-only media, too."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # a reader has it open: an empty log stays beside the file
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._close()

    def _change(self, items: int) -> str:
        """Return what has happened to the file since the last commit."""
        now, seen = _status(self.path), self._seen
        if now is None or seen is None:
            return "was removed or moved"
        if not _same(now, seen):
            return "was replaced"
        # Elsewhere the clock of a server may set the time of a change late.
        changed = now.st_size < seen.st_size or (self._local and now.st_mtime_ns != seen.st_mtime_ns)
        if self._damaged or (changed and not self._has(items)):
            self._damaged = True
            return "was changed by another program, and is damaged"
        self._seen = now
        return ""

    def _has(self, items: int) -> bool:
        """Return True if another connection finds all items in the file."""
        try:
            with contextlib.closing(_connect(self.path)) as connection:
                whole = connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
                ((found,),) = connection.execute(_COUNT)
                return whole and bool(found >= items)
        except sqlite3.DatabaseError as error:
            if _code(error) in _TRANSIENT:
                raise
            return False

    # ------------------------------------------------------------ new files

    def _renew(self, what: str) -> Renewal:
        """Create a file with all that the connection still reads, else an empty one."""
        former, lost = self.path, True
        if self._connection is not None and not self._damaged:
            try:
                self._create(self._connection)
                lost = False
            except sqlite3.Error as error:  # there is no room, or the former file cannot be read
                if _code(error) in _TRANSIENT:
                    raise
        if lost:
            self._close()  # this changes a damaged file, so before that is put aside
            if self._damaged and not self.adrift():
                self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
            self._create()
        return Renewal(former, what, lost)

    def _create(self, source: sqlite3.Connection | None = None) -> None:
        """Create the file under a temporary name first: its final name means readable."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._wanted.with_name(f".{self._wanted.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        try:
            # Only its owner may read it. SQLite gives its -wal and -shm files the same mode.
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                if source is None:
                    create(connection)
                    self._begin(connection)
                else:
                    source.backup(connection)
                    connection.execute("PRAGMA journal_mode = DELETE")
            about = draft.lstat()
            # A log of the former file would be taken for one of the new file.
            for log, status in self._logs.items():
                if status is not None and _same(_status(log), status):
                    os.unlink(log)
            self._place(draft)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._close()
        self._seen, self._damaged = about, False

    def _place(self, draft: Path) -> None:
        """Give a file the path of the run, or another name if something is there."""
        for number in range(1, MAX_FILES + 1):
            path = self._wanted if number == 1 else self._wanted.with_stem(f"{self._wanted.stem}-{number}")
            if not os.path.lexists(path):
                draft.rename(path)
                self.path = path
                return
        raise StoreError(f"{self._wanted} was replaced {MAX_FILES} times while the run wrote to it.")

    # ------------------------------------------------------------ the connection

    def _opened(self) -> sqlite3.Connection:
        self._local = is_local(self.path.parent)
        connection = _connect(self.path)
        try:
            connection.execute(f"PRAGMA journal_mode = {'WAL' if self._local else 'TRUNCATE'}")
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if self._local else 'FULL'}")
            check(lambda sql: connection.execute(sql).fetchall(), self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _mend_logs(self) -> None:
        """If a log was removed, move its content to the file and open that again."""
        if self._connection is None or all(_same(_status(log), status) for log, status in self._logs.items()):
            return
        busy, frames, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if not busy and frames == moved:  # else a reader needs the log as it is: the next commit tries again
            self._close()

    def _close(self) -> None:
        connection, self._connection, self._logs = self._connection, None, {}
        if connection is None:
            return
        untouched = self._seen is not None and _written(_status(self.path)) == _written(self._seen)
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        if untouched:  # what the end of the log has changed is no change by another program
            self.committed()


def _connect(path: Path) -> sqlite3.Connection:
    """Open a file that exists, for reading and writing."""
    return sqlite3.connect(
        address(path, "mode=rw"), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_SECONDS, check_same_thread=False
    )


def _status(path: str | Path) -> os.stat_result | None:
    """Return the status of a file, which is None if there is none."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _written(status: os.stat_result | None) -> tuple[int, ...]:
    """Return what changes when a file is written."""
    return () if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _code(error: Exception) -> int:
    """Return SQLite's primary code of an error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _same(now: os.stat_result | None, then: os.stat_result | None) -> bool:
    """Return True if two statuses are of the same regular file, or of none."""
    if now is None or then is None:
        return now is then
    return stat.S_ISREG(now.st_mode) and (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)
