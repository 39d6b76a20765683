"""Sums of floats over the last events, for many events at once.

`slide` takes the steps of `SlidingSlot` with a `Sum`, in their order, on arrays: two stacks of partial sums, of which
the older one loses an item at each event and the younger one gets one. So each sum has the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.streams.aggregations.sketches import Floats


class PartialSums(NamedTuple):
    """Sums with what rounding has lost of each (Knuth's TwoSum)."""

    totals: Floats
    lost: Floats

    def part(self, start: int, stop: int | None = None) -> PartialSums:
        """Return some of them."""
        return PartialSums(self.totals[..., start:stop], self.lost[..., start:stop])

    def plus(self, later: PartialSums) -> PartialSums:
        """Return the sums of both, as `Sum.merge` makes them."""
        totals = self.totals + later.totals
        return PartialSums(totals, (self.lost + _error(self.totals, later.totals, totals)) + later.lost)

    def values(self) -> Floats:
        """Return the sums, as `Sum.result` does."""
        return np.where(np.isfinite(self.lost), self.totals + self.lost, self.totals)


NO_SUMS = PartialSums(np.zeros(0), np.zeros(0))


class SlidingSums(NamedTuple):
    """The sums of a window that slides."""

    older: PartialSums
    """Of the older half without its first item, without its first two, …; as many as it has items, less one."""
    has_older: bool
    """True if the older half has items: the first sum, which the next event drops, is not in ``older``."""
    younger: list[float]
    """The items of the younger half."""
    total: PartialSums
    """Of these: one sum."""

    @property
    def filled(self) -> int:
        """The items of the window."""
        return len(self.older.totals) + self.has_older + len(self.younger)


def slide(state: SlidingSums, items: Floats, size: int) -> tuple[Floats, NDArray[np.int64], SlidingSums]:
    """Return the sum and the count of the window at each item, and the new state."""
    sums, counts = [], []
    start = 0
    with np.errstate(all="ignore"):
        while start < len(items):
            count, left = state.filled, len(items) - start
            if count == size and not state.has_older and left >= size:
                blocks = items[start : start + left // size * size].reshape(-1, size)
                found, state = _whole_blocks(state, blocks)
                sums.append(found)
                counts.append(np.full(len(found), size))
                start += len(found)
                continue
            if count == size and not state.has_older:
                state = SlidingSums(_suffixes(np.array(state.younger)).part(1), True, [], _one(0.0, 0.0))
            room = len(state.older.totals) + 1 if state.has_older else size - count
            new = items[start : start + room]
            younger = _prefixes(state.total, new)
            older = state.older.part(0, len(new))
            both = len(older.totals)
            merged = older.plus(younger.part(0, both)).values()
            sums.append(np.concatenate((merged, younger.part(both).values())))
            counts.append(np.minimum(np.arange(count + 1, count + len(new) + 1), size))
            remains = state.has_older and both == len(new)
            rest = state.older.part(len(new)) if remains else NO_SUMS
            state = SlidingSums(rest, remains, [*state.younger, *new.tolist()], younger.part(-1))
            start += len(new)
    return np.concatenate(sums), np.concatenate(counts), state


def _whole_blocks(state: SlidingSums, blocks: Floats) -> tuple[Floats, SlidingSums]:
    """Return the sums at blocks of a window's size each, and the state behind them.

    Each begins where the older half has no items left: it becomes the younger one, which is the block before.
    """
    before = np.concatenate((np.array([state.younger]), blocks[:-1]))
    younger = _prefixes(PartialSums(*np.zeros((2, len(blocks), 1))), blocks)
    both = _suffixes(before).part(1).plus(younger.part(0, -1)).values()
    sums = np.concatenate((both, younger.part(-1).values()), axis=-1)
    return sums.ravel(), SlidingSums(NO_SUMS, False, blocks[-1].tolist(), PartialSums(*(x[-1, -1:] for x in younger)))


def _one(total: float, lost: float) -> PartialSums:
    return PartialSums(np.array([total]), np.array([lost]))


def _error(before: Floats, item: Floats, after: Floats) -> Floats:
    """Return what rounding has lost in ``after = before + item``."""
    part = after - before
    return (before - (after - part)) + (item - part)


def _prefixes(before: PartialSums, items: Floats) -> PartialSums:
    """Return the sum up to each item, as `Sum.add` makes it, from ``before`` on."""
    totals = np.add.accumulate(np.concatenate((before.totals, items), axis=-1), axis=-1)
    lost = np.concatenate((before.lost, _error(totals[..., :-1], items, totals[..., 1:])), axis=-1)
    return PartialSums(totals, np.add.accumulate(lost, axis=-1)).part(1)


def _suffixes(items: Floats) -> PartialSums:
    """Return the sum from each item on, into which that of the later ones is merged."""
    alone = items[..., ::-1] + 0.0  # as the first item of a sum: no zero is negative
    totals = np.add.accumulate(alone, axis=-1)
    lost = alone - alone  # NaN if it is not finite
    lost[..., 1:] += _error(alone[..., 1:], totals[..., :-1], totals[..., 1:])
    return PartialSums(totals[..., ::-1], np.add.accumulate(lost, axis=-1)[..., ::-1])
