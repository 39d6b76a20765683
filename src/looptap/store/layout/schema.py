"""The tables of a stored run, and the checks that a file has them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from looptap.store.errors import StoreError
from looptap.store.layout.series_view import SERIES

APPLICATION = int.from_bytes(b"ltap", "big")
"""SQLite's application_id of a stored run."""
MAX_WALL_SECONDS = 253_402_300_800.0
"""Seconds from 1970 to the year 10,000: a wall time beyond is none."""
SCHEMA_VERSION = 2
"""The version of the tables, SQLite's user_version: 2 since there are pages. A file of an older one stays readable."""

Select: TypeAlias = Callable[[str], list[tuple[Any, ...]]]
"""Runs one SQL query over a file."""

_LATER_TABLES = ("scalars", "pages")
_LATER_COLUMNS = {
    ("streams", "first"): "SELECT *, 1 AS first FROM main.streams",
    ("commands", "asked"): "SELECT rowid, *, NULL AS asked FROM main.commands",
}
"""Tables and columns that an older file may lack, and for columns what the table is read as then."""

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
                            -- 8 an event that is repeated after a resume
    value,                  -- the number, if it is one; NULL for NaN, which SQLite does not have
    packed,                 -- what a number does not say: a row as a JSON array (text), anything else as msgpack (blob)
    PRIMARY KEY (stream, number)
) WITHOUT ROWID;
CREATE TABLE pages (        -- items in columns, where their values have one type a field; the others are in items
    stream INTEGER NOT NULL,
    first INTEGER NOT NULL, -- the number of the first item; those of the next follow
    count INTEGER NOT NULL,
    event INTEGER NOT NULL, -- the number of the last event
    rank INTEGER NOT NULL,
    clock REAL NOT NULL,    -- what to add to times for seconds since 1970
    rows INTEGER NOT NULL,  -- 1 if a value is a row of the columns, 0 if it is the only column
    checksum INTEGER NOT NULL,  -- CRC-32: see looptap.store.layout.pages
    layout TEXT NOT NULL,   -- a JSON array of [type, offset in columns, texts] for each: "q" int64, "d" float64,
                            -- "?" a byte 0 or 1, "B" and "H" a uint8 or uint16, the index of a text
    flags BLOB,             -- a byte for each item, or NULL if all are 0
    events BLOB NOT NULL,   -- int64, little-endian, as all are; of more than 2 items, two numbers mean the first event
                            -- and the distance of each to the next
    times BLOB NOT NULL,    -- seconds of the host's monotonic clock: float64
    columns BLOB NOT NULL,  -- one after the other, each from a multiple of 8 bytes on
    PRIMARY KEY (stream, first)
);
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
CREATE TABLE scalars (      -- the history of scalars, a row for each type of events, replaced as it grows
    event TEXT PRIMARY KEY,
    last INTEGER NOT NULL,  -- the number of the newest event in it
    clock REAL NOT NULL,    -- what to add to times for seconds since 1970
    names TEXT NOT NULL,    -- a JSON array of [name, query, int or bool or float, whether the job exposes it, rests]:
                            -- an int beyond 2**53 is its float64 plus its rest; [] where no row has one
    numbers BLOB NOT NULL,  -- of the events: int64, little-endian, as all are
    times BLOB NOT NULL,    -- seconds of the host's monotonic clock: float64
    columns BLOB NOT NULL   -- the float64 of each name in turn, then for each name a byte that is 1 where it has one
);
{SERIES}
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
"""


def create(connection: sqlite3.Connection) -> None:
    """Create all tables in one transaction."""
    connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")


def completions(select: Select) -> list[str]:
    """Return SQL that completes an older file in memory, so that all are read alike."""
    found = {name: {column for _, column, *_ in select(f"PRAGMA main.table_info({name})")} for name in _columns()}
    tables = [f"CREATE TEMP TABLE {name} ({', '.join(_columns()[name])})" for name in _LATER_TABLES if not found[name]]
    views = [
        f"CREATE TEMP VIEW {table} AS {sql}"
        for (table, column), sql in _LATER_COLUMNS.items()
        if column not in found[table]
    ]
    return tables + views


def check_schema(select: Select, path: Path | str) -> None:
    """Raise StoreError unless ``select`` reads a stored run of a supported version."""
    ((application,),) = select("PRAGMA application_id")
    ((version,),) = select("PRAGMA user_version")
    if application != APPLICATION:
        raise StoreError(f"{path} is an SQLite database, but not a run that looptap has stored.")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer looptap (version {version} of the file, and this one reads up to "
            f"{SCHEMA_VERSION}); install a newer looptap to open it."
        )
    if version < 1:
        raise StoreError(f"{path} has the version {version} of a stored run, which never existed: it is damaged.")
    rows = select("SELECT type, name, rootpage FROM sqlite_schema WHERE type <> 'index'")
    made = {str(name).lower(): (kind, page) for kind, name, page in rows}
    _refuse_programs(made, path)
    for name, columns in _columns().items():
        if name in made:
            later = [column for table, column in _LATER_COLUMNS if table == name and version < SCHEMA_VERSION]
            _check_table(select, name, made[name][0], set(columns).difference(later), path)
        elif name not in _LATER_TABLES or version == SCHEMA_VERSION:
            raise StoreError(f"{path} is damaged: no such table: {name}.")


def _refuse_programs(made: Mapping[str, tuple[str, int]], path: Path | str) -> None:
    """Raise StoreError for triggers and virtual tables, which run code."""
    for name, (kind, page) in made.items():
        what = {"trigger": "a trigger", "table": "" if page else "a virtual table"}.get(kind)
        if what:
            raise StoreError(f"{path} has {what}, {name!r:.60}, and no run that looptap has stored has one.")


def _check_table(select: Select, name: str, kind: str, columns: Iterable[str], path: Path | str) -> None:
    """Raise StoreError unless a table is a plain one: a view could compute forever."""
    if kind != "table":
        raise StoreError(f"{path} has a {kind} in place of the table {name}: looptap did not make it.")
    found = {column: hidden for _, column, *_, hidden in select(f"PRAGMA main.table_xinfo({name})")}
    if missing := sorted(set(columns).difference(found)):
        raise StoreError(f"{path} is damaged: its table {name} lacks the column {missing[0]}.")
    for column, hidden in found.items():
        if hidden:
            raise StoreError(f"{path} is damaged: its table {name} computes the column {column!r:.60}.")


@cache
def _columns() -> dict[str, list[str]]:
    """Return the columns of each table, as SQLite reads `TABLES`."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}
