"""`looptap.open`: opens a stored run or TensorBoard event files by path."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from looptap.protocol.files.regular_files import open_regular
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_run import imported, is_event_file
from looptap.store.layout.database import Database, connect
from looptap.store.layout.run_path import kept, stored_path
from looptap.store.layout.schema import check_schema
from looptap.store.run import StoredRun

_MAGIC = b"SQLite format 3\0"


def open(path: str | os.PathLike[str]) -> StoredRun:
    """Open a stored run, or a directory of TensorBoard event files.

    Args:
        path: The file of a run, its name or id (the newest of that name), the directory, or one event file.

    Raises StoreError if it is neither, is damaged, or was written by a newer looptap.
    """
    place = stored_path(path)
    if place.is_dir() or is_event_file(place):
        return StoredRun(Database(imported(place), place, trusted=True), place)
    _check_begin(place)
    database = connect(place)
    try:
        check_schema(database.select, place)
        return StoredRun(database, place)
    except BaseException:
        database.close()
        raise


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Return True if ``path`` is a file with the header of a stored run."""
    try:
        with open_regular(Path(path).expanduser()) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def _check_begin(path: Path) -> None:
    """Raise StoreError unless ``path`` is a file with the header of a stored run."""
    try:
        with open_regular(path) as file:
            head = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:  # a path with a null character
        why = getattr(error, "strerror", None) or error
        if isinstance(error, FileNotFoundError) and not path.suffix and len(path.parts) == 1:
            why = f"{why}, and no stored run has this name"
        raise StoreError(f"{path} cannot be opened: {why}.{_near(path)}") from None
    if head != _MAGIC:
        what = "is empty" if not head else "is not a run that looptap has stored"
        raise StoreError(f"{path} {what}: the files of stored runs are SQLite databases.")


def _near(path: Path) -> str:
    """Return the newest stored runs whose names begin like ``path``."""
    names = [str(one) for one in kept(f"{glob.escape(path.stem)}*")[:3]]
    return f" Did you mean {' or '.join(names)}?" if names else ""
