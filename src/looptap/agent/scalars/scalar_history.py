"""`ScalarHistory`: marks events to look at, and keeps their numbers.

The first hundred events of each type are all looked at. After that the I/O thread marks each type at most 4 times a
second, and less often as its table thins out: after ten minutes of training twice a second, after an hour with each
heartbeat, so that the newest numbers stay fresh. The training thread copies the numbers of a marked event
(`agent/loop/plain_numbers.py`); all else happens here.

Guarantees: at most `Limits.scalars` names with 2,000 points each, further names are counted; no wait for a device. I/O
thread only.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import Any

from looptap.agent.handoff.scalar_looks import Look
from looptap.agent.loop.event_sources import EventSources
from looptap.agent.loop.plain_numbers import MAIN, query_of
from looptap.agent.scalars.scalar_table import ScalarColumn, ScalarTable
from looptap.protocol.limits import Limits
from looptap.protocol.replies import KeptScalars, ScalarInfo, ScalarReport
from looptap.store.kept_scalars import SPEED, row_fields, table_with
from looptap.streams.values.device_transfer import DeviceCopy

MIN_LOOK_INTERVAL_SECONDS = 0.25
"""Seconds between two looks at events of one type, at least."""
MAX_LOOK_INTERVAL_SECONDS = 1.0
"""Seconds between two looks in a long run, whose table takes fewer, and at a type whose events carry no number."""
MIN_SPEED_SECONDS = 0.05
"""Seconds over which a speed is measured, at least."""
ACTIVE_SECONDS = 2.0
"""Seconds since its last look after which a type is marked with the heartbeat alone."""
MAX_WAITING_COUNT = 64
"""Looks that wait for copies from a device; older ones do without."""
MAX_COUNTED_NAMES_COUNT = 1000
"""Names beyond the bound that are counted."""
SPEED_QUERY = "(1 / dt for dt in ema((e.event_dt for e in events if e.event_dt), 0.1))"


class ScalarHistory:
    """The numbers that events carried so far, in a table for each type of events."""

    def __init__(self, sources: EventSources, limits: Limits) -> None:
        self._sources, self._looks, self._limit = sources, sources.looks, limits.scalars
        self._tables: dict[str, ScalarTable] = {}
        self._marked: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._began = time.monotonic()
        self._speed_from: dict[str, tuple[int, float]] = {}  # by type of events: the newest look that has a speed
        self._waiting: list[Look] = []  # for copies from a device, with those after them
        self._left_out: set[tuple[str, str]] = set()

    def mark(self, now: float) -> float:
        """Mark the types that are due; return when to call this again."""
        if self._looks is None:
            return math.inf
        self.collect(now)
        self._place_exposed()
        wanted = math.inf if now - self._began > ACTIVE_SECONDS else MIN_LOOK_INTERVAL_SECONDS
        for name, source in self._sources.types():
            interval = self._interval(name)
            if source.look_next:
                source.mark()  # another thread may have found that it had no work just before
            elif now - self._marked.get(name, -math.inf) >= 0.9 * interval:
                self._marked[name] = now
                source.mark()
            soon = interval < MAX_LOOK_INTERVAL_SECONDS  # else a heartbeat marks it
            if soon and now - self._looked.get(name, -math.inf) < ACTIVE_SECONDS:
                wanted = min(wanted, interval)
        return now + wanted

    def _interval(self, on: str) -> float:
        table = self._tables.get(on)
        pace = MAX_LOOK_INTERVAL_SECONDS if table is None else max(MIN_LOOK_INTERVAL_SECONDS, table.pace)
        return min(pace, MAX_LOOK_INTERVAL_SECONDS)

    def _place_exposed(self) -> None:
        """Record exposed numbers at the type with the most events."""
        assert self._looks is not None
        busiest = max(self._sources.counts().items(), key=lambda item: item[1], default=("", 0))[0]
        before = self._looks.exposed_on
        if before and busiest != before:
            self._looks.exposed_on = busiest
            if (table := self._tables.get(before)) is not None:
                table.forget([name for name, column in table.columns.items() if column.exposed])

    # ------------------------------------------------------------ what is kept

    def collect(self, now: float | None = None) -> None:
        """Take over the looks so far, except those that wait for a device."""
        if self._looks is None:
            return
        fresh = self._looks.take()
        for look in fresh:
            self._looked[look.on] = time.monotonic() if now is None else now
        waiting = [*self._waiting, *fresh]
        while waiting and (len(waiting) > MAX_WAITING_COUNT or _arrived(waiting[0])):
            self._keep(waiting.pop(0))
        self._waiting = waiting

    def _keep(self, look: Look) -> None:
        """Add the numbers of an event to its table."""
        carried, exposed = _numbers(look.numbers), _numbers(look.exposed)
        if not (carried or exposed):
            return
        table = self._tables.setdefault(look.on, ScalarTable(look.on))
        queries = {name: query_of(name, name not in carried) for name in (*carried, *exposed)}
        if SPEED not in queries and (speed := self._speed(look)) is not None:
            carried[SPEED], queries[SPEED] = speed, SPEED_QUERY
        new = [name for name in queries if name not in table.columns]
        if new:
            self._open(table, new, queries, carried)
        if table.columns:
            table.add(look.number, look.time, exposed | carried)
        else:
            del self._tables[look.on]

    def _speed(self, look: Look) -> float | None:
        """Return the events in a second since the look at which this was last known."""
        number, time_ = self._speed_from.get(look.on, (look.number, look.time))
        if look.number > number and look.time - time_ < MIN_SPEED_SECONDS:
            return None
        self._speed_from[look.on] = look.number, look.time
        return (look.number - number) / (look.time - time_) if look.number > number else None

    def _open(self, table: ScalarTable, new: list[str], queries: dict[str, str], carried: Container[str]) -> None:
        """Add columns for ``new`` names, as far as there is room."""
        held = sum(len(one.columns) - (SPEED in one.columns) for one in self._tables.values())
        room = self._limit - held
        if room <= 0:  # those that were left out before are not tried again
            new = [name for name in new if (table.on, name) not in self._left_out]
        if room < len(new):
            new.sort(key=lambda name: (not MAIN.search(name), name in carried))
        full = False
        for name in new:
            full = full or not (room > 0 or name == SPEED or self._make_room(table))
            if name == SPEED or not full:
                table.open(name, queries[name], name not in carried)
                room -= name != SPEED
            else:
                self._leave_out(table.on, name)

    def _make_room(self, table: ScalarTable) -> bool:
        """Drop a minor name of the type that has the most, if that is not ``table``'s."""
        fullest = max(self._tables.values(), key=lambda one: len(one.columns))
        if len(fullest.columns) <= len(table.columns) + 1:
            return False
        minor = next((name for name in reversed(fullest.columns) if name != SPEED and not MAIN.search(name)), None)
        if minor is None:
            return False
        fullest.forget([minor])
        self._leave_out(fullest.on, minor)
        return True

    def _leave_out(self, on: str, name: str) -> None:
        if len(self._left_out) < MAX_COUNTED_NAMES_COUNT:
            self._left_out.add((on, name))

    # ------------------------------------------------------------ what clients get

    def report(self) -> ScalarReport:
        """List the names that are kept."""
        self.collect()
        found = tuple(
            _info(table, name, column)
            for table in self._tables.values()
            for name, column in table.columns.items()
            if column.points
        )
        return ScalarReport(scalars=found, enabled=self._looks is not None, left_out=self.left_out, limit=self._limit)

    @property
    def left_out(self) -> int:
        """The number of names that are not kept, since there are too many."""
        return len(self._left_out) + (0 if self._looks is None else self._looks.left_out)

    def tables(self) -> list[ScalarTable]:
        """Return the tables as they are now."""
        self.collect()
        return list(self._tables.values())

    def kept(self, text: str, on: str, fixed: bool, before: int | None = None) -> KeptScalars | None:
        """Return the history of the names in ``text``; None if some have none.

        ``on`` is preferred; unless it is ``fixed``, another type of events that has all of them will do. ``before`` is
        the number of the first event that is left out.
        """
        self.collect()
        others = [] if fixed else sorted(self._tables.values(), key=lambda table: -len(table.events))
        tables = [table for table in (self._tables.get(on), *others) if table is not None]
        found = table_with(text, tables)
        return None if found is None else self._rows(*found, before)

    def _rows(self, table: ScalarTable, names: Sequence[str], before: int | None) -> KeptScalars:
        """Return the rows of these names, as bytes."""
        count = len(table.events) if before is None else bisect_left(table.events, before)
        columns = [table.columns[name] for name in names]
        return KeptScalars(
            on=table.on,
            query=", ".join(column.query for column in columns),
            fields=row_fields(names),
            events=table.events[:count].tobytes(),
            times=table.times[:count].tobytes(),
            columns=tuple(column.values[:count].tobytes() for column in columns),
            present=tuple(bytes(column.present[:count]) for column in columns),
            kinds=tuple(column.kind.__name__ for column in columns),
            rests=tuple(column.rests[:count].tobytes() if any(column.rests) else b"" for column in columns),
            pace=table.spacing(),
            clock=time.time() - time.monotonic(),
        )


def _arrived(look: Look) -> bool:
    """Return whether no number of a look is still on its way from a device."""
    numbers = (*look.numbers.values(), *look.exposed.values())
    try:
        return all(type(number) is not DeviceCopy or number.arrived() for number in numbers)
    except Exception:  # of a device that has failed, which brings nothing more
        return True


def _numbers(found: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a look without those still on their way from a device."""
    numbers = {}
    for name, number in found.items():
        if type(number) is DeviceCopy:
            try:
                number = number.host.item() if number.arrived() else None
            except Exception:  # of a device that has failed
                number = None
        if number is not None:
            numbers[name] = number
    return numbers


def _info(table: ScalarTable, name: str, column: ScalarColumn) -> ScalarInfo:
    first, last = table.span(column)
    return ScalarInfo(
        name=name,
        on=table.on,
        query=column.query,
        points=column.points,
        pace=table.spacing(),
        first=first,
        last=last,
        value=column.latest,
        exposed=column.exposed,
    )
