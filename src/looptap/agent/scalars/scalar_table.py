"""The kept numbers of one type of events, evenly spread over the run.

A table that is full drops every other row, and is then given rows half as often. Its first and its newest row always
stay, and of two rows the one that has a rare number does. So do both rows beside a change of an exposed number that
changes seldom, such as a learning rate: it is a step, not a slope.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from typing import Any

MAX_ROWS = 2000
"""Rows of a table."""
MAX_STEPS_COUNT = 100
"""Changes of an exposed number up to which the rows beside each stay."""
_MAX_STEP_ROWS = MAX_ROWS // 4  # that thinning leaves for steps
_MIN_SPACING_SHARE = 0.75  # of the pace: a row that is closer to the one before gives way to the next


class ScalarColumn:
    """The kept numbers of one name: a float each, and whether the event had it."""

    __slots__ = ("changes", "exposed", "kind", "latest", "present", "query", "rests", "values")

    def __init__(self, rows: int, query: str, exposed: bool) -> None:
        self.values = array("d", bytes(8 * rows))
        self.rests = array("h", bytes(2 * rows))
        """By how much an integer differs from its float: up to 1,024 beyond 2**53, else 0."""
        self.present = bytearray(rows)
        self.kind: type = type(None)
        """The common type of the numbers: int, bool or float."""
        self.latest: Any = None
        """The newest number."""
        self.query = query
        """The query of the values that continue it."""
        self.exposed = exposed
        """True if the job exposes it; False for what events carry."""
        self.changes = 0
        """How often its number was another than the one before."""

    @property
    def steps(self) -> bool:
        """True if it is a number that stays what it is for a while."""
        return self.exposed and self.changes <= MAX_STEPS_COUNT

    def changes_at(self, row: int) -> bool:
        """Return whether its number in a row is another than in the row before."""
        return bool(self.present[row] and self.present[row - 1]) and self.number(row) != self.number(row - 1)

    def number(self, row: int) -> float:
        """Return the number in a row, which has one."""
        rest = self.rests[row]
        return int(self.values[row]) + rest if rest else self.values[row]

    def append(self, number: Any) -> None:
        """Append a row; None if the event lacks this number."""
        value = 0.0 if number is None else float(number)
        self.values.append(value)
        self.rests.append(number - int(value) if type(number) is int else 0)
        self.present.append(number is not None)
        if number is None:
            return
        self.changes += self.latest is not None and number != self.latest
        self.latest = number
        kind = type(number)
        self.kind = kind if self.kind in (type(None), kind) else float

    @property
    def points(self) -> int:
        """How many rows have it."""
        return self.present.count(1)


class ScalarTable:
    """The kept rows of one type of events."""

    def __init__(self, on: str) -> None:
        self.on = on
        self.events, self.times = array("q"), array("d")
        self.columns: dict[str, ScalarColumn] = {}
        self.pace = 0.0
        """The least seconds between two rows, about; 0 until the table was full for the first time."""

    @property
    def names(self) -> dict[str, str]:
        """The names by the query that yields their numbers."""
        return {column.query: name for name, column in self.columns.items()}

    def add(self, event: int, time: float, numbers: Mapping[str, Any]) -> None:
        """Append the numbers of an event; a repeated event replaces later ones."""
        while self.events and self.events[-1] >= event:  # the job resumed from an older state
            self._pop()
        if self._last_gives_way(numbers):
            self._pop()
        self.events.append(event)
        self.times.append(time)
        for name, column in self.columns.items():
            column.append(numbers.get(name))
        if len(self.events) > MAX_ROWS:
            self._thin()

    def open(self, name: str, query: str = "", exposed: bool = False) -> None:
        """Add a column, which the rows so far lack."""
        self.columns[name] = ScalarColumn(len(self.events), query, exposed)

    def forget(self, names: Sequence[str]) -> None:
        """Remove columns."""
        for name in names:
            self.columns.pop(name, None)

    def _last_gives_way(self, numbers: Mapping[str, Any]) -> bool:
        """Return True if the newest row is too close to the one before it."""
        times = self.times
        if len(times) < 2 or times[-1] - times[-2] >= _MIN_SPACING_SHARE * self.pace:
            return False
        steps = [(numbers.get(name), column) for name, column in self.columns.items() if column.steps]
        if any(column.changes_at(-1) or number not in (None, column.number(-1)) for number, column in steps):
            return False
        # unless it has a number that the next one lacks
        return all(name in numbers for name, column in self.columns.items() if column.present[-1])

    def _pop(self) -> None:
        self.events.pop()
        self.times.pop()
        for column in self.columns.values():
            column.values.pop()
            column.rests.pop()
            column.present.pop()

    def _thin(self) -> None:
        """Drop about every other row, and halve the pace from now on."""
        rows, span = len(self.events), self.times[-1] - self.times[0]
        self.pace = 2 * self.pace or 2 * span / (rows - 1)
        keep = bytearray(rows)
        keep[0::2] = b"\1" * len(keep[0::2])
        for column in self.columns.values():
            if column.points < rows:
                self._keep_rare(column.present, keep)
        for row in self._beside_steps():
            keep[row] = 1
        keep[0] = keep[-1] = 1
        self.events = array("q", compress(self.events, keep))
        self.times = array("d", compress(self.times, keep))
        for column in self.columns.values():
            column.values = array("d", compress(column.values, keep))
            column.rests = array("h", compress(column.rests, keep))
            column.present = bytearray(compress(column.present, keep))

    def _beside_steps(self) -> list[int]:
        """Return the rows beside changes of numbers that change seldom, up to a bound."""
        columns = [column for column in self.columns.values() if column.steps and column.changes]
        after = [row for column in columns for row in range(1, len(self.events)) if column.changes_at(row)]
        return sorted({place for row in after for place in (row - 1, row)})[-_MAX_STEP_ROWS:]

    def _keep_rare(self, present: bytearray, keep: bytearray) -> None:
        """Of a pair of rows, keep the second where only that one has the number."""
        for first, second in pairwise(range(len(keep))):
            if not first % 2 and present[second] and not present[first]:
                keep[first], keep[second] = 0, 1

    def spacing(self) -> float:
        """Return the mean seconds between two rows; 0 with fewer than two."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else 0.0

    def span(self, column: ScalarColumn) -> Iterator[int]:
        """Yield the first and the last event that a column has a number of."""
        yield self.events[column.present.find(1)]
        yield self.events[column.present.rfind(1)]
