"""The buffer of a stream, against a list that keeps everything."""

from __future__ import annotations

from array import array

import hypothesis.strategies as st
from counts import examples
from hypothesis import given, settings

from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch, StreamBuffer

MAX_ITEMS = 20
ITEM_BYTES = 10

pieces = st.lists(
    st.tuples(st.integers(1, 30), st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12
)
"""Batches: their number of items, whether some are errors, whether each has a rank, and the items lost before them."""


def batches(shapes):
    number = 1
    for count, faulty, ranked, lost in shapes:
        number += lost
        numbers = array("q", range(number, number + count))
        flags = bytes(ERROR if faulty and n % 3 == 0 else 0 for n in numbers)
        ranks = array("q", [n % 4 for n in numbers]) if ranked else None
        values = [str(n) if flag else n for n, flag in zip(numbers, flags, strict=True)]
        times = array("d", [n / 2 for n in numbers])
        yield Batch(
            number, numbers, times, values, 100.0, flags if faulty else b"", 0, ITEM_BYTES * count, ranks, numbers
        )
        number += count


@settings(max_examples=examples(200), deadline=None)
@given(pieces, st.integers(50, 400), st.integers(0, 200))
def test_a_buffer_holds_the_end_of_all_that_came(shapes, max_bytes, after):
    buffer, came = StreamBuffer(MAX_ITEMS, max_bytes), []
    for batch in batches(shapes):
        buffer.append(batch)
        came += batch.records()
        kept = [record for part in buffer.parts() for record in part.records()]
        assert buffer.end == len(came)
        assert kept == came[buffer.start :]
        assert min(MAX_ITEMS, len(batch.values)) <= len(kept) <= MAX_ITEMS
        if len(kept) < min(MAX_ITEMS, len(came)):  # then bytes were the bound
            assert buffer.nbytes <= max(max_bytes, batch.nbytes)
        assert buffer.values() == [record.value for record in kept if record.error is None]
        assert buffer.errors() == [record for record in kept if record.error is not None]
        assert buffer.error_count() == len(buffer.errors())
        later = [record for part in buffer.parts_after(after) for record in part.records()]
        assert later == [record for record in kept if record.number > after]


@given(st.data())
def test_a_part_of_a_batch_keeps_each_column(data):
    (batch,) = batches([(10, True, True, 0)])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 10), st.integers(0, 10))))
    part = batch.part(start, stop)
    assert part.records() == batch.records()[start:stop]
    assert list(part.windows) == list(range(start + 1, stop + 1))
    assert part.nbytes == ITEM_BYTES * (stop - start)
