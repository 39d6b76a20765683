"""The reducing parts of a query, over a window or the last events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from looptap.streams.aggregations.registry import Reducer
from looptap.streams.values.snapshots import take_item

Feed = Callable[[Any], Any]


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


class Slot:
    """A reducing part of a query, whose reducer restarts with each window."""

    def __init__(self, sequence: Items, make: Callable[[], Reducer]) -> None:
        self.sequence, self.make = sequence, make
        self._feed, self._one, self._copied = sequence.feed, sequence.one, sequence.bare or sequence.copied
        self.reset()

    def reset(self) -> None:
        """Begin a window."""
        self.reducer = self.make()
        self._add = self.reducer.add
        for reset in self.sequence.resets:
            reset()

    def push(self, event: Any) -> None:
        """Add the items of this event to the reducer."""
        if self._copied:
            self._add(self._feed(event))
        elif self._one:
            self._add(take_item(self._feed(event)))
        else:
            for item in self._feed(event):
                self._add(take_item(item))

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
        self.reset()

    def reset(self) -> None:
        """Drop all events."""
        self._older: list[Reducer] = []  # suffixes of the older half, the longest last
        self._younger: deque[list[Any]] = deque()  # the items of the younger half, event by event
        self._younger_total = self.make()  # all of the younger half
        for reset in self.sequence.resets:
            reset()

    def push(self, event: Any) -> None:
        """Add this event and remove the oldest."""
        items: list[Any]
        if self.sequence.bare:
            items = [None]  # only counted: the event itself must not outlive emit
        elif self.sequence.copied:
            items = [self.sequence.feed(event)]
        else:
            items = [take_item(x) for x in self.sequence.items(event)]
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
        total = self.make()
        if self.merges:
            if self._older:
                total.merge(self._older[-1])
            total.merge(self._younger_total)
        else:
            for items in self._younger:
                for item in items:
                    total.add(item)
        return total
