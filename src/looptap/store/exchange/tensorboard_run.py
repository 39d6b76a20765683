"""Import a directory of TensorBoard event files as a stored run in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from looptap.protocol.files.regular_files import open_regular
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_events import Damaged, ScalarPoint, read_points
from looptap.store.layout.columns import fact, stored
from looptap.store.layout.run_path import FOLDER, kept
from looptap.store.layout.schema import MAX_WALL_SECONDS, create

MAX_CURVES = 10_000
"""Maximum number of tags in a directory."""
MAX_NOTES = 8
"""Sentences on what cannot be read."""
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
    times are wall clock. Of a damaged file, what comes before the damage is read, as TensorBoard does. A time that no
    clock shows gives way to the one before it. The run's farewell says both. Raises StoreError if there is no event
    file, or none can be read.
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
        notes: list[str] = []
        connection.execute("BEGIN")
        odd_times: list[float] = []
        items = _rows(directory, files, streams, notes, odd_times)
        connection.executemany("INSERT INTO items VALUES (?, ?, ?, 0, ?, ?, 0, ?, ?)", items)
        rows = [(number, name, "", "step", "", None, "") for name, (number, _) in streams.items()]
        connection.executemany("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?, 1)", rows)
        if notes and not streams:
            raise StoreError(f"{place} has no scalar that can be read: {notes[0]}.")
        notes += _steps_back(connection, streams)
        ((first, last),) = connection.execute("SELECT min(wall), max(wall) FROM items WHERE wall > 0")
        if odd_times:
            connection.execute("UPDATE items SET time = :first, wall = :first WHERE wall = 0", {"first": first or 0.0})
            count, odd = len(odd_times), odd_times[0]
            notes.append(f"times that no clock shows were left out ({count:,} in all, the first {odd:g})")
        facts = {
            "name": directory.resolve().name,
            "id": directory.resolve().name,
            "source": "TensorBoard",
            "started": first,
            "ended": last or 0.0,
            "farewell": "; ".join(["imported from TensorBoard", *notes[:MAX_NOTES]]),
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


def _steps_back(connection: sqlite3.Connection, streams: dict[str, list[int]]) -> list[str]:
    """Return a note for the streams whose steps are repeated, as after a resume."""
    before = "lag(event) OVER (PARTITION BY stream ORDER BY number)"
    found = connection.execute(
        f"SELECT stream, before, event FROM (SELECT stream, event, {before} AS before FROM items) WHERE event < before"
    ).fetchall()
    if not found:
        return []
    names = {number: name for name, (number, _) in streams.items()}
    stream, last, first = found[0]
    return [
        f"steps are repeated: {names[stream]!r:.100} goes back from {last:,} to {first:,}, as after a resume; "
        f"{len({row[0] for row in found}):,} curves do"
    ]


def _rows(
    directory: Path, files: list[Path], streams: dict[str, list[int]], notes: list[str], odd_times: list[float]
) -> Iterator[tuple[object, ...]]:
    """Yield item rows; count the items of each name's stream in ``streams``.

    ``notes`` get a sentence for each file that cannot be read to its end, ``odd_times`` the times that no clock shows.
    In place of these stands the time before it, 0 at the beginning.
    """
    wall = 0.0
    for path in files:
        folder = os.fsencode(path.parent.relative_to(directory)).decode(errors="replace")
        for scalar in _scalars(path, notes):
            name = scalar.tag if folder == "." else f"{folder}/{scalar.tag}"
            place = streams.setdefault(name, [len(streams) + 1, 0])
            if len(streams) > MAX_CURVES:
                raise StoreError(f"{directory} has more than {MAX_CURVES:,} curves; name a folder below it.")
            place[1] += 1
            if 0 < scalar.wall < MAX_WALL_SECONDS:
                wall = scalar.wall
            else:
                odd_times.append(scalar.wall)
            yield (place[0], place[1], scalar.step, wall, wall, *stored(scalar.value))


def _scalars(path: Path, notes: list[str]) -> Iterator[ScalarPoint]:
    count = 0
    try:
        with open_regular(path) as file:
            for point in read_points(file):
                count += 1
                yield point
    except Damaged as error:
        notes.append(f"{path} is damaged after {count:,} points, and the rest was not read: {error}")
    except OSError as error:
        notes.append(f"{path} cannot be read: {error.strerror or error}")
