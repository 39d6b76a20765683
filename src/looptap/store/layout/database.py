"""Read-only access to the SQLite file of a stored run, with bounded queries.

The file is not trusted: b-trees that form a cycle have endless rows, and a value of a gigabyte fits a page. So the
steps, rows and bytes of a query are bounded in proportion to the size of the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from sys import getsizeof
from typing import Any
from urllib.parse import quote

from looptap.protocol.files.regular_files import is_regular
from looptap.protocol.process.own_descriptors import identity
from looptap.store.errors import StoreError
from looptap.store.layout.schema import completions

MAX_STEPS_PER_BYTE = 20
"""Steps of SQLite's machine per byte of a file: an item has at least 20 bytes and takes about 30 steps."""
MAX_BYTES_PER_BYTE = 16
"""Bytes of Python objects that a query may return per byte of a file: a number of 1 byte becomes 32."""
SMALL_FILE_BYTES = 1_000_000
"""Smaller files get the bounds of a file of this size."""
STEPS_BETWEEN_LOOKS = 100_000
"""Steps of SQLite's machine, about 2 ms, between checks of the bound."""

_BUSY_TIMEOUT_SECONDS = 5.0  # seconds to wait while a writer locks the file
_ROWS = 4096  # rows of a page
_SPARSE_DIVISOR = 64  # a file with less than 1/64 of its size on disk counts as sparse
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # the end of a journal that names another file
_HEADER_BYTES, _LOGS_AHEAD = 19, b"\2"  # of an SQLite file, whose last byte says how it is written
_BESIDE = ("-journal", "-wal", "-shm")


class _Steps:
    """The steps left to a query; must not refer to the database, to avoid a cycle."""

    left = 0

    def over(self) -> bool:
        """Return True if the query must be interrupted."""
        self.left -= STEPS_BETWEEN_LOOKS
        return self.left < 0


class Database:
    """A read-only connection, bounded unless ``trusted``; usable from any thread."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self._identity = identity(path)
        self._connection, self._trusted = connection, trusted
        self._steps = _Steps()
        if not trusted:
            connection.set_progress_handler(self._steps.over, STEPS_BETWEEN_LOOKS)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cell_size_check = ON")

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StoreError if the file cannot be read."""
        try:
            return self._bounded(sql, parameters)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:  # of an SQL text that no longer is one
            why = "it leads in circles" if self._steps.left < 0 else str(error)
            raise StoreError(f"{self.path} is damaged or cannot be read: {why}.") from None

    def complete(self) -> None:
        """Complete a checked file of an older version, in memory."""
        for sql in ("PRAGMA query_only = OFF", "PRAGMA temp_store = MEMORY", *completions(self.select)):
            self.select(sql)
        self.select(f"PRAGMA query_only = {not self._trusted}")

    def is_replaced(self) -> bool:
        """Return True if another file is at the path now."""
        return identity(self.path) not in (None, self._identity)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _bounded(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._trusted:
            return self._connection.execute(sql, parameters).fetchall()
        size = max(bytes_on_disk(self.path), SMALL_FILE_BYTES)
        try:
            return self._short(sql, parameters, size)
        except sqlite3.DataError:  # a longer value: measure each row before reading the next
            cursor, rows, left = self._begun(sql, parameters, size, size), [], MAX_BYTES_PER_BYTE * size
            for row in cursor:
                rows.append(row)
                if (left := left - _weight(row)) < 0:
                    raise sqlite3.DataError("its values have more bytes than the file") from None
            return rows

    def _short(self, sql: str, parameters: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
        """Return the rows, under a length limit at which no page gets too large."""
        cursor, left = self._begun(sql, parameters, size, size // _ROWS), MAX_BYTES_PER_BYTE * size
        rows: list[tuple[Any, ...]] = cursor.fetchmany(_ROWS)
        while len(rows) % _ROWS == 0 and (more := cursor.fetchmany(_ROWS)):
            if (left := left - _weight(chain.from_iterable(more))) < 0:
                raise sqlite3.OperationalError("its values have more bytes than the file")
            rows += more
        return rows

    def _begun(self, sql: str, parameters: Sequence[Any], size: int, longest: int) -> sqlite3.Cursor:
        self._steps.left = MAX_STEPS_PER_BYTE * size
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(longest, 1_000_000_000))
        return self._connection.execute(sql, parameters)


def _weight(values: Iterable[Any]) -> int:
    return sum(map(getsizeof, values))


def bytes_on_disk(path: Path) -> int:
    """Return the bytes of the file and its log, without holes."""
    found = 0
    for one in (path, path.with_name(path.name + "-wal")):
        try:
            about = one.stat()
        except OSError:
            continue
        on_disk = getattr(about, "st_blocks", 0) * 512
        found += min(about.st_size, _SPARSE_DIVISOR * on_disk) if on_disk else about.st_size
    return found


def logs_ahead(path: Path) -> bool:
    """Return True if changes to a file go to a log beside it first."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:  # a directory of TensorBoard's, or a file that is gone
        return False
    return header.startswith(b"SQLite") and header.endswith(_LOGS_AHEAD)


def connect(path: Path) -> Database:
    """Open an SQLite file. Raises StoreError if it cannot be read."""
    for suffix in _BESIDE:
        beside = path.with_name(path.name + suffix)
        if not is_regular(beside):
            raise StoreError(f"{beside} is not a regular file, so {path} cannot be read. Remove it: rm {beside}")
    try:
        return _database(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            # Never as immutable: what holds the lock changes the file.
            raise StoreError(
                f"{path} has been locked for {_BUSY_TIMEOUT_SECONDS:g} s by the process that writes it; try again."
            ) from None
        journal, log = (path.with_name(path.name + suffix) for suffix in ("-journal", "-wal"))
        unfinished = any(one.exists() and one.stat().st_size for one in (journal, log))
        if unfinished and _names_another(journal):
            raise StoreError(
                f"{journal} is the journal of a change to several files, and looptap makes none. If {path} is yours "
                f"and you know what made it, remove it: rm {journal}"
            ) from None
        try:
            # Undoing the unfinished commit of a killed writer needs write access; on read-only media SQLite opens a
            # file only as immutable.
            return _database(path, "mode=rw" if unfinished else "mode=ro&immutable=1")
        except (sqlite3.Error, UnicodeDecodeError):
            raise StoreError(f"{path} cannot be read: {error}.") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # of an SQL text that no longer is one
        raise StoreError(f"{path} is damaged: {error}.") from None


def _names_another(journal: Path) -> bool:
    """Return True if a journal names another file, which SQLite would delete."""
    try:
        with journal.open("rb") as file:
            file.seek(-len(_NAMES_ANOTHER), os.SEEK_END)
            return file.read() == _NAMES_ANOTHER
    except OSError:  # no journal, or a shorter one
        return False


def address(path: Path, options: str) -> str:
    """Return a file's address for `sqlite3.connect`; options are as in mode=ro."""
    return f"file:{quote(os.fsencode(path.absolute()))}?{options}"


def _database(path: Path, options: str) -> Database:
    connection = sqlite3.connect(
        address(path, options), uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        database = Database(connection, path)
        database._bounded("SELECT 1 FROM sqlite_schema", ())
        return database
    except BaseException:
        connection.close()
        raise
