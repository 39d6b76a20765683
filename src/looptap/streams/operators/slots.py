"""The reducing parts of a query, over a window or the last events."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from looptap.streams.aggregations.moments import Mean
from looptap.streams.aggregations.registry import Reducer
from looptap.streams.aggregations.sketches import Floats
from looptap.streams.aggregations.sliding import PartialSums, SlidingSums, slide
from looptap.streams.aggregations.state import ItemSeries
from looptap.streams.columns.arithmetic import Mask, NotInColumns
from looptap.streams.columns.evaluation import ColumnForm, ColumnSource
from looptap.streams.harmless.checked_evaluation import evaluating
from looptap.streams.harmless.results import to_copy
from looptap.streams.native.compiled import tap
from looptap.streams.values.sizing import MISSING
from looptap.streams.values.snapshots import MISSING_NUMBER, NUMBER_IDS, take_item

Feed = Callable[[Any], Any]
MIN_SLIDING_EVENTS = 16 if tap is None else 1
"""The size of a window from which many events at once cost less: in arrays, 50 µs each time it has moved by that."""


def taken(value: Any) -> Any:
    """Return a detached copy of an item, whose conversion is checked."""
    if id(type(value)) in NUMBER_IDS:
        return value
    return take_item(to_copy(value) if evaluating() else value)


class Items:
    """A per-event sequence: ``feed(event)`` returns its item (``one``) or items."""

    __slots__ = ("bare", "copied", "feed", "one", "resets")

    def __init__(
        self,
        feed: Feed,
        one: bool,
        bare: bool = False,
        copied: bool = False,
        resets: Iterable[Callable[[], None]] = (),
    ) -> None:
        self.feed, self.one, self.bare, self.copied = feed, one, bare, copied
        self.resets = list(resets)

    def items(self, event: Any) -> Iterable[Any]:
        """Return the items of this event."""
        return (self.feed(event),) if self.one else self.feed(event)


class BatchItems:
    """The items of some events, which may have none."""

    def __init__(self, kept: Mask | None, items: ItemSeries) -> None:
        self._items = items
        self._before = None if kept is None else [0, *np.cumsum(kept).tolist()]  # items before each event

    def between(self, start: int, stop: int) -> ItemSeries:
        """Return the items of the events from ``start`` to ``stop``."""
        before = self._before
        return self._items[start:stop] if before is None else self._items[before[start] : before[stop]]


class SlotColumns:
    """The items of a reducing part by columns, where its reducer ``takes`` these."""

    def __init__(self, form: ColumnForm, takes: Callable[[Sequence[Any]], bool]) -> None:
        self._form, self._takes = form, takes

    def items(self, events: ColumnSource) -> BatchItems | None:
        """Return the items of events, None if they are to be added one by one."""
        found = self._form.evaluate(events)
        return None if found is None or not self._takes(found.columns) else BatchItems(found.kept, found.items())

    def floats(self, events: ColumnSource) -> Floats | None:
        """Return one float for each event, None if some have another item, or none."""
        found = self._form.evaluate(events)
        items = None if found is None or found.kept is not None else found.items()
        return items if isinstance(items, np.ndarray) and items.dtype == np.float64 else None


class Slot:
    """A reducing part of a query, whose reducer restarts with each window."""

    def __init__(self, sequence: Items, make: Callable[[], Reducer]) -> None:
        self.sequence, self.make = sequence, make
        self.columns: SlotColumns | None = None
        """How it takes many events at once; None: one by one."""
        self._feed, self._one, self._copied = sequence.feed, sequence.one, sequence.bare or sequence.copied
        self.reset()

    def reset(self) -> None:
        """Begin a window."""
        self.reducer = self.make()
        self._add, self._takes_missing = self.reducer.add, self.reducer.takes_missing
        for reset in self.sequence.resets:
            reset()

    @property
    def restarts(self) -> bool:
        """True if its reducer is all that it knows of the window."""
        return not self.sequence.resets

    def continue_from(self, other: Slot) -> None:
        """Continue with a copy of the reducer of ``other``."""
        self.reducer = copy.deepcopy(other.reducer, {id(MISSING): MISSING})
        self._add = self.reducer.add

    def push(self, event: Any) -> None:
        """Add the items of this event to the reducer."""
        if self._copied:
            self._add(self._feed(event))
        elif self._one:
            if (item := taken(self._feed(event))) is not MISSING_NUMBER or self._takes_missing:
                self._add(item)
        else:
            for each in self._feed(event):
                if (item := taken(each)) is not MISSING_NUMBER or self._takes_missing:
                    self._add(item)

    def extend(self, items: ItemSeries) -> None:
        """Add items of several events."""
        if len(items):
            self.reducer.extend(items)

    def result(self) -> Any:
        """Return the value of the window."""
        return self.reducer.result()

    def total(self) -> Reducer:
        """Return the reducer of the window's items."""
        return self.reducer


class SlidingSlot:
    """A reducing part over the last ``size`` events.

    A reducer that merges in constant time is kept as two stacks of partial results (amortized O(1) per event); any
    other is recomputed from the kept items for each value.
    """

    def __init__(self, sequence: Items, make: Callable[[], Reducer], size: int, merges: bool) -> None:
        self.sequence, self.make, self.size, self.merges = sequence, make, size, merges
        self.columns: SlotColumns | None = None
        """How it takes many events at once, if it is a sum or a mean; None: one by one."""
        self.reset()

    def reset(self) -> None:
        """Drop all events."""
        self._ahead: tuple[ColumnSource, Floats, SlidingSums] | None = None
        self._state: SlidingSums | None = None  # in place of the four below, if many events came last
        self._older: list[Reducer] = []  # suffixes of the older half, the longest last
        self._total: Reducer | None = None  # of all, once it has been asked for
        self._younger: deque[list[Any]] = deque()  # the items of the younger half, event by event
        self._younger_total = self.make()  # all of the younger half
        for reset in self.sequence.resets:
            reset()

    def push(self, event: Any) -> None:
        """Add this event and remove the oldest."""
        if self._state is not None:
            self._unpack()
        items: list[Any]
        if self.sequence.bare:
            items = [None]  # only counted: the event itself must not outlive emit
        elif self.sequence.copied:
            items = [self.sequence.feed(event)]
        else:
            items = [taken(x) for x in self.sequence.items(event)]
            if not self._younger_total.takes_missing:
                items = [item for item in items if item is not MISSING_NUMBER]
        self._total = None
        if len(self._older) + len(self._younger) == self.size:
            self._drop_oldest()
        self._younger.append(items)
        if self.merges:
            for item in items:
                self._younger_total.add(item)

    def _drop_oldest(self) -> None:
        if not self.merges:
            self._younger.popleft()
            return
        if not self._older:
            suffix: Reducer | None = None
            for items in reversed(self._younger):
                reducer = self.make()
                for item in items:
                    reducer.add(item)
                if suffix is not None:
                    reducer.merge(suffix)
                self._older.append(reducer)
                suffix = reducer
            self._younger.clear()
            self._younger_total = self.make()
        self._older.pop()

    def result(self) -> Any:
        """Return the value over the last events."""
        return self.total().result()

    def total(self) -> Reducer:
        """Return a reducer of the items of the last events."""
        total = self._total
        if total is None:
            total = self._total = self._merged() if self.merges else self._of_all()
        return total

    # ------------------------------------------------------------ many events at once

    def look_ahead(self, events: ColumnSource) -> bool:
        """Compute the values at events; False if these are to be pushed one by one."""
        found = None if self.columns is None or self.size < MIN_SLIDING_EVENTS else self.columns.floats(events)
        before = None if found is None else self._state or self._sums()
        if found is None or before is None:
            return False
        sums, counts, after = slide(before, found, self.size)
        self._ahead = events, sums / counts if isinstance(self._younger_total, Mean) else sums, after
        return True

    def values(self, events: ColumnSource) -> Floats:
        """Return the values at the events of `look_ahead`; else raises NotInColumns."""
        if self._ahead is None or self._ahead[0] is not events:
            raise NotInColumns
        return self._ahead[1]

    def advance(self) -> None:
        """Take the events of `look_ahead`."""
        if self._ahead is not None:
            self._state, self._ahead = self._ahead[2], None

    def _unpack(self) -> None:
        """Continue one by one behind the events of `advance`."""
        assert self._state is not None
        after = self._state
        totals, lost = (part.tolist()[::-1] for part in after.older)
        older = [self._sum(*one) for one in zip(totals, lost, range(1, len(lost) + 1), strict=True)]
        if after.has_older:
            older.append(self.make())  # which the next event drops
        total = self._sum(after.total.totals.item(), after.total.lost.item(), len(after.younger))
        younger = deque([item] for item in after.younger)
        # No call from here on, so no Ctrl-C between these steps.
        self._older, self._younger, self._younger_total, self._total, self._state = older, younger, total, None, None

    def _sums(self) -> SlidingSums | None:
        """Return the present state as sums of floats, None if it has anything else."""
        younger = [item for items in self._younger for item in items]
        older = [one.state() for one in [*self._older[:-1][::-1], self._younger_total]]
        if len(younger) < len(self._younger) or not {float}.issuperset(map(type, younger)):
            return None
        if any(whole or others is not None for whole, _, _, _, others, *_ in older):
            return None
        totals, lost = (np.array([one[place] for one in older]) for place in (1, 2))
        sums = PartialSums(totals, lost)
        return SlidingSums(sums.part(0, -1), bool(self._older), younger, sums.part(-1))

    def _sum(self, total: float, lost: float, count: int) -> Reducer:
        reducer = self.make()
        reducer.load_state((0, total, lost, True, None, *([count] if isinstance(reducer, Mean) else ())))
        return reducer

    def _merged(self) -> Reducer:
        """Return both halves as one, in the longest suffix: the next event drops it."""
        total = self._older[-1] if self._older else self.make()
        total.merge(self._younger_total)
        return total

    def _of_all(self) -> Reducer:
        total = self.make()
        for items in self._younger:
            for item in items:
                total.add(item)
        return total


def batch_items(slots: Sequence[Slot | SlidingSlot], events: ColumnSource) -> list[BatchItems] | None:
    """Return the items of each part, None if one takes events one by one."""
    found = []
    for slot in slots:
        items = slot.columns.items(events) if isinstance(slot, Slot) and slot.columns is not None else None
        if items is None:
            return None
        found.append(items)
    return found
