"""Aligns the values of several ranks by the numbers of events, or of windows.

A `WindowAssembler` has no clock and no thread: it takes values and the present time, and returns what is complete. It
waits for a rank that has something to say, yet for none longer than ``patience`` seconds after the first value came.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, TypeAlias

from looptap.streams.stream.buffer import Batch

Key: TypeAlias = tuple[int, int, int]
"""The how-many-th run of its name, the number of an event or a window, and how many values of it came before."""


class RankContribution(NamedTuple):
    """One rank's part of a number: event, time on its host's clock, value and flag."""

    event: int
    time: float
    clock: float
    value: Any
    flag: int
    nbytes: int


class AssembledWindow(NamedTuple):
    """The parts of all ranks for one number, and the ranks that are missing."""

    number: int
    parts: dict[int, RankContribution]
    missing: tuple[int, ...]


MAX_PENDING_WINDOWS, MAX_PENDING_BYTES = 100_000, 268_435_456
"""Numbers that wait, and bytes of their values; above, the oldest is waited for no longer."""


class WindowAssembler:
    """The values of ``ranks`` by number.

    With ``together`` they begin together: values that some ranks yielded before the others were attached are left out.
    Each run of the name restarts the numbers.
    """

    def __init__(self, ranks: Collection[int], patience: float, together: bool = False) -> None:
        self.ranks, self.patience, self.together = tuple(sorted(ranks)), patience, together
        self.live = set(self.ranks)
        """Ranks that may send more values."""
        self.late = dict.fromkeys(self.ranks, 0)
        """Values that came after their number had been given up, by rank."""
        self._parts: dict[Key, dict[int, RankContribution]] = {}
        self._since: dict[Key, float] = {}
        self._pending: list[Key] = []
        self._first: dict[tuple[int, int], Key] = {}  # by rank and run
        self._newest_run = -1  # the newest run of which something was given out
        self._reached: dict[int, tuple[int, int, int]] = dict.fromkeys(self.ranks, (0, -1, 0))
        self._emitted_up_to = (0, -1, 0)
        self.pending_bytes = 0

    def take(self, rank: int, batch: Batch, now: float) -> list[tuple[int, RankContribution]]:
        """Take a rank's batch at the time ``now``; return late values with their numbers."""
        numbers = batch.windows or batch.events
        flags = batch.flags or bytes(len(batch.values))
        run, last, times = self._reached[rank]
        self._first.setdefault((rank, run), (run, numbers[0], 0))
        late = []
        clock, size = batch.clock, batch.nbytes // max(1, len(batch.values))
        for number, *columns in zip(numbers, batch.events, batch.times, batch.values, flags, strict=True):
            times = times + 1 if number == last else 0
            last = number
            key = run, number, times
            event, time, value, flag = columns
            part = RankContribution(event, time, clock, value, flag, size)
            if key <= self._emitted_up_to:
                self.late[rank] += 1
                late.append((number, part))
                continue
            if key not in self._parts:
                self._parts[key], self._since[key] = {}, now
                heapq.heappush(self._pending, key)
            self._parts[key][rank] = part
            self.pending_bytes += size
        self._reached[rank] = run, last, times
        return late

    def moved(self, rank: int) -> None:
        """Continue a rank in the next run of its name, which numbers its events from 1."""
        self._reached[rank] = self._reached[rank][0] + 1, -1, 0

    def over(self, rank: int) -> None:
        """Mark a rank as ended."""
        self.live.discard(rank)

    def ready(self, now: float) -> Iterator[AssembledWindow]:
        """Return what is complete or has waited long enough, in order of numbers."""
        while self._pending:
            key = self._pending[0]
            crowded = len(self._pending) > MAX_PENDING_WINDOWS or self.pending_bytes > MAX_PENDING_BYTES
            if not crowded and self._since[key] + self.patience > now and self._awaited(key):
                return
            heapq.heappop(self._pending)
            parts = self._parts.pop(key)
            del self._since[key]
            self.pending_bytes -= sum(part.nbytes for part in parts.values())
            self._emitted_up_to = key
            missing = tuple(rank for rank in self.ranks if rank not in parts)
            if self.together and self._newest_run < key[0]:
                if any(self._first.get((rank, key[0]), key) > key for rank in missing):
                    continue
                self._newest_run = key[0]
            yield AssembledWindow(key[1], dict(sorted(parts.items())), missing)

    def deadline(self) -> float:
        """Return when a value will have waited long enough; infinite if none waits."""
        return self._since[self._pending[0]] + self.patience if self._pending else math.inf

    def awaited(self, now: float) -> dict[int, float]:
        """Return the awaited ranks, and for how many seconds each."""
        if not self._pending:
            return {}
        key = self._pending[0]
        return dict.fromkeys(self._awaited(key), now - self._since[key])

    def _awaited(self, key: Key) -> list[int]:
        """Return the ranks that have not reached this number."""
        return sorted(rank for rank in self.live.difference(self._parts[key]) if self._reached[rank][:2] <= key[:2])
