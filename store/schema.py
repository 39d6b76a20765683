"""The tables of a stored run, the marks that tell such a file from others, and what a file of another kind is told."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from looptap.store.errors import StoreError

APPLICATION = int.from_bytes(b"ltap", "big")
"""SQLite's application_id of a stored run."""
VERSION = 1
"""The version of the tables, SQLite's user_version. A file of an older one opens for ever."""

TABLES = f"""
CREATE TABLE run (
    key TEXT PRIMARY KEY,   -- id, name, host, pid, started, ended, commit, ...
    value                   -- a number, a text, or a blob as in items.packed
) WITHOUT ROWID;
CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    query TEXT NOT NULL,
    event TEXT NOT NULL,    -- the type of event that it is on
    "window" TEXT NOT NULL,
    fields TEXT,            -- a JSON array of the names of a row's elements, or NULL
    unit TEXT NOT NULL,
    first INTEGER NOT NULL DEFAULT 1    -- the number of the first item that it may have
);
CREATE TABLE items (
    stream INTEGER NOT NULL,
    number INTEGER NOT NULL,
    event INTEGER NOT NULL, -- the number of the event
    rank INTEGER NOT NULL,
    time REAL NOT NULL,     -- seconds of the host's monotonic clock
    wall REAL NOT NULL,     -- seconds since 1970
    flags INTEGER NOT NULL, -- 1 a partial window, 2 an error in place of a value, 4 the event of `when`,
                            -- 8 an event that is done anew after a resume
    value,                  -- the number, if it is one; NULL for NaN, which SQLite does not have
    packed,                 -- what a number does not say: a row as a JSON array (text), anything else as msgpack (blob)
    PRIMARY KEY (stream, number)
) WITHOUT ROWID;
CREATE TABLE commands (
    id TEXT PRIMARY KEY,
    time REAL NOT NULL,
    wall REAL NOT NULL,
    event TEXT NOT NULL,    -- the type of event at which it ran, and its number
    number INTEGER NOT NULL,
    client TEXT NOT NULL,
    what TEXT NOT NULL,
    old, new,               -- numbers, texts, or blobs as in items.packed
    outcome TEXT NOT NULL,
    asked                   -- value, schedule and checkpoint as they were asked for: a blob as in items.packed
);
CREATE VIEW series AS
    SELECT streams.name AS stream, items.number, items.event, rank, time, wall, value, packed
    FROM items JOIN streams ON streams.id = items.stream WHERE flags & 2 = 0;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


def create(connection: sqlite3.Connection) -> None:
    """Make the tables, all or none."""
    connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")


def check(connection: sqlite3.Connection, path: Path | str) -> None:
    """Raise StoreError unless the file behind ``connection`` is a stored run of a version that is understood here."""
    ((application,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    if application != APPLICATION:
        raise StoreError(f"{path} is an SQLite database, but no run that looptap has stored.")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer looptap (version {version} of the file, and this one reads up to "
            f"{VERSION}); install a newer looptap to open it."
        )
    if version < 1:
        raise StoreError(f"{path} has the version {version} of a stored run, which there never was: it is damaged.")
