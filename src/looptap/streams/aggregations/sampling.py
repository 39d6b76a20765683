"""``sample``: a reducer that keeps k random items, with its own generator."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, ClassVar, Self

from looptap.streams.aggregations.collecting import Collector
from looptap.streams.values.sizing import DEFAULT_BOUNDS, Bounds, size_of

_SEEDS = random.Random()


class Sampling(Collector):
    """``sample(xs, k)``: k items in order of arrival, every subset equally likely.

    Each item draws a number, and the k items with the lowest numbers stay, so that parts of any size merge correctly.
    """

    __slots__ = ("_draw", "_heap", "_k", "_seen")
    kept = ("_heap", "_bytes", "_passed", "_seen")
    name: ClassVar[str] = "sample"

    def __init__(self, k: int, *, seed: int | None = None, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        super().__init__(bounds)
        if not 0 <= k <= bounds.items:
            raise ValueError(f"sample takes k in 0..{bounds.items:,}, and k is {k!r}.")
        self._k = k
        self._draw = (_SEEDS if seed is None else random.Random(seed)).random
        self._heap: list[tuple[float, int, Any]] = []  # (-number, arrival, item): the first is the next to go
        self._seen = 0

    def add(self, item: Any) -> None:
        """Keep the item if its number is low enough."""
        self._seen = seen = self._seen + 1
        number = -self._draw()
        heap = self._heap
        if len(heap) == self._k and (not heap or number <= heap[0][0]):
            return
        self._push((number, seen, item))

    def _push(self, entry: tuple[float, int, Any]) -> None:
        if self._passed or not self._k:
            return
        self._bytes += size_of(entry[2])
        if len(self._heap) < self._k:
            heapq.heappush(self._heap, entry)
        else:
            self._bytes -= size_of(heapq.heappushpop(self._heap, entry)[2])
        if self._bytes > self._max_bytes:
            self._heap = []
            self._give_up("bytes")

    def result(self) -> list[Any]:
        """Return the sample: all items if there are no more than k."""
        self._checked()
        return [item for _, _, item in sorted(self._heap, key=itemgetter(1))]

    def merge(self, other: Self) -> None:
        """Join the later part, which samples as many."""
        if other.passed:
            self._heap = []
            self._give_up(other.passed)
        for number, arrival, item in other._heap:
            self._push((number, self._seen + arrival, item))
        self._seen += other._seen


def sample(xs: Iterable[Any], k: int, *, seed: int | None = None) -> list[Any]:
    """Return k items in their order, every subset equally likely; all if fewer.

    >>> sample("abc", 5)
    ['a', 'b', 'c']
    """
    reducer = Sampling(k, seed=seed, bounds=Bounds(items=max(k, 1), bytes=1 << 62))
    for x in xs:
        reducer.add(x)
    return reducer.result()
