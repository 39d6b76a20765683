"""The pending events of one type, column by column, as deferred queries see them.

An event is one row of a flat list: its number, its time, the number of the last event before its group, and the numbers
of its plan in the plan's order. In place of the third stands a `GroupEnd` where a group ends, and `MISSED` for an event
that Ctrl-C has cut short; their other elements mean nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.streams.columns.arithmetic import number_array
from looptap.streams.columns.value_columns import MAX_COLUMNS, ValueColumns
from looptap.streams.events import EventOrigin, event_of

HEADER_COUNT = 3
"""Elements of a row before the numbers."""
MISSED: Final = object()

Column: TypeAlias = "NDArray[Any] | Sequence[Any]"
"""The values of one observable: an array if they are known to have one type."""
EventOccurrence: TypeAlias = tuple[Any, int, float, int]
"""An event with its number, time and the number of the last one before its group; None ends the group of the number,
`MISSED` stands for an event that Ctrl-C has cut short."""


class GroupEnd:
    """The end of a group, by its number."""

    __slots__ = ("group",)

    def __init__(self, group: int) -> None:
        self.group = group


class EventBatch:
    """Consecutive events of one type, and ends of groups among them."""

    def __init__(
        self,
        origin: EventOrigin,
        names: Sequence[str],
        numbers: Sequence[int],
        times: Sequence[float],
        began: Sequence[Any],
        values: Sequence[Column],
    ) -> None:
        self.origin, self.names = origin, names
        self.numbers, self.times, self.began, self.values = numbers, times, began, values
        self._columns: dict[int, Column] = {}

    @classmethod
    def of_rows(cls, origin: EventOrigin, names: Sequence[str], rows: Any) -> EventBatch:
        """Return the events of a flat list of rows, or of the compiled `Rows`."""
        if not isinstance(rows, list):
            numbers, times, began, values = rows.columns()
            third = array("q", began) if type(began) is bytes else began
            return cls(origin, names, array("q", numbers), array("d", times), third, [*map(_typed, values)])
        width = HEADER_COUNT + len(names)
        numbers, times, began, *values = [rows[place::width] for place in range(width)]
        return cls(origin, names, numbers, times, began, values)

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def occurrences(self) -> list[EventOccurrence]:
        """The events one by one, as `AttachedQuery.evaluate` takes them."""
        found: list[EventOccurrence] = []
        names, origin = self.names, self.origin
        columns = [column.tolist() if isinstance(column, np.ndarray) else column for column in self.values]
        for number, now, began, *values in zip(self.numbers, self.times, self.began, *columns, strict=True):
            if type(began) is int:
                event = event_of(dict(zip(names, values, strict=True)), origin, number, now, 0.0)
                found.append((event, number, now, began))
            elif type(began) is GroupEnd:
                found.append((None, number, now, began.group))
            else:
                found.append((MISSED, number, now, 0))
        return found

    @property
    def ends(self) -> list[tuple[int, float, int]]:
        """The ends of groups: number of the last event, time, number of the group."""
        if isinstance(self.began, array):
            return []
        rows = zip(self.numbers, self.times, self.began, strict=True)
        return [(number, now, end.group) for number, now, end in rows if type(end) is GroupEnd]

    @cached_property
    def events(self) -> EventBatch | None:
        """The same without ends of groups; None if Ctrl-C has cut an event short."""
        kinds = {int} if isinstance(self.began, array) else set(map(type, self.began))
        if kinds == {int}:
            return self
        if object in kinds:
            return None
        return self._picked([place for place, began in enumerate(self.began) if type(began) is int])

    def every(self, count: int) -> EventBatch:
        """Return the events whose number is a multiple of ``count``."""
        if count == 1:
            return self
        return self._picked([place for place, number in enumerate(self.numbers) if not number % count])

    def _picked(self, places: list[int]) -> EventBatch:
        def picked(column: Any) -> Any:
            return column[places] if isinstance(column, np.ndarray) else [column[place] for place in places]

        return EventBatch(
            self.origin,
            self.names,
            picked(self.numbers),
            picked(self.times),
            picked(self.began),
            [picked(column) for column in self.values],
        )

    @cached_property
    def event_numbers(self) -> array[int]:
        """The numbers as 64-bit integers, which all queries of the plan share."""
        if isinstance(self.numbers, array):
            return self.numbers
        return array("q", self.numbers)

    @cached_property
    def event_times(self) -> array[float]:
        """The times as 64-bit floats, which all queries of the plan share."""
        if isinstance(self.times, array):
            return self.times
        return array("d", self.times)

    def column(self, name: str) -> Column:
        """Return the values of one observable: in an array if they have one type."""
        place = self.names.index(name)
        found = self._columns.get(place)
        if found is None:
            values = self.values[place]
            found = self._columns[place] = values if isinstance(values, np.ndarray) else number_array(values)
        return found

    def table(self, names: Sequence[str], single: bool) -> Sequence[Any]:
        """Return rows of these observables, or with ``single`` the only one's values."""
        columns = [self.column(name) for name in names]
        arrays = [column for column in columns if isinstance(column, np.ndarray)]
        if len(arrays) == len(columns) <= MAX_COLUMNS:
            return ValueColumns(arrays, not single)
        lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]
        return lists[0] if single else list(zip(*lists, strict=True))


def _typed(column: tuple[str, bytes] | list[Any]) -> Column:
    """Return a column of the compiled rows."""
    return column if isinstance(column, list) else np.frombuffer(column[1], column[0])
