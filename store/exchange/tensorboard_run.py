"""Import a directory of TensorBoard event files as a stored run in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from looptap.protocol.files.regular_files import open_regular
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_events import Damaged, ScalarPoint, read
from looptap.store.layout.columns import fact, stored
from looptap.store.layout.run_path import FOLDER, kept
from looptap.store.layout.schema import create

MAX_CURVES = 10_000
"""Maximum number of tags in a directory."""
_MARK = ".tfevents."
_PARTS = frozenset(("train", "training", "val", "valid", "validation", "eval", "test"))


def is_event_file(path: Path) -> bool:
    """Return True if ``path`` is a file that TensorBoard would read."""
    return _MARK in path.name and path.is_file()


def event_files(directory: Path) -> list[Path]:
    """Return the event files in and below ``directory``, sorted by path."""
    found = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names if _MARK in name)
    return sorted(found)


def event_folders(directory: Path) -> list[Path]:
    """Return the folders of TensorBoard's runs in ``directory``, sorted.

    A run is a folder with event files in it or below it. A directory is one run if it has event files of its own, or
    only folders that are named after parts of a data set; then there are none.
    """
    if any(is_event_file(one) for one in directory.iterdir()):
        return []
    found = sorted(one for one in directory.iterdir() if one.is_dir() and event_files(one))
    return [] if all(one.name.lower() in _PARTS for one in found) else found


def imported(place: Path) -> sqlite3.Connection:
    """Return an in-memory database with a stream for each tag.

    ``place`` is a folder or an event file. Tags in a subfolder are named folder/tag. The event number is the step;
    times are wall clock. Raises StoreError if there is no event file or one is damaged.
    """
    directory, files = (place, event_files(place)) if place.is_dir() else (place.parent, [place])
    if not files:
        raise StoreError(
            f"{directory} is a directory without TensorBoard's event files; a stored run is a file.{_inside(directory)}"
        )
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        create(connection)
        streams: dict[str, list[int]] = {}
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, 0, ?, ?, 0, ?, ?)", _rows(directory, files, streams))
        rows = [(number, name, "", "step", "", None, "") for name, (number, _) in streams.items()]
        connection.executemany("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?, 1)", rows)
        ((first, last),) = connection.execute("SELECT min(wall), max(wall) FROM items")
        facts = {
            "name": directory.resolve().name,
            "id": directory.resolve().name,
            "source": "TensorBoard",
            "started": first,
            "ended": last or 0.0,
            "farewell": "imported from TensorBoard",
        }
        connection.executemany("INSERT INTO run VALUES (?, ?)", [(k, fact(v)) for k, v in facts.items()])
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _inside(directory: Path) -> str:
    """Return a sentence on the stored runs in a folder, or in its folder of runs."""
    for folder in (directory, directory / FOLDER):
        if found := kept(folder=folder):
            newest = f"{folder} has {len(found):,}, the newest is {found[0].name}"
            return f" {newest}; looptap compare {folder} compares them."
    return ""


def _rows(directory: Path, files: list[Path], streams: dict[str, list[int]]) -> Iterator[tuple[object, ...]]:
    """Yield item rows; count the items of each name's stream in ``streams``."""
    for path in files:
        folder = os.fsencode(path.parent.relative_to(directory)).decode(errors="replace")
        for scalar in _scalars(path):
            name = scalar.tag if folder == "." else f"{folder}/{scalar.tag}"
            place = streams.setdefault(name, [len(streams) + 1, 0])
            if len(streams) > MAX_CURVES:
                raise StoreError(f"{directory} has more than {MAX_CURVES:,} curves; name a folder below it.")
            place[1] += 1
            yield (place[0], place[1], scalar.step, scalar.wall, scalar.wall, *stored(scalar.value))


def _scalars(path: Path) -> Iterator[ScalarPoint]:
    try:
        with open_regular(path) as file:
            yield from read(file)
    except Damaged as error:
        raise StoreError(f"{path} is not a TensorBoard event file, or is damaged: {error}.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}.") from None
