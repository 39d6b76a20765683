"""`looptap.open`: a stored run by the path of its file, or of TensorBoard's event files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from looptap.store import schema
from looptap.store.errors import StoreError
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


def _connect(path: Path) -> sqlite3.Connection:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}.") from None
    if head != _MAGIC:
        what = "is empty" if not head else "is no run that looptap has stored"
        raise StoreError(f"{path} {what}: the files of stored runs are SQLite databases.")
    log = path.with_name(path.name + "-wal")
    for options in ("mode=ro", "mode=ro&immutable=1"):
        connection = None
        try:
            uri = f"file:{quote(str(path.absolute()))}?{options}"
            connection = sqlite3.connect(uri, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA trusted_schema = OFF")  # the file may be anybody's
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            if connection is not None:
                connection.close()
            if log.exists() or "immutable" in options:
                raise StoreError(f"{path} cannot be read: {error}.") from None
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            raise StoreError(f"{path} is damaged: {error}.") from None
    raise AssertionError("unreachable")
