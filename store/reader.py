"""`looptap.open`: a stored run by the path of its file, or of TensorBoard's event files."""

from __future__ import annotations

import glob
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from looptap.store import schema
from looptap.store.errors import StoreError
from looptap.store.places import kept
from looptap.store.run import StoredRun
from looptap.store.tensorboard import imported

_MAGIC = b"SQLite format 3\0"
_BUSY = 5.0  # seconds to wait for a writer that locks the file


def open(path: str | os.PathLike[str]) -> StoredRun:
    """Open the file of a stored run, or a directory of TensorBoard's event files, to read it.

    Raises StoreError if it is neither, is damaged, or was written by a newer looptap.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return StoredRun(imported(place), place)
    connection = _connect(place)
    try:
        schema.check(connection, place)
        return StoredRun(connection, place)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"{place} is damaged or cannot be read: {error}.") from None
        raise


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file that begins as a stored run does."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _near(path: Path) -> str:
    """The newest runs, of those that are kept here, whose names begin as ``path`` does."""
    names = [str(one) for one in kept(f"{glob.escape(path.stem)}*")[:3]]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _connect(path: Path) -> sqlite3.Connection:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}.{_near(path)}") from None
    if head != _MAGIC:
        what = "is empty" if not head else "is no run that looptap has stored"
        raise StoreError(f"{path} {what}: the files of stored runs are SQLite databases.")
    try:
        return _database(path, "mode=ro")
    except sqlite3.OperationalError as error:
        left = [path.with_name(path.name + suffix) for suffix in ("-journal", "-wal")]
        unfinished = any(one.exists() and one.stat().st_size for one in left)
        try:
            # Whoever was killed in a commit left it to the next to undo that, which takes the right to write; on
            # read-only media a finished file needs to be told that nobody writes.
            return _database(path, "mode=rw" if unfinished else "mode=ro&immutable=1")
        except sqlite3.Error:
            raise StoreError(f"{path} cannot be read: {error}.") from None
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} is damaged: {error}.") from None


def _database(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")  # the file may be anybody's
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
