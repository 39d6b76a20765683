"""Sums of floats over the last events, for many events at once.

`slide` takes the steps of `SlidingSlot` with a `Sum`, in their order, on arrays: two stacks of partial sums, of which
the older one loses an item at each event and the younger one gets one. So each sum has the same bits. With the compiled
tap, its `slide` takes these steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.streams.aggregations.sketches import Floats
from looptap.streams.native.compiled import tap


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


def slide(state: SlidingSums, items: Floats, size: int) -> tuple[Floats, NDArray[np.int64] | int, SlidingSums]:
    """Return the sum and the count of the window at each item, and the new state."""
    before = state.filled
    counts = size if before >= size else np.minimum(np.arange(before + 1, before + len(items) + 1), size)
    sums, after = slide_in_arrays(state, items, size) if tap is None else _slide(state, items, size)
    return sums, counts, after


def _slide(state: SlidingSums, items: Floats, size: int) -> tuple[Floats, SlidingSums]:
    """Do what `slide_in_arrays` does, with the compiled tap."""
    older, has_older, younger, total = state
    sums, totals, lost, used, has_older, younger, *sum_and_lost = tap.slide(
        older.totals,
        older.lost,
        has_older,
        younger,
        total.totals.item(),
        total.lost.item(),
        np.ascontiguousarray(items),
        size,
    )
    rest = older.part(used) if totals is None else PartialSums(np.frombuffer(totals), np.frombuffer(lost))
    total = PartialSums(*np.array(sum_and_lost).reshape(2, 1))
    return np.frombuffer(sums), SlidingSums(rest, has_older, younger, total)


def slide_in_arrays(state: SlidingSums, items: Floats, size: int) -> tuple[Floats, SlidingSums]:
    """Return the sum of the window at each item, and the new state."""
    room = size - len(state.younger)
    with np.errstate(all="ignore"):
        sums, state = _within_half(state, items[:room]) if room else (np.zeros(0), state)
        if len(items) > room:
            further, state = _further_halves(state.younger, items[room:], size)
            sums = np.concatenate((sums, further))
    return sums, state


def _within_half(state: SlidingSums, items: Floats) -> tuple[Floats, SlidingSums]:
    """Return the sums at items for which the younger half has room; the new state."""
    younger, older = _prefixes(state.total, items), state.older.part(0, len(items))
    both = len(older.totals)
    sums = np.concatenate((older.plus(younger.part(0, both)).values(), younger.part(both).values()))
    remains = state.has_older and both == len(items)
    rest = state.older.part(len(items)) if remains else NO_SUMS
    return sums, SlidingSums(rest, remains, [*state.younger, *items.tolist()], younger.part(-1))


def _further_halves(full: list[float], items: Floats, size: int) -> tuple[Floats, SlidingSums]:
    """Return the sums at items behind a full younger half, and the new state.

    At each block of a window's size the younger half, which is the block before, becomes the older one.
    """
    blocks = -(-len(items) // size)
    padding = np.zeros(blocks * size - len(items))
    halves = np.concatenate((full, items, padding)).reshape(-1, size)
    older, younger = _suffixes(halves[:-1]), _prefixes(PartialSums(*np.zeros((2, blocks, 1))), halves[1:])
    both = older.part(1).plus(younger.part(0, -1)).values()
    sums = np.concatenate((both, younger.part(-1).values()), axis=-1).ravel()[: len(items)]
    last = len(items) - (blocks - 1) * size  # the items of the last block
    rest, has_older = (PartialSums(*(x[-1, last + 1 :] for x in older)), True) if last < size else (NO_SUMS, False)
    total = PartialSums(*(x[-1, last - 1 : last] for x in younger))
    return sums, SlidingSums(rest, has_older, halves[-1, :last].tolist(), total)


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
