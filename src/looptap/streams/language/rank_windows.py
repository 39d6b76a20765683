"""Reductions over ranks: common windows, and partial results to merge.

In each rank a query is `aligned`: the numbers of its windows do not depend on when it was attached, and it yields
either values or the states of its reducers. `RankMerger` is the same query where the states of all ranks are merged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from looptap.streams.aggregations.registry import Reducer
from looptap.streams.columns.evaluation import ColumnSource
from looptap.streams.errors import QueryError
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.pipeline import Output, Pipeline
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.slots import Slot
from looptap.streams.operators.windows import Count, Group, Seconds, Sliding


class WindowedValue:
    """A value and the number of its window."""

    __slots__ = ("value", "window")

    def __init__(self, window: int, value: Any) -> None:
        self.window, self.value = window, value


class RankWindowStage(Reducing):
    """A reduction with windows that do not depend on when it was attached.

    Windows of n events end at event numbers that are multiples of n (among those that ``every`` selects), windows of
    seconds count from ``origin`` on the host's monotonic clock, and the host numbers its groups (``at``). It yields
    `WindowedValue`. The first window is flagged partial unless it begins with the query.
    """

    at = 0
    """The number of the open window, from 1; of a sliding one, that of its newest event."""
    origin = 0.0

    def push(self, item: Any, number: int = 0, now: float = 0.0) -> Sequence[Output]:
        """Push the event into every part; return the outputs of windows that this ends."""
        if self.every != 1 and number % self.every:
            return ()
        window = self.window
        if isinstance(window, Count):
            span = window.size * self.every
            at, begins = (number - 1) // span + 1, (number - self.every) % span == 0
        elif isinstance(window, Seconds):
            at, begins = math.floor((now - self.origin) / window.size) + 1, self.at > 0
        else:
            at, begins = number if isinstance(window, Sliding) else self.at, True
        if at != self.at:
            self._end(now)
            self.at, self.partial = at, self.partial or not begins
        outputs = super().push(item, number, now)
        if not isinstance(window, Count) or number % span:
            return outputs
        self._ready += tuple(outputs)
        return self.flush(now)

    def name_window(self, group: int) -> None:
        """Let the window that ends have the number of the host's group."""
        if isinstance(self.window, Group):
            self.at = group or self.at + 1

    def in_columns(self, events: ColumnSource) -> None:
        """Return None: its windows follow the numbers of events."""

    def _value(self) -> Output:
        flags, value = super()._value()
        return flags, WindowedValue(self.at, value)


def aligned(pipeline: Reducing, origin: float, states: bool) -> RankWindowStage:
    """Return ``pipeline`` with windows common to all ranks.

    It yields its ``states`` in place of its value if set. Raises QueryError for parts that cannot be merged.
    """
    new = RankWindowStage.__new__(RankWindowStage)
    new.__dict__.update(pipeline.__dict__)
    new.origin = origin
    new.end_windows_elsewhere()
    if states:
        check_mergeable(pipeline)
        new.finish = functools.partial(_states, pipeline.slots)
    return new


def _states(slots: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slot.total().state() for slot in slots)


def check_mergeable(pipeline: Pipeline) -> None:
    """Raise QueryError, with the reason, if partial results cannot be merged."""
    why, hint = "", "combine='list' gives the values of the ranks, combine=f a function of them."
    if not isinstance(pipeline, Reducing):
        why, hint = "it yields at each event, and has nothing to merge", "combine='mean' combines such values."
    elif any(slot.sequence.copied for slot in pipeline.slots):
        why = "it collects whole events"
    elif not all(slot.make().sendable for slot in pipeline.slots):
        why = "two parts of one of its reductions cannot be merged"
    if why:
        raise QueryError(f"This query cannot be merged over ranks: {why}.", pipeline.text, hint=hint)


class RankMerger:
    """The query that merges states of a reduction, from ranks or other mergers.

    ``functions`` are names known only to the job, which calls them at each event.

    >>> from looptap.streams.operators.slots import Slot
    >>> merger = RankMerger("mean(e.loss for e in events)")
    >>> merger.value([((2, 0.0, 0.0, False, None, 1),), ((10, 0.0, 0.0, False, None, 3),)])
    3.0
    """

    def __init__(self, text: str, functions: Iterable[str] = ()) -> None:
        spec = QuerySpec(text, functions={name: functools.partial(_elsewhere, name) for name in functions})
        pipeline = compile_query(spec)
        check_mergeable(pipeline)
        assert isinstance(pipeline, Reducing)
        self._pipeline = pipeline

    def value(self, states: Iterable[Any]) -> Any:
        """Return the value of the query over ``states``. Raises what the query raises."""
        for slot, reducer in zip(self._pipeline.slots, self._merged(states), strict=True):
            assert isinstance(slot, Slot)
            slot.reducer = reducer
        return self._pipeline.finish()

    def joined(self, states: Iterable[Any]) -> tuple[Any, ...]:
        """Merge several states into one."""
        return tuple(reducer.state() for reducer in self._merged(states))

    def _merged(self, states: Iterable[Any]) -> list[Reducer]:
        merged = [slot.make() for slot in self._pipeline.slots]
        for state in states:
            for slot, mine, part in zip(self._pipeline.slots, merged, state, strict=True):
                theirs = slot.make()
                theirs.load_state(part)
                mine.merge(theirs)
        return merged


def _elsewhere(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(f"{name} is a function of the job, and is not to be called where its ranks are merged.")
