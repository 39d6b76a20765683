"""`WrittenFile`: the SQLite file of a run while it is written.

A file that is removed, moved or replaced lives on while it is open. So whatever was written to it is copied to a new
file, and nothing is lost. It is lost only if the file is damaged, or if there is no room for the copy. `rm -rf` may
remove the file at any moment, so from its creation on, a connection always has it open.

Where the job has closed the descriptors of the file, as code does that makes a daemon of its process, the run continues
in a copy: SQLite keeps their numbers, and would write into the files of the job that have got them.

Guarantees: a file that is not this one is never written, replaced or removed. Assumes: used by one thread; no code
closes its descriptors, and opens files, within the milliseconds of a commit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from looptap.protocol.process.own_descriptors import (
    LISTS_DESCRIPTORS,
    Identity,
    OwnDescriptor,
    descriptors_of,
    identity,
    keep_for_ever,
)
from looptap.store.errors import StoreError
from looptap.store.layout.database import address
from looptap.store.layout.run_path import GONE, absolute_path, is_on_local_disk
from looptap.store.layout.schema import check_schema, create

BUSY_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for a reader that locks the file; only without a write-ahead log."""
MAX_FILES = 100
"""Files of one run: the name ends with -2, -3, … if something else is at its path."""

_AHEAD, _BEHIND = ("WAL", "NORMAL", ("-wal", "-shm")), ("TRUNCATE", "FULL", ("-journal",))
"""How a file on a local disk, and one elsewhere, is written: its journal, when it is synced, the files beside it."""
_LOGS = ("-wal", "-shm", "-journal")
_DAMAGE = "was changed by another program, and is damaged"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TRANSIENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
_FAILURES = (OSError, StoreError, sqlite3.Error)
_COUNT = 'SELECT (SELECT count(*) FROM items) + (SELECT coalesce(sum("count"), 0) FROM pages)'


class Renewal(NamedTuple):
    """Why and where a file was made again."""

    former: Path
    what: str
    """Such as "was removed or moved"."""
    lost: bool
    """True if the new file has nothing of the former one."""


class OwnConnection(sqlite3.Connection):
    """A connection that is left as it is once the job has closed its descriptors."""

    path: Path
    descriptors: tuple[OwnDescriptor, ...]
    """Those of its file in this process: SQLite shares and reuses them."""

    def is_stranded(self) -> bool:
        """Return True if its descriptors were closed, so that it must not be used."""
        return LISTS_DESCRIPTORS and not any(one.is_there() for one in self.descriptors)

    def close(self) -> None:
        """Close it, unless it is stranded.

        Then the file stays in being: SQLite knows it by its inode, which must not become that of another.
        """
        if self.is_stranded():
            keep_for_ever(self)
            with contextlib.suppress(OSError):
                os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            super().close()


class WrittenFile:
    """The file at ``path``, which ``begin`` fills when it is new.

    `ready` creates, opens and mends it; `committed` is called after each commit, `failed` after an error of the disk.
    ``renewed`` is called for each file that took the place of a former one.
    """

    def __init__(
        self, path: Path, begin: Callable[[sqlite3.Connection], None], renewed: Callable[[Renewal], None]
    ) -> None:
        self.path = self._wanted = absolute_path(path)
        self._begin, self._renewed = begin, renewed
        self._connection: OwnConnection | None = None
        self._current = False  # False once the connection is to a former file, or has failed
        self._seen: os.stat_result | None = None  # the file after the last commit; None before there is one
        self._log_paths: list[str] = []  # what SQLite keeps beside the open file from the first commit on
        self._logs: dict[str, os.stat_result] = {}
        self._local, self._items = True, 0
        self._suspect = self._damaged = False  # has to be read before it is written; is known to lack something

    def ready(self, items: int) -> sqlite3.Connection:
        """Return the connection to a file that has the ``items`` that were committed.

        Raises StoreError, OSError or sqlite3.Error; then call `failed`.
        """
        self._items = items
        if not self.path.is_absolute():
            raise StoreError(f"{GONE}; name a folder for runs: LOOPTAP_STORE")
        self._leave_stranded()
        if self._seen is None:
            if os.path.lexists(self.path):
                raise StoreError(f"{self.path} exists already, and a run never writes into another's file.")
            self._create()
        elif what := self._change():
            self._renew(what)
        if not self._is_open() and self._log_is_moved():
            self._open()
            if self._damaged:
                self._renew(_DAMAGE)
                self._open()
        assert self._connection is not None
        return self._connection

    def committed(self) -> None:
        """Take the file and its logs as they are now for what was written."""
        now = _status(self.path)
        if _same(now, self._seen):
            self._seen = now
        for log in self._log_paths:
            status = _status(log)
            if status is not None and _same(status, self._logs.setdefault(log, status)):
                self._logs[log] = status

    def failed(self, error: Exception) -> None:
        """Read all again before the next commit."""
        self._damaged = self._damaged or _code(error) in _DAMAGED
        # The connection stays open till another one has the file: only an open file survives its removal.
        self._current, self._suspect = False, True

    def adrift(self) -> bool:
        """Return True if what was written is no longer at the path."""
        return self._seen is not None and not _same(_status(self.path), self._seen)

    def end(self) -> None:
        """Close the file, as one that reads from read-only media, too."""
        with contextlib.suppress(*_FAILURES):
            self._leave_stranded()
        if self._connection is not None and self._current:
            with contextlib.suppress(sqlite3.Error):  # a reader has it open: an empty log stays beside the file
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._close()

    def _change(self) -> str:
        """Return why there must be a new file, if so."""
        now, seen = _status(self.path), self._seen
        if not _same(now, seen):
            return "was replaced" if now else "was removed or moved"
        assert now is not None
        assert seen is not None
        # Elsewhere the clock of a server may set the time of a change late.
        changed = now.st_size < seen.st_size or (self._local and now.st_mtime_ns != seen.st_mtime_ns)
        self._suspect = self._suspect or (self._current and (changed or self._log_is_changed()))
        return _DAMAGE if self._damaged else ""

    def _leave_stranded(self) -> None:
        """Put a copy in the place of a file whose descriptors were closed."""
        if self._connection is None or not self._connection.is_stranded():
            return
        if not self.adrift():
            draft = self._draft()
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{self.path}{suffix}", f"{draft}{suffix}")
            with contextlib.closing(_connected(draft, identity(draft))) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
        self._close()
        if not self.adrift():
            for suffix in _LOGS:
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            draft.replace(self.path)
            self._seen, self._suspect = self.path.lstat(), True

    # ------------------------------------------------------------ new files

    def _renew(self, what: str) -> None:
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
        self._renewed(Renewal(former, what, lost))

    def _create(self, source: sqlite3.Connection | None = None) -> None:
        """Create the file under a temporary name first: its final name means readable."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._draft()
        try:
            with contextlib.closing(_connected(draft, identity(draft))) as connection:
                connection.execute("PRAGMA journal_mode = MEMORY")  # no further file: what fails here is thrown away
                if source is None:
                    create(connection)
                    self._begin(connection)
                else:
                    source.backup(connection)
                    if not _has(connection, self._items):
                        raise sqlite3.DatabaseError(f"{self.path} can no longer be read.")
                    connection.execute("PRAGMA journal_mode = DELETE")
            about = draft.lstat()
            # A log of the former file would be taken for one of the new file.
            for log, status in self._logs.items():
                if _same(_status(log), status):
                    os.unlink(log)
            self._place(draft)
        except BaseException as error:
            if isinstance(error, sqlite3.Error) and not os.path.lexists(draft):  # removed with its folder: try again
                raise StoreError(f"{draft} was removed while it was written.") from None
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._seen, self._logs, self._log_paths = about, {}, []
        self._current = self._suspect = self._damaged = False

    def _draft(self) -> Path:
        """Make an empty file beside the one that is wanted."""
        draft = self._wanted.with_name(f".{self._wanted.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        # Only its owner may read it. SQLite gives its -wal and -shm files the same mode.
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return draft

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

    def _is_open(self) -> bool:
        """Return True if the connection writes to the file and the logs at the path."""
        return self._current and not self._suspect and not self._log_is_gone()

    def _open(self) -> None:
        """Open the file at the path in place of the former connection.

        It can be removed at any moment, and only an open file survives that. A connection with a log is opened after
        the former one has ended its log, and cannot read without the folder. So an immutable one, which needs no log,
        has the file meanwhile.
        """
        between = self._connected("mode=ro&immutable=1")
        self._close()
        self._connection = between
        with contextlib.ExitStack() as undo:
            connection = self._connected("mode=rw")
            undo.callback(connection.close)
            if self._suspect and not _has(connection, self._items):
                self._raise_if_gone()
                self._damaged = True
                return
            self._begin_log(connection)
            undo.pop_all()
        between.close()
        self._connection, self._current, self._suspect = connection, True, False

    def _begin_log(self, connection: sqlite3.Connection) -> None:
        self._local = is_on_local_disk(self.path.parent)
        journal, synchronous, logs = _AHEAD if self._local else _BEHIND
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        check_schema(lambda sql: connection.execute(sql).fetchall(), self.path)
        self._log_paths = [f"{self.path}{suffix}" for suffix in logs]

    def _connected(self, options: str) -> OwnConnection:
        """Return a connection to the file that was written, which is still at the path."""
        with contextlib.ExitStack() as undo:
            seen = self._seen
            connection = _connected(self.path, None if seen is None else (seen.st_dev, seen.st_ino), options)
            undo.callback(connection.close)
            self._raise_if_gone()
            undo.pop_all()
        return connection

    def _raise_if_gone(self) -> None:
        if self.adrift():
            raise StoreError(f"{self.path} was removed or replaced while it was opened.")

    def _close(self) -> None:
        connection, self._connection, self._current, self._logs = self._connection, None, False, {}
        self._log_paths = []
        if connection is not None:
            with self._own_change(), contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _own_change(self) -> Iterator[None]:
        """Take a change of the file by the log's content for no other program's."""
        untouched = self._seen is not None and _written(_status(self.path)) == _written(self._seen)
        yield
        if untouched:
            self.committed()

    # ------------------------------------------------------------ its logs

    def _log_is_gone(self) -> bool:
        """Return True if SQLite writes to a log that is no longer at its path."""
        return any(not _same(_status(log), status) for log, status in self._logs.items())

    def _log_is_changed(self) -> bool:
        """Return True if another program wrote to the log with the last commits."""
        log = f"{self.path}-wal"
        now, seen = _status(log), self._logs.get(log)
        return _same(now, seen) and _written(now) != _written(seen)

    def _log_is_moved(self) -> bool:
        """Move the log to its file; return False while a reader needs a removed one."""
        if self._connection is None:
            return True
        try:
            with self._own_change():
                busy, frames, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            if self._log_is_gone():
                raise
            return True
        return (busy, frames) == (0, moved) or not self._log_is_gone()


def _connected(path: Path, file: Identity | None, options: str = "mode=rw") -> OwnConnection:
    connection = sqlite3.connect(
        address(path, options),
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_SECONDS,
        check_same_thread=False,
        factory=OwnConnection,
    )
    connection.path, connection.descriptors = path, descriptors_of(file)
    return connection


def _has(connection: sqlite3.Connection, items: int) -> bool:
    """Return True if a connection that is new finds all items in its file."""
    try:
        whole = connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        ((found,),) = connection.execute(_COUNT)
        return whole and bool(found >= items)
    except sqlite3.DatabaseError as error:
        if _code(error) in _TRANSIENT:
            raise
        return False


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
