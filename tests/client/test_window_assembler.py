"""The window assembler against a model: ranks joined in any order of arrival."""

from __future__ import annotations

import math
from array import array

from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.client.ranks import window_assembler
from looptap.client.ranks.combiners import combination
from looptap.client.ranks.window_assembler import WindowAssembler
from looptap.streams.stream.buffer import Batch


def batch(numbers, first=1):
    return Batch(first, array("q", numbers), array("d", map(float, numbers)), [n * 10 for n in numbers])


def given_out(assembly, now):
    return [(whole.number, sorted(whole.parts), whole.missing) for whole in assembly.ready(now)]


def test_a_value_waits_for_all_ranks():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1, 2]), 0.0)
    assert given_out(assembly, 0.0) == []
    assert assembly.awaited(0.5) == {1: 0.5}
    assembly.take(1, batch([1]), 0.5)
    assert given_out(assembly, 0.5) == [(1, [0, 1], ())]


def test_a_rank_that_has_passed_a_number_is_not_waited_for():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1, 2]), 0.0)
    assembly.take(1, batch([2]), 0.0)
    assert given_out(assembly, 0.0) == [(1, [0], (1,)), (2, [0, 1], ())]


def test_a_straggler_is_waited_for_up_to_the_timeout_and_its_late_values_count():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1, 2]), 0.0)
    assembly.take(0, batch([3]), 1.5)
    assert assembly.deadline() == 2.0
    assert given_out(assembly, 2.0) == [(1, [0], (1,)), (2, [0], (1,))]
    late = assembly.take(1, batch([1, 2, 3]), 2.5)
    assert [(number, part.value) for number, part in late] == [(1, 10), (2, 20)]
    assert assembly.late == {0: 0, 1: 2}
    assert given_out(assembly, 2.5) == [(3, [0, 1], ())]


def test_the_values_of_all_ranks_begin_together_in_each_run():
    assembly = WindowAssembler([0, 1, 2], 2.0, together=True)
    assembly.take(0, batch([4, 5, 6, 7, 8]), 0.0)
    assembly.take(2, batch([5, 6, 8]), 0.0)
    assert given_out(assembly, 0.0) == []
    assembly.take(1, batch([6, 7, 8]), 1.0)
    assert given_out(assembly, 1.0) == [(6, [0, 1, 2], ()), (7, [0, 1], (2,)), (8, [0, 1, 2], ())]
    assert assembly.late == {0: 0, 1: 0, 2: 0}
    for rank in (0, 1, 2):
        assembly.moved(rank)
        assembly.take(rank, batch(list(range(1 + rank, 4))), 1.0)
    assert given_out(assembly, 1.0) == [(3, [0, 1, 2], ())]


def test_a_straggler_and_a_dead_rank_do_not_delay_the_start_of_the_others():
    assembly = WindowAssembler([0, 1, 2], 2.0, together=True)
    assembly.over(2)
    assembly.take(0, batch([1, 2]), 0.0)
    assert given_out(assembly, 2.0) == [(1, [0], (1, 2)), (2, [0], (1, 2))]
    assembly.take(0, batch([3]), 3.0)
    assembly.take(1, batch([4]), 3.0)
    assert given_out(assembly, 3.0) == [(3, [0], (1, 2))]


def test_a_rank_that_is_over_is_not_waited_for_but_missed():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1]), 0.0)
    assembly.over(1)
    assert given_out(assembly, 0.0) == [(1, [0], (1,))]


def test_several_values_of_one_event_are_distinguished():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1, 1, 2]), 0.0)
    assembly.take(1, batch([1, 1, 1, 2]), 0.0)
    assert [len(whole.parts) for whole in assembly.ready(0.0)] == [2, 2, 1, 2]


def test_a_rank_is_waited_for_that_may_have_more_values_of_its_newest_event():
    assembly = WindowAssembler([0, 1], 2.0)
    assembly.take(0, batch([1, 1]), 0.0)
    assembly.take(1, batch([1]), 0.0)
    assert given_out(assembly, 0.0) == [(1, [0, 1], ())]
    assert assembly.awaited(0.5) == {1: 0.5}
    assembly.take(1, batch([1]), 1.0)
    assert given_out(assembly, 1.0) == [(1, [0, 1], ())]


def test_a_rank_that_moves_on_to_the_next_run_begins_with_new_numbers():
    assembly = WindowAssembler([0, 1], 2.0)
    for rank in (0, 1):
        assembly.take(rank, batch([7]), 0.0)
    assert given_out(assembly, 0.0) == [(7, [0, 1], ())]
    for rank in (0, 1):
        assembly.moved(rank)
        assert assembly.take(rank, batch([1]), 0.0) == []
    assert given_out(assembly, 0.0) == [(1, [0, 1], ())]


def test_an_ended_rank_does_not_hide_a_living_one():
    assembly = WindowAssembler([0, 1, 2], 2.0)
    assembly.take(0, batch([1]), 0.0)
    assembly.take(2, batch([1]), 0.0)
    assembly.over(2)
    assert given_out(assembly, 0.0) == []
    assert assembly.awaited(0.5) == {1: 0.5}
    assembly.take(1, batch([1]), 1.0)
    assert assembly.awaited(1.0) == {}
    assert given_out(assembly, 1.0) == [(1, [0, 1, 2], ())]
    assert (assembly.awaited(1.0), assembly.deadline()) == ({}, math.inf)


def test_values_waiting_for_a_silent_rank_are_bounded_in_bytes():
    assembly = WindowAssembler([0, 1], 60.0)
    third = window_assembler.MAX_PENDING_BYTES // 3
    for number in range(1, 11):
        assembly.take(0, batch([number])._replace(nbytes=third), 0.0)
        given = given_out(assembly, 0.0)
        assert given == ([] if number < 4 else [(number - 3, [0], (1,))])
    assert assembly.late == {0: 0, 1: 0}
    assert [n for n, _ in assembly.take(1, batch(list(range(1, 11))), 0.0)] == list(range(1, 8))
    assert given_out(assembly, 0.0) == [(8, [0, 1], ()), (9, [0, 1], ()), (10, [0, 1], ())]


def test_values_waiting_for_a_silent_rank_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(window_assembler, "MAX_PENDING_WINDOWS", 5)
    assembly = WindowAssembler([0, 1], 60.0)
    assembly.take(0, batch(list(range(1, 9))), 0.0)
    assert given_out(assembly, 0.0) == [(1, [0], (1,)), (2, [0], (1,)), (3, [0], (1,))]


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.floats(0.0, 1.5)), max_size=30)


@settings(max_examples=examples(100), deadline=None)
@given(steps=STEPS, over=st.sets(st.integers(0, 2)))
def test_every_value_is_given_out_once_in_order_or_counted_as_late(steps, over):
    assembly, now, at = WindowAssembler([0, 1, 2], 2.0), 0.0, [0, 0, 0]
    came, late, out = set(), set(), []
    for rank, count, pause in steps:
        now += pause
        numbers = list(range(at[rank] + 1, at[rank] + count + 1))
        at[rank] += count
        came |= {(rank, n) for n in numbers}
        late |= {(rank, n) for n, _ in assembly.take(rank, batch(numbers), now)}
        out += assembly.ready(now)
        deadline = assembly.deadline()
        assert deadline > now
    for rank in over:
        assembly.over(rank)
    out += assembly.ready(now + 10.0)
    numbers = [whole.number for whole in out]
    assert numbers == sorted(set(numbers))
    parts = {(rank, whole.number) for whole in out for rank in whole.parts}
    assert parts | late == came
    assert not parts & late
    assert len(late) == sum(assembly.late.values())
    assert all(sorted([*whole.parts, *whole.missing]) == [0, 1, 2] for whole in out)
    assert assembly.pending_bytes == 0


def test_rows_are_combined_field_by_field_and_a_nan_of_one_rank_is_seen():
    assert combination("max")([(1, 2.0), (3, float("nan"))])[0] == 3
    assert combination("max")([float("nan"), 1.0]) != combination("max")([1.0, float("nan")])  # both are NaN
    assert combination("median")([1.0, 9.0, 2.0]) == 2.0
    assert combination("sum")([{"a": 1}, {"a": 2}]) == {"a": 3}
    assert combination(len)([1, 2]) == 2
