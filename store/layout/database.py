"""`Database`: the SQLite file of a stored run, read only, by queries that take no more than its size can need.

The file is not trusted: b-trees whose pages lead to the same page again and again have rows without end, and a value
of a gigabyte fits a page. So the steps, the rows and the bytes of a query are bounded by the bytes of the file.
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
from looptap.store.errors import StoreError

MAX_STEPS_PER_BYTE = 20
"""Steps of SQLite's machine for each byte of a file: an item has 20 bytes or more and takes some 30 steps."""
MAX_BYTES_PER_BYTE = 16
"""Bytes of Python's objects that one query returns for each byte of a file: a number of a byte becomes one of 32."""
SMALL_FILE_BYTES = 1_000_000
"""A smaller file is given what one of this size is."""
STEPS_BETWEEN_LOOKS = 100_000
"""Steps of SQLite's machine, about 2 ms, after which it is asked whether that is enough."""

_BUSY_TIMEOUT_SECONDS = 5.0  # seconds to wait for a writer that locks the file
_ROWS = 4096  # of a page
_SPARSE_DIVISOR = 64  # a file of which the disk holds less than this part is taken for one with holes
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # how a journal ends that names a file beside it
_BESIDE = ("-journal", "-wal", "-shm")


class _Steps:
    """The steps that a query has left; SQLite refers to this object, which must not refer to the database."""

    left = 0

    def over(self) -> bool:
        """Return whether the query is to be interrupted."""
        self.left -= STEPS_BETWEEN_LOOKS
        return self.left < 0


class Database:
    """What one connection reads of ``path``; ``trusted`` is what this process has made itself. Any thread may ask."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self._connection, self._trusted = connection, trusted
        self._steps = _Steps()
        if not trusted:
            connection.set_progress_handler(self._steps.over, STEPS_BETWEEN_LOOKS)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cell_size_check = ON")

    def select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StoreError for what cannot be read."""
        try:
            return self._bounded(sql, parameters)
        except (sqlite3.Error, OverflowError) as error:
            why = "it leads in circles" if self._steps.left < 0 else str(error)
            raise StoreError(f"{self.path} is damaged or cannot be read: {why}.") from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _bounded(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._trusted:
            return self._connection.execute(sql, parameters).fetchall()
        size = max(size_of(self.path), SMALL_FILE_BYTES)
        try:
            return self._short(sql, parameters, size)
        except sqlite3.DataError:  # a value is longer: each row is weighed before the next is read
            cursor, rows, left = self._begun(sql, parameters, size, size), [], MAX_BYTES_PER_BYTE * size
            for row in cursor:
                rows.append(row)
                if (left := left - _weight(row)) < 0:
                    raise sqlite3.DataError("its values have more bytes than the file") from None
            return rows

    def _short(self, sql: str, parameters: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
        """Return the rows, if none of their values is so long that those of a page together could be too large."""
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


def size_of(path: Path) -> int:
    """Return the bytes of the file and of its log, holes left out."""
    found = 0
    for one in (path, path.with_name(path.name + "-wal")):
        try:
            about = one.stat()
        except OSError:
            continue
        on_disk = getattr(about, "st_blocks", 0) * 512
        found += min(about.st_size, _SPARSE_DIVISOR * on_disk) if on_disk else about.st_size
    return found


def connect(path: Path) -> Database:
    """Open an SQLite file. Raises StoreError if it cannot be read."""
    for suffix in _BESIDE:
        beside = path.with_name(path.name + suffix)
        if not is_regular(beside):
            raise StoreError(f"{beside} is not a regular file, so {path} cannot be read. Remove it: rm {beside}")
    try:
        return _database(path, "mode=ro")
    except sqlite3.OperationalError as error:
        journal, log = (path.with_name(path.name + suffix) for suffix in ("-journal", "-wal"))
        unfinished = any(one.exists() and one.stat().st_size for one in (journal, log))
        if unfinished and _names_another(journal):
            raise StoreError(
                f"{journal} is the journal of a change to several files, and looptap makes none. If {path} is yours "
                f"and you know what made it, remove it: rm {journal}"
            ) from None
        try:
            # A writer that was killed in a commit left it to the next to undo that, which takes the right to write; on
            # read-only media a finished file has to be opened as one that is not written.
            return _database(path, "mode=rw" if unfinished else "mode=ro&immutable=1")
        except sqlite3.Error:
            raise StoreError(f"{path} cannot be read: {error}.") from None
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} is damaged: {error}.") from None


def _names_another(journal: Path) -> bool:
    """Return whether a journal names a file outside, which SQLite would remove with it."""
    try:
        with journal.open("rb") as file:
            file.seek(-len(_NAMES_ANOTHER), os.SEEK_END)
            return file.read() == _NAMES_ANOTHER
    except OSError:  # there is none, or it is shorter
        return False


def _database(path: Path, options: str) -> Database:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        database = Database(connection, path)
        database._bounded("SELECT 1 FROM sqlite_schema", ())
        return database
    except BaseException:
        connection.close()
        raise
