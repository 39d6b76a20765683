"""The history of scalars of a live or a stored run: names, and rows of some."""

from __future__ import annotations

import ast
import contextlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from looptap.protocol.errors import MessageError
from looptap.protocol.replies import MAX_VALUE_NUMBER, KeptScalars, ScalarInfo, ScalarReport
from looptap.streams.durations import duration
from looptap.streams.errors import QueryError
from looptap.streams.expressions import SourceText
from looptap.streams.flags import HISTORY

if TYPE_CHECKING:
    from looptap.streams.stream.buffer import Batch

__all__ = ["SPEED", "HistorySpan", "ScalarInfo", "Scalars", "kept_batch", "note_on", "table_with"]

SPEED = "events_per_second"
"""The name of the speed of a type of events, which is kept like a number that they carry."""

_MAX_NUMBERS = 1_000_000  # of one stream; an agent keeps 2,000 of each name
_AS_KEPT: dict[str, Callable[[float], Any]] = {"int": int, "bool": bool}


class NamedColumns(Protocol):
    """A table of kept numbers, as far as their names go."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """What is kept of each name."""

    @property
    def names(self) -> Mapping[str, str]:
        """The names by the query that yields their numbers."""


T = TypeVar("T", bound=NamedColumns)


def table_with(text: str, tables: Sequence[T]) -> tuple[T, list[str]] | None:
    """Return the first table with the name or query ``text``, or all of several.

    Several have commas between them.
    """
    for parts in readings(text):
        for table in tables:
            if len(parts) > len(table.columns):
                continue
            by_query = table.names
            names = [part if part in table.columns else by_query.get(part, part) for part in parts]
            if set(names) <= table.columns.keys() and (SPEED not in names or len(names) == 1):
                return table, names  # the query of the speed is no part of a tuple
    return None


def readings(text: str) -> list[list[str]]:
    """Return how a text may name scalars: as one name, as several, as expressions.

    >>> readings("(step, e['a'])")
    [["(step, e['a'])"], ['(step', "e['a'])"], ['step', "e['a']"]]
    """
    found = [[text.strip()], [part.strip() for part in text.split(",")]]
    with contextlib.suppress(QueryError, RecursionError):  # of a name that is no Python, of a deep expression
        body = SourceText(text).body
        parts = body.elts if isinstance(body, ast.Tuple) and len(body.elts) > 1 else [body]
        found.append([ast.unparse(part) for part in parts])
    return found


def row_fields(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names of the elements of a row, each another; None for one name."""
    fields = [name if name not in names[:place] else f"{name}_{place}" for place, name in enumerate(names)]
    return tuple(fields) if len(fields) > 1 else None


class HistorySpan(NamedTuple):
    """The items of a stream that come from the history, ``pace`` seconds apart."""

    first: int
    last: int
    pace: float


class Scalars(list[ScalarInfo]):
    """The scalars of a run whose history is kept, those that events carry first.

    ``left_out`` counts the names beyond the bound ``limit``; ``enabled`` is False for ``Agent(history=False)``.
    """

    left_out = 0
    limit = 0
    enabled = True

    @classmethod
    def of(cls, report: ScalarReport) -> Scalars:
        """Return the list of a report."""
        found = cls(sorted(report.scalars, key=lambda one: one.exposed))
        found.left_out, found.limit, found.enabled = report.left_out, report.limit, report.enabled
        return found

    def __repr__(self) -> str:
        lines = [
            f"{one.name} on {one.on!r}: {one.value!r}, {one.points:,} points of events {one.first:,} to {one.last:,}, "
            f"{_spacing(one.pace)} apart"
            for one in self
        ]
        if self.left_out:
            bound = f"{self.limit} is the bound (Limits.scalars)"
            lines.append(f"and {self.left_out:,} more names without a history: {bound}")
        if not self.enabled:
            lines.append("<no history: the job has Agent(history=False)>")
        return "\n".join(lines) or "<no scalars so far>"


def kept_batch(kept: KeptScalars, first: int, rank: int) -> Batch:
    """Return the rows that have all names as items from number ``first`` on.

    Raises MessageError for columns of different lengths.
    """
    from looptap.streams.stream.buffer import Batch  # not at the top: to list names takes no numpy

    count, width = len(kept.events) // 8, len(kept.columns)
    rests = [rest or bytes(2 * count) for rest in kept.rests or [b""] * width]
    if not len(kept.present) == len(kept.kinds) == len(kept.fields or kept.columns) == len(rests) == width > 0:
        raise MessageError("The history of scalars has columns without names.")
    sizes = set(map(len, (kept.events, kept.times, *kept.columns))), set(map(len, rests)), set(map(len, kept.present))
    if sizes != ({8 * count}, {2 * count}, {count}) or count * width > _MAX_NUMBERS:
        raise MessageError("The history of scalars has columns of different lengths, or too many rows.")
    events, times = array("q", kept.events), array("d", kept.times)
    if min(events, default=0) < 0 or max(events, default=0) > MAX_VALUE_NUMBER:
        raise MessageError("The history of scalars has events that cannot be.")
    whole = list(map(all, zip(*kept.present, strict=True)))
    try:
        found = [
            _numbers(kind, compress(zip(array("d", column), array("h", rest), strict=True), whole))
            for kind, column, rest in zip(kept.kinds, kept.columns, rests, strict=True)
        ]
    except (ValueError, OverflowError):  # an int that is none
        raise MessageError("The history of scalars has a number of another type.") from None
    items: list[Any] = found[0] if width == 1 else list(zip(*found, strict=True))
    events, times = array("q", compress(events, whole)), array("d", compress(times, whole))
    return Batch(first, events, times, items, kept.clock, bytes((HISTORY,)) * len(items), rank)


def _numbers(kind: str, kept: Iterable[tuple[float, int]]) -> list[Any]:
    """Return numbers of a type; an int beyond 2**53 is its float plus its rest."""
    as_kept = _AS_KEPT.get(kind, float)
    return [int(number) + rest if rest else as_kept(number) for number, rest in kept]


def note_on(batch: Batch, pace: float, *, stored: bool = False) -> str:
    """Return a sentence that says what a stream begins with, or has if it is stored.

    >>> from looptap.streams.stream.buffer import Batch
    >>> note_on(Batch(1, array("q", [1, 400]), array("d", [0.0, 9.0]), [2.3, 0.4]), 9.0)
    'begins with 2 values kept since event 1, 9 s apart; live ones follow event 400'
    """
    count = len(batch.values)
    kept = f"{count:,} value{'s' * (count != 1)} kept since event {batch.events[0]:,}, {_spacing(pace)} apart"
    form = "has {}, up to event {:,}" if stored else "begins with {}; live ones follow event {:,}"
    return form.format(kept, batch.events[-1])


def _spacing(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 60 else duration(seconds)
