"""Sums of a window that slides: the compiled steps equal those on arrays."""

from __future__ import annotations

import math
import resource

import numpy as np
import pytest
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.streams.aggregations.sliding import NO_SUMS, PartialSums, SlidingSums, slide, slide_in_arrays
from looptap.streams.native.compiled import tap, which_tap

pytestmark = pytest.mark.skipif(which_tap() == "pure Python", reason="the tap was not built, or is not wanted")

EMPTY = SlidingSums(NO_SUMS, False, [], PartialSums(np.zeros(1), np.zeros(1)))
KEPT_BYTES = 4_000_000

item = st.one_of(st.floats(-10, 10), st.floats(), st.sampled_from([0.0, -0.0, 1e308, -1e308, math.inf, math.nan]))
batches = st.lists(st.lists(item, min_size=1, max_size=40), min_size=1, max_size=6)


def bits(numbers) -> list[bytes]:
    """Return the bits of each number, of any NaN the same."""
    return [np.float64("nan").tobytes() if math.isnan(one) else np.float64(one).tobytes() for one in numbers]


def seen(state: SlidingSums) -> list[object]:
    return [bool(state.has_older), *map(bits, (*state.older, state.younger, *state.total))]


@settings(max_examples=examples(2000))
@given(st.integers(1, 25), batches)
def test_compiled_sums_have_the_bits_of_those_on_arrays(size, batches):
    ours = theirs = EMPTY
    for batch in map(np.array, batches):
        before = ours.filled
        sums, counts, ours = slide(ours, batch, size)
        expected, theirs = slide_in_arrays(theirs, batch, size)
        assert bits(sums) == bits(expected)
        assert seen(ours) == seen(theirs)
        assert np.broadcast_to(counts, len(batch)).tolist() == [
            min(before + n, size) for n in range(1, len(batch) + 1)
        ]


TWO, NONE = np.zeros(2), np.zeros(0)


@pytest.mark.parametrize(
    "wrong",
    [
        (TWO, NONE, True, [], 0.0, 0.0, TWO, 3), (b"1234567", NONE, True, [], 0.0, 0.0, TWO, 3),
        (NONE, NONE, True, [], 0.0, 0.0, b"123", 3), (NONE, NONE, True, [1, 2], 0.0, 0.0, TWO, 3),
        (NONE, NONE, False, [1.0] * 4, 0.0, 0.0, TWO, 3), (TWO, TWO, True, [], 0.0, 0.0, TWO, 2),
        (NONE, NONE, False, [], 0.0, 0.0, TWO, 0), (NONE, NONE, False, [], 0.0, 0.0, TWO, -1),
        (NONE, NONE, False, [], 0.0, 0.0, TWO, 2**62), (NONE, NONE, False, (), 0.0, 0.0, TWO, 3), (),
    ],
)  # fmt: skip
def test_what_is_no_window_is_refused(wrong):
    with pytest.raises((ValueError, TypeError, MemoryError)):
        tap.slide(*wrong)


def test_nothing_is_left_of_many_batches():
    items, state = np.arange(40.0), EMPTY

    def run(count: int) -> SlidingSums:
        after = state
        for _ in range(count):
            _, _, after = slide(after, items, 17)
        return after

    run(2000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(40_000)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024 < KEPT_BYTES
