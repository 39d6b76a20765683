"""`ColumnForm`: an expression over events that is evaluated column by column.

It consists of nodes: functions of events that return the column of a part of the expression. Each operation is that of
`arithmetic`. A form gives the values that the query gives event by event, or None: then some event raises an error, or
something in it has no column, and the events are evaluated one by one. It changes nothing, so nothing is lost by
trying. A branch is evaluated at the events that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looptap.streams.columns import arithmetic
from looptap.streams.columns.arithmetic import Mask, Operand
from looptap.streams.columns.value_columns import MAX_COLUMNS, Column, ValueColumns


class BareNames(NamedTuple):
    """A query that only names observables: its values are these, as they are."""

    names: tuple[str, ...]
    single: bool
    """True for one value, False for a row."""


class ColumnSource(Protocol):
    """Events whose observables it has column by column."""

    def column(self, name: str) -> Operand:
        """Return the values of one observable, in an array if they have one type."""

    def __len__(self) -> int: ...


class PickedEvents:
    """The events of ``source`` at which ``mask`` is true."""

    def __init__(self, source: ColumnSource, mask: Mask) -> None:
        self._source, self._mask = source, mask
        self._columns: dict[str, Operand] = {}
        self._length = int(np.count_nonzero(mask))

    def column(self, name: str) -> Operand:
        """Return the values of one observable."""
        if name not in self._columns:
            self._columns[name] = arithmetic.picked(self._source.column(name), self._mask)
        return self._columns[name]

    def __len__(self) -> int:
        return self._length


Node: TypeAlias = Callable[[ColumnSource], Operand]
"""Raises an error if an event does, or if it has no column for the values."""


class EvaluatedColumns(NamedTuple):
    """The columns of the items of some events."""

    kept: Mask | None
    """The events that have an item; None: all have."""
    columns: list[Column | list[Any]]
    single: bool
    """True for one column of values, False for rows."""

    def values(self) -> ValueColumns | list[Any]:
        """Return the items as a list, or as the columns that stand for one."""
        columns = [column for column in self.columns if not isinstance(column, list)]
        if len(columns) == len(self.columns) <= MAX_COLUMNS:
            return ValueColumns(columns, not self.single)
        lists = [column if isinstance(column, list) else column.tolist() for column in self.columns]
        return lists[0] if self.single else list(zip(*lists, strict=True))

    def items(self) -> ValueColumns | NDArray[Any] | list[Any]:
        """Return the items as `values` does, but one column of numbers as an array."""
        (first, *_) = self.columns
        return first if self.single and isinstance(first, np.ndarray) else self.values()


class ColumnForm:
    """The items of a query or of a sequence, and the conditions under which they are."""

    def __init__(self, items: Sequence[Node], single: bool, conditions: Sequence[Node]) -> None:
        self._items, self._single, self._conditions = items, single, conditions

    def evaluate(self, events: ColumnSource) -> EvaluatedColumns | None:
        """Return the items of the events, None if they are to be evaluated one by one."""
        try:
            with np.errstate(all="ignore"):  # Python's arithmetic of floats warns of nothing
                return self._evaluate(events)
        except Exception:  # the event that is to blame raises it again
            return None

    def _evaluate(self, events: ColumnSource) -> EvaluatedColumns:
        kept: Mask | None = None
        rows = events
        for condition in self._conditions:
            mask = arithmetic.truth_mask(condition(rows))
            if mask is True:
                continue
            if mask is False:
                return EvaluatedColumns(np.zeros(len(events), np.bool_), [[] for _ in self._items], self._single)
            if kept is not None:
                before, kept = kept, kept.copy()
                kept[before] = mask
            else:
                kept = mask
            rows = PickedEvents(events, kept)
        columns: list[Column | list[Any]] = [arithmetic.as_column(item(rows), len(rows)) for item in self._items]
        return EvaluatedColumns(kept, columns, self._single)


# ---------------------------------------------------------------- nodes


def constant(value: Any) -> Node:
    """Return the node of a constant."""
    return lambda events: value


def observed(name: str) -> Node:
    """Return the node of an observable."""
    return lambda events: events.column(name)


def call_of_columns(function: Callable[..., Operand], *arguments: Node) -> Node:
    """Return the node of a function of columns."""
    return lambda events: function(*[argument(events) for argument in arguments])


def until(end: bool, values: Sequence[Node]) -> Node:
    """Return the node of ``or`` (with ``end`` True) or ``and``."""
    first, *rest = values
    return partial(_until, end, first, until(end, rest)) if rest else first


def _until(end: bool, first: Node, rest: Node, events: ColumnSource) -> Operand:
    found = first(events)
    true = arithmetic.truth_mask(found)
    return _continued(events, found, true if end else arithmetic.opposite(true), rest)


def branch(test: Node, body: Node, orelse: Node) -> Node:
    """Return the node of ``body if test else orelse``."""
    return partial(_branch, test, body, orelse)


def _branch(test: Node, body: Node, orelse: Node, events: ColumnSource) -> Operand:
    true = arithmetic.truth_mask(test(events))
    if isinstance(true, bool):
        return (body if true else orelse)(events)
    return arithmetic.selected(true, body(PickedEvents(events, true)), orelse(PickedEvents(events, ~true)))


def comparison(comparisons: Sequence[Callable[[Any, Any], Any]], operands: Sequence[Node]) -> Node:
    """Return the node of a chain of comparisons, which ends at the first false one."""
    return lambda events: _compared(comparisons, operands[1:], operands[0](events), events)


def _compared(
    comparisons: Sequence[Callable[[Any, Any], Any]], others: Sequence[Node], left: Operand, events: ColumnSource
) -> Operand:
    right = others[0](events)
    found = arithmetic.compared(comparisons[0], left, right)
    if len(others) == 1:
        return found
    true = arithmetic.truth_mask(found)
    if not isinstance(true, bool):
        right = arithmetic.picked(right, true)
    rest = partial(_compared, comparisons[1:], others[1:], right)
    return _continued(events, found, arithmetic.opposite(true), rest)


def _continued(events: ColumnSource, found: Operand, ended: Mask | bool, rest: Node) -> Operand:
    """Return ``found`` where the evaluation has ``ended``, elsewhere ``rest``."""
    if isinstance(ended, bool):
        return found if ended else rest(events)
    return arithmetic.selected(ended, arithmetic.picked(found, ended), rest(PickedEvents(events, ~ended)))
