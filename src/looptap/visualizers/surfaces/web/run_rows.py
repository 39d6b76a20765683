"""`RunRows`: reads the table of runs of a page, each run once until it changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from looptap.client.compared_run import ComparedRun, compared_runs
from looptap.streams.errors import LooptapError
from looptap.visualizers.comparison import RunTable
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.web.run_shelf import RunShelf

MAX_TABLE_RUNS = 250
"""Runs of a table."""
MAX_TABLE_COLUMNS = 60
"""Columns of a table that are settings or figures."""
LIVE_ROW_SECONDS = 30.0
"""Seconds for which the figures of a run that is not over are kept: to read them attaches queries to it."""
_OVER = ("ended", "failed")


class RunRows:
    """Reads runs of a shelf for tables; pages share the results."""

    def __init__(self, shelf: RunShelf) -> None:
        self._shelf = shelf
        self._guard = threading.Lock()  # held while runs are read
        self._rows: dict[str, tuple[float, ComparedRun]] = {}

    def table(self, keys: Sequence[str]) -> tuple[RunTable, dict[str, str]]:
        """Return the table of runs, and why others are left out. Blocks while it reads."""
        keys = list(dict.fromkeys(keys))[:MAX_TABLE_RUNS]
        without: dict[str, str] = {}
        with self._guard:
            here = {entry.key for entry in self._shelf.entries()}
            self._rows = {key: row for key, row in self._rows.items() if key in here}
            now = time.monotonic()
            self._read([key for key in keys if self._is_due(key, now)], without)
            rows = [self._rows[key][1] for key in keys if key in self._rows]
        return RunTable(rows, {}), without

    def keys_of(self, table: Iterable[ComparedRun]) -> list[str]:
        """Return the page's key of each run of a table."""
        names = {id(row): key for key, (_, row) in self._rows.items()}
        return [names.get(id(row), row.id) for row in table]

    def _is_due(self, key: str, now: float) -> bool:
        when, row = self._rows.get(key, (0.0, None))
        return row is None or (row.state not in _OVER and now - when > LIVE_ROW_SECONDS)

    def _read(self, keys: Sequence[str], without: dict[str, str]) -> None:
        """Read runs, several at once."""
        opened: dict[str, Any] = {}
        try:
            for key in keys:
                try:
                    opened[key] = self._shelf.open(key)
                except LooptapError as error:
                    without[key] = str(error)
            now = time.monotonic()
            rows = compared_runs(opened.values(), {})
            self._rows |= {key: (now, row) for key, row in zip(opened, rows, strict=True)}
        finally:
            for key in opened:
                self._shelf.close(key)


def rows_as_asked(table: RunTable, message: Mapping[str, Any]) -> RunTable:
    """Return a table as a page asks for it: filtered, sorted. Raises QueryError."""
    where, sort = (str(message.get(name) or "").strip() for name in ("where", "sort"))
    if sort:
        table = table.sort(sort)
    if where:  # last: of no run nothing is known to sort by
        table = table.where(where)
    return RunTable(reversed(table.rows), table.ways) if message.get("down") is True else table


def drawn_table(table: RunTable, message: Mapping[str, Any]) -> Plot:
    """Return lines across axes; the last is what a page sorts by. Raises QueryError."""
    return table.parallel(*table.axes(str(message.get("sort") or "").strip()))


def plain_table(table: RunTable, keys: Sequence[str]) -> dict[str, Any]:
    """Return the titles and the rows of a table as texts."""
    columns = table.columns[:MAX_TABLE_COLUMNS]
    titles, rows = table.texts(columns)
    return {
        "titles": titles,
        "rows": [
            {"key": key, "cells": cells, "problem": row.problem}
            for key, cells, row in zip(keys, rows, table, strict=True)
        ],
    }
