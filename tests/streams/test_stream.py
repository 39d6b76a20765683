"""Streams: buffer, waits, callbacks, gaps."""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
import statistics
import subprocess
import sys
import threading
import time
from array import array

import hypothesis.strategies as st
import numpy as np
import pytest
from counts import examples
from hypothesis import given, settings
from waiting import soon

from looptap.streams.errors import QueryError, StreamEnded, StreamTimeout
from looptap.streams.flags import ERROR, PARTIAL, TRIGGER
from looptap.streams.operators.windows import seconds, sliding
from looptap.streams.stream.buffer import Batch, Gap
from looptap.streams.stream.stream import Stream, stream_of
from looptap.streams.values.sizing import size_of
from looptap.testing import pair


def batch(values, first=1, flags=b"", **about) -> Batch:
    numbers = range(first, first + len(values))
    times = [0.5 * n for n in numbers]
    return Batch(first, array("q", numbers), array("d", times), list(values), flags=flags, **about)


def fed(*batches, **options) -> Stream:
    stream = Stream("loss", **options)
    for one in batches:
        stream.publish(one)
    return stream


def in_background(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


# ---------------------------------------------------------------- what is here


def test_a_stream_holds_what_was_pushed():
    stream = fed(batch([0.5, 0.25]), batch([0.125], first=3))
    assert stream.values == [0.5, 0.25, 0.125]
    assert (len(stream), stream.latest, stream.arrived) == (3, 0.125, 3)


def test_a_record_carries_number_event_rank_and_both_times():
    stream = fed(batch([7], first=1, clock=100.0, rank=2))
    (record,) = stream.records
    assert record == (1, 1, 2, 0.5, 100.5, 7, None, False, False, False, False)


def test_an_error_is_a_record_and_no_value():
    stream = fed(batch([1, "ValueError: why", 3], flags=bytes([0, ERROR, 0])))
    assert stream.values == [1, 3]
    assert len(stream) == 2
    assert [record.error for record in stream.records] == [None, "ValueError: why", None]
    assert [record.number for record in stream.errors] == [2]
    assert (stream.error_count, stream.traceback) == (1, "ValueError: why")


def test_partial_windows_and_triggers_are_marked_in_their_records():
    stream = fed(batch([1, 2, 3], flags=bytes([0, PARTIAL, TRIGGER])))
    assert [(r.partial, r.trigger) for r in stream.records] == [(False, False), (True, False), (False, True)]


def test_errors_never_become_the_latest_value():
    stream = fed(batch([1, "bad"], flags=bytes([0, ERROR])))
    assert stream.latest == 1


def test_a_jump_in_the_numbers_is_a_gap_of_exact_size():
    stream = fed(batch([1, 2]), batch([10], first=10))
    assert stream.gaps == [Gap(2, 7)]
    assert stream.dropped == 7
    assert "7 missing in 1 gap" in repr(stream)


def test_values_that_are_missing_at_the_end_are_a_gap_too():
    stream = fed(batch([1, 2]))
    stream.feed.finish("ended", last=5)
    assert stream.gaps == [Gap(2, 3)]


def test_values_that_came_before_are_not_taken_twice():
    stream = fed(batch([1, 2, 3]), batch([2, 3, 4], first=2), batch([1], first=1))
    assert stream.values == [1, 2, 3, 4]
    assert stream.gaps == []


def test_nothing_is_taken_after_the_end():
    stream = fed(batch([1]))
    stream.close()
    stream.publish(batch([2], first=2))
    stream.feed.finish("failed", "too late")
    assert (stream.values, stream.state, stream.reason) == ([1], "ended", "closed")


def test_the_oldest_items_make_room_for_newer_ones():
    stream = fed(*(batch([n], first=n) for n in range(1, 1001)), buffer=100)
    assert stream.values == list(range(901, 1001))
    assert (stream.forgotten, stream.arrived, len(stream)) == (900, 1000, 100)


def test_a_batch_larger_than_the_buffer_leaves_its_newest_values():
    stream = fed(batch(range(50)), batch(range(50, 500), first=51), buffer=100)
    assert stream.values == list(range(400, 500))
    assert stream.records[0].number == 401


def test_rows_get_element_names_however_they_were_read_before():
    stream = fed(batch([(1, 0.5), (2, 0.25)]), fields=("step", "loss"))
    assert [type(value) for value in stream.columns(plain=True).values] == [tuple, tuple]
    assert [value.loss for value in stream.values] == [0.5, 0.25]
    stream.publish(batch([(3, 0.125), "an error"], first=3, flags=bytes([0, ERROR])))
    assert (stream.latest.step, [error.value for error in stream.errors]) == (3, [None])
    assert [tuple(value) for value in stream.columns(plain=True).values] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert [record.value and record.value.step for record in stream.records] == [1, 2, 3, None]
    assert [value.loss for value in stream.columns(1).values] == [0.25, 0.125]


@pytest.mark.parametrize(
    "values",
    [
        [0.5, 1, True, None, "text", b"bytes", 10**40],
        [(1, 0.5), (2, "text"), ()],
        [(1, (2, 3)), (np.zeros(3), 1)],
        [[1, 2], (3, [4])],
        [{"a": (1, 2)}, {1}],
        [],
    ],
)
def test_many_values_take_what_each_takes_alone(values):
    assert size_of(values) == sys.getsizeof(values) + 8 + sum(map(size_of, values))


def test_a_stream_is_bounded_in_bytes_whatever_the_size_of_its_values():
    stream = fed(*(batch([np.zeros(1000)], first=n) for n in range(1, 200)), buffer_bytes=100_000)
    assert 8 <= len(stream) <= 13
    assert stream.feed.buffer.peak_bytes < 120_000


def test_a_value_larger_than_all_bytes_allowed_is_still_here_alone():
    stream = fed(batch([1]), batch([np.zeros(1000)], first=2), buffer_bytes=100)
    assert len(stream) == 1


@pytest.mark.parametrize("bound", [0, -1, True, 1.5, "many"])
def test_a_buffer_size_must_be_a_whole_number_of_items(bound):
    with pytest.raises(ValueError, match=f"buffer={bound!r}"):
        Stream(buffer=bound)


pieces = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 7), st.integers(0, 1)), max_size=30)


@settings(max_examples=examples(150), deadline=None)
@given(pieces, st.integers(1, 60), st.integers(0, 100))
def test_a_stream_is_like_the_list_of_its_newest_items(pieces, bound, position):
    stream, items, number = Stream(buffer=bound), [], 1
    for gap, count, flag, rank in pieces:
        number += gap
        values = [f"{n}" for n in range(number, number + count)]
        stream.publish(batch(values, number, bytes([flag] * count) if flag else b"", rank=rank))
        items += [(number + i, value, flag, rank) for i, value in enumerate(values)]
        number += count
    kept = items[-bound:] if items else []
    assert [r.number for r in stream.records] == [item[0] for item in kept]
    assert stream.values == [item[1] for item in kept if not item[2] & ERROR]
    assert [r.rank for r in stream.records] == [item[3] for item in kept]
    assert [r.error is not None for r in stream.records] == [bool(item[2] & ERROR) for item in kept]
    assert stream.dropped + len(items) == number - 1
    columns = stream.columns(after=position)
    assert columns.numbers.tolist() == [i[0] for i in kept if i[0] > position and not i[2] & ERROR]
    assert columns.values == [i[1] for i in kept if i[0] > position and not i[2] & ERROR]


# ---------------------------------------------------------------- rows, arrays, frames


def test_rows_can_be_read_by_name_and_are_still_tuples():
    stream = stream_of([(1, 0.5), (2, 0.25)], fields=("step", "loss"))
    assert stream.values == [(1, 0.5), (2, 0.25)]
    assert [row.loss for row in stream.values] == [0.5, 0.25]
    assert repr(stream.latest) == "(step=2, loss=0.25)"


def test_rows_that_came_before_their_names_get_them():
    stream = fed(batch([(1, 2), "no row", (3, 4)], flags=bytes([0, ERROR, 0])))
    stream.feed.set_fields(("a", "b"))
    assert [row.b for row in stream.values] == [2, 4]
    assert stream.latest.a == 3


def test_a_tuple_of_another_length_keeps_no_names():
    assert stream_of([(1, 2, 3)], fields=("a", "b")).latest == (1, 2, 3)


def test_a_row_is_pickled_and_copied_as_a_tuple():
    row = stream_of([(1, 2)], fields=("a", "b")).latest
    assert pickle.loads(pickle.dumps(row)) == (1, 2)
    assert type(copy.copy(row)) is tuple


def test_names_that_no_attribute_can_have_are_replaced_and_never_run():
    fields = ("x) or __import__('os').abort(", "class", "_private", "a", "a")
    row = stream_of([(1, 2, 3, 4, 5)], fields=fields).latest
    assert row._fields == ("_0", "_1", "_2", "a", "_4")


def test_numbers_become_one_axis_and_rows_two():
    assert stream_of([1, 2, 3]).to_numpy().tolist() == [1, 2, 3]
    assert stream_of([(1, 0.5), (2, 0.25)], fields=("a", "b")).to_numpy().shape == (2, 2)


def test_arrays_of_one_shape_are_stacked_and_others_are_objects():
    assert stream_of([np.zeros((2, 3))] * 4).to_numpy().shape == (4, 2, 3)
    ragged = stream_of([np.zeros(2), np.zeros(3)]).to_numpy()
    assert ragged.dtype == object
    assert ragged[1].shape == (3,)


@pytest.mark.parametrize("values", [[], [1, "a"], [None, 1], [{"a": 1}], ["a", "b"], [(1,), (1, 2)]])
def test_an_array_holds_every_value_whatever_it_is(values):
    array = stream_of(values).to_numpy()
    assert len(array) == len(values)
    assert [v for v in array.tolist()] == values


def test_named_columns_of_a_growing_stream_have_the_same_length():
    stream, over = Stream("loss", fields=("step", "loss"), buffer=1000), threading.Event()

    def grow():
        for n in itertools.takewhile(lambda _: not over.is_set(), itertools.count(1)):
            stream.publish(batch([(n, 1 / n)], first=n))

    in_background(grow)
    try:
        stream.wait(1)
        for _ in range(200):
            step, loss, number = stream.to_numpy("step", "loss", "number")
            assert len(step) == len(loss) == len(number)
            assert (step == number).all()
            np.testing.assert_array_equal(loss, 1 / step)
    finally:
        over.set()


def test_a_column_is_a_field_or_what_is_known_of_a_value():
    rows = fed(batch([(1, 0.5), (2, 0.25)], clock=1e9), fields=("step", "time"))
    assert rows.to_numpy("time").tolist() == [0.5, 0.25]
    assert [column.tolist() for column in rows.to_numpy("number", "step", "rank")] == [[1, 2], [1, 2], [0, 0]]
    assert (rows.to_numpy("wall") - rows.to_numpy("time_")).tolist() == [1e9, 1e9]
    assert stream_of([1.5, 2.5]).to_numpy("value").tolist() == [1.5, 2.5]
    assert stream_of([{"a": 1}, {"a": 2}]).to_numpy("a").tolist() == [1, 2]


def test_numpy_takes_a_live_stream_for_the_array_of_its_values():
    stream = fed(batch([0.5, 1.5, 2.5]))
    assert np.asarray(stream).tolist() == stream.to_numpy().tolist()
    assert (np.mean(stream), np.array(stream, np.float32).dtype) == (1.5, np.float32)
    rows = fed(batch([(1, 0.5), (2, 0.25)]), fields=("step", "loss"))
    assert np.asarray(rows).shape == (2, 2)
    figure = pytest.importorskip("matplotlib.figure").Figure()
    (line,) = figure.subplots().plot(stream)
    assert line.get_ydata().tolist() == [0.5, 1.5, 2.5]


def test_a_stream_is_not_pickled_and_its_contents_are():
    stream = stream_of([(1, 0.5)] * 20, fields=("step", "loss"))
    with pytest.raises(TypeError, match=r"cannot be pickled.*Its values, records"):
        pickle.dumps({"loss": stream})
    for contents in (stream.values, stream.records, stream.columns()):
        copy = pickle.loads(pickle.dumps(contents))
        assert copy[-1] == contents[-1]


def test_an_unknown_column_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no column 'lss'; .*number, event, rank, time, wall, loss.*mean 'loss'"):
        stream_of([(1.0,)], fields=("loss",)).to_numpy("lss")
    first, second = Stream("dicts to come").to_numpy("a", "b")
    assert len(first) == len(second) == 0


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_become_arrays_also_those_that_numpy_does_not_know():
    torch = pytest.importorskip("torch")
    ones = torch.ones(2, dtype=torch.bfloat16)
    assert stream_of([ones] * 3).to_numpy().tolist() == [[1.0, 1.0]] * 3
    assert stream_of([[ones, ones]] * 3).to_numpy().tolist() == [[[1.0, 1.0]] * 2] * 3
    assert stream_of([(step, ones[0]) for step in range(2)]).to_numpy().tolist() == [[0.0, 1.0], [1.0, 1.0]]
    rows = stream_of([(1, ones), (2, ones)], fields=("step", "ones")).to_numpy()
    assert (rows.dtype, [row.step for row in rows], rows[0].ones is ones) == (object, [1, 2], True)
    half = torch.tensor([1 + 2j]).to(torch.complex32)
    assert stream_of([half]).to_numpy().tolist() == [[1 + 2j]]
    graph = [torch.tensor(0.5, requires_grad=True), torch.tensor([1 + 2j]).conj()[0].imag]
    assert stream_of(graph).to_numpy().tolist() == [0.5, -2.0]
    sparse = ones.to_sparse()
    assert stream_of([sparse]).to_numpy()[0] is sparse


def test_a_frame_has_a_column_for_each_field_beside_what_is_known_of_a_value():
    pytest.importorskip("pandas")
    frame = fed(batch([(1, 0.5), (2, 0.25)], clock=1e9), fields=("step", "time")).to_pandas()
    assert list(frame.columns) == ["event", "rank", "time_", "wall", "step", "time"]
    assert frame.index.tolist() == [1, 2]
    assert frame["time"].tolist() == [0.5, 0.25]
    assert frame["wall"].iloc[0].year == 2001


@pytest.mark.parametrize(
    ("values", "columns"),
    [([1.5, 2.5], ["value"]), ([{"a": 1}, {"b": 2}], ["a", "b"]), ([[1], [2, 3]], ["value"]), ([], ["value"])],
)
def test_a_frame_of_other_values_has_the_columns_one_would_expect(values, columns):
    pytest.importorskip("pandas")
    frame = stream_of(values).to_pandas()
    assert [c for c in frame.columns if c not in ("event", "rank", "time", "wall")] == columns
    assert len(frame) == len(values)


# ---------------------------------------------------------------- waiting and reading along


def test_waiting_returns_the_values_when_enough_have_arrived():
    stream = Stream("loss")
    in_background(lambda: [stream.publish(batch([n], first=n)) for n in range(1, 6)])
    assert stream.wait(5, timeout=300)[:5] == [1, 2, 3, 4, 5]


def test_waiting_counts_values_that_are_forgotten_already():
    assert fed(batch(range(10)), buffer=3).wait(10, timeout=0) == [7, 8, 9]


def test_waiting_too_long_says_how_many_came():
    with pytest.raises(StreamTimeout, match=r"1 of 3 values of the stream 'loss' arrived within 0\.05 s"):
        fed(batch([1])).wait(3, timeout=0.05)


def test_waiting_on_a_stream_that_ends_says_why():
    stream = fed(batch([1]))
    in_background(lambda: stream.feed.finish("failed", "the query failed 100 times."))
    with pytest.raises(StreamEnded, match=r"failed after 1 of 3 values: the query failed 100 times\.$"):
        stream.wait(3, timeout=300)


def test_a_for_loop_yields_what_is_here_and_what_comes_until_the_end():
    stream = fed(batch([1, 2]))

    def feed():
        stream.publish(batch([3], first=3))
        stream.close()

    in_background(feed)
    assert list(stream) == [1, 2, 3]
    assert list(stream) == [1, 2, 3]


def test_a_for_loop_over_a_failed_stream_says_so_after_its_last_value():
    stream = fed(batch([1]))
    stream.feed.finish("failed", "no such observable")
    reader = iter(stream)
    assert next(reader) == 1
    with pytest.raises(StreamEnded, match="no such observable"):
        next(reader)


def test_following_without_history_yields_only_what_is_new():
    stream = fed(batch([1]))
    follow = stream.follow(history=False)
    stream.publish(batch([2], first=2))
    stream.close()
    assert list(follow) == [2]


def test_following_with_a_timeout_does_not_wait_for_ever():
    with pytest.raises(StreamTimeout, match="yielded no value for"):
        list(fed(batch([1])).follow(timeout=0.05))


def test_a_reader_that_falls_behind_continues_with_the_oldest_kept_value():
    stream = fed(batch([1, 2]), buffer=2)
    reader = iter(stream)
    assert next(reader) == 1
    stream.publish(batch(range(3, 8), first=3))
    stream.close()
    assert list(reader) == [2, 6, 7]


def test_asyncio_reads_along_while_another_thread_feeds():
    stream = Stream("loss")

    def feed():
        for n in range(1, 101):
            stream.publish(batch([n], first=n))
        stream.close()

    async def read():
        in_background(feed)
        return [value async for value in stream]

    assert asyncio.run(read()) == list(range(1, 101))


def test_asyncio_too_can_follow_with_a_timeout_and_leaves_nothing_behind():
    stream = fed(batch([1]))

    async def read():
        return [value async for value in stream.follow(timeout=0.05)]

    with pytest.raises(StreamTimeout):
        asyncio.run(read())
    assert not stream.feed.wakes


def test_two_tasks_of_one_loop_read_the_same_stream():
    stream = Stream()

    async def read():
        readers = [asyncio.create_task(collect()) for _ in range(2)]
        await asyncio.sleep(0)
        in_background(lambda: (stream.publish(batch([1, 2])), stream.close()))
        return await asyncio.gather(*readers)

    async def collect():
        return [value async for value in stream]

    assert asyncio.run(read()) == [[1, 2], [1, 2]]


CTRL_C = """
import signal, sys, threading, os
from looptap.streams.stream.stream import Stream
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="sends itself a signal")
@pytest.mark.parametrize("wait", ["Stream().wait(timeout=None)", "list(Stream())"])
def test_ctrl_c_ends_a_wait_in_the_main_thread(wait):
    code = CTRL_C.format(wait=wait)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "interrupted\n", done.stderr


# ---------------------------------------------------------------- callbacks


def test_a_callback_gets_each_new_value_until_it_is_unsubscribed():
    stream, seen = fed(batch([1])), []
    stop = stream.on_value(seen.append)
    stream.publish(batch([2, 3], first=2))
    stop()
    stream.publish(batch([4], first=4))
    assert seen == [2, 3]


def test_a_callback_may_ask_for_what_is_here_already():
    stream, seen = fed(batch([1, 2])), []
    stream.on_value(seen.append, replay=True)
    assert seen == [1, 2]


def test_a_callback_may_unsubscribe_itself():
    stream, seen = Stream(), []
    stop = stream.on_value(lambda value: (seen.append(value), stop()))
    stream.publish(batch([1, 2, 3]))
    assert seen == [1]


def test_an_exception_in_a_callback_warns_once_and_affects_no_other():
    stream, seen = Stream(), []
    stream.on_value(lambda value: 1 / 0)
    stream.on_value(seen.append)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError") as warned:
        stream.publish(batch([1, 2, 3]))
    assert len(warned) == 1
    assert seen == [1, 2, 3]
    assert isinstance(stream.callback_error, ZeroDivisionError)


def test_an_exception_in_a_callback_stays_inside_where_warnings_are_errors():
    stream = Stream()
    stream.on_value(lambda value: 1 / 0)
    stream.publish(batch([1]))
    assert isinstance(stream.callback_error, ZeroDivisionError)


def test_each_callback_gets_all_values_once_and_in_order_from_any_thread():
    stream, seen, numbers = Stream(), [], iter(range(1, 10_001))
    lock = threading.Lock()
    stream.on_value(seen.append)

    def feed():
        while True:
            with lock:
                number = next(numbers, None)
                if number is None:
                    return
                stream.publish(batch([number], first=number))

    threads = [in_background(feed) for _ in range(8)]
    for thread in threads:
        thread.join(300)
    soon(lambda: len(seen) == 10_000)
    assert seen == list(range(1, 10_001))


def test_readers_on_many_threads_see_every_value():
    stream, results = Stream(), []
    readers = [in_background(lambda: results.append(list(stream))) for _ in range(6)]
    for n in range(1, 2001):
        stream.publish(batch([n], first=n))
    stream.close()
    for reader in readers:
        reader.join(300)
    assert results == [list(range(1, 2001))] * 6


# ---------------------------------------------------------------- derived streams


def test_a_query_over_values_streams_what_is_here_and_what_comes():
    stream = fed(batch([3, 1]))
    most = stream.query("max(v for v in values)", window=2)
    stream.publish(batch([2, 9, 5], first=3))
    assert most.values == [3, 9]
    stream.close()
    assert most.values == [3, 9, 5]
    assert most.state == "ended"


def test_a_query_over_values_reads_rows_by_name():
    stream = fed(batch([(1, 0.5), (2, 1.5)]), fields=("step", "loss"))
    assert stream.query("loss * 2").values == [1.0, 3.0]
    assert stream.query(lambda row: row.step).values == [1, 2]
    assert stream.query("step, loss").latest.loss == 1.5


def test_the_values_of_a_stream_are_values_and_no_events():
    stream = fed(batch([1.0, 3.0, 2.0, 4.0]))
    expected = {
        "max(values)": [3.0, 4.0],
        "sum(values) / len(values)": [2.0, 3.0],
        "ema(values, 0.5)": [1.0, 2.0, 2.0, 3.0],  # restarts with each window
        "[2 * v for v in values]": [[2.0, 6.0], [4.0, 8.0]],
        "v + 1": [2.0, 4.0, 3.0, 5.0],
    }
    assert {query: stream.query(query, window=2).values for query in expected} == expected
    assert stream.query(lambda values: values[-1] - values[0], window=2).values == [2.0, 2.0]
    assert stream.query("values[-1]", window=sliding(2)).values == [1.0, 3.0, 2.0, 4.0]


def test_a_plain_value_has_no_fields_and_the_error_says_what_to_write():
    stream = fed(batch([0.5, 0.25]))
    assert "have no fields: write v, not v.loss." in stream.query("v.loss").traceback
    (worst,) = stream.query("max(v.loss for v in values)", window=2).records
    assert "are plain (float)" in worst.error


def test_a_query_over_values_complains_in_terms_of_values():
    stream = fed(batch([(1, 0.5), (2, 1.5)]), fields=("step", "loss"))
    with pytest.raises(QueryError, match=r"no 'events' here(.|\n)*the sequence is 'values'"):
        stream.query("max(e.loss for e in events)")
    with pytest.raises(QueryError, match=r"last\(v\.step for v in values\)"):
        stream.query("max(v.loss for v in values) - step")
    with pytest.raises(QueryError, match=r"Put \(v\.loss for v in values\) there"):
        stream.query("ema(loss, 0.1)")
    assert "no field 'los' in this row; there are: step, loss. Did you mean 'loss'?" in stream.query("v.los").traceback
    for query, message in (
        ("los + 1", "no field 'los'; there are: loss, step.(.|\n)*Did you mean 'loss'"),
        ("e.loss", r"no field 'e'(.|\n)*A value is v: v\.loss, or just loss\."),
        ("loss > latest('epoch').loss", "latest reads another type of events(.|\n)*Read it where the values are made"),
        (lambda events: len(events), "no 'events' here(.|\n)*the sequence is 'values'"),
        ("lambda events: len(events)", "no 'events' here(.|\n)*the sequence is 'values'"),
    ):
        with pytest.raises(QueryError, match=message):
            stream.query(query)


def test_a_derived_value_carries_the_event_that_completed_it():
    stream = fed(batch([1, 2, 3, 4]))
    total = stream.query("sum(v for v in values)", window=2)
    assert [(r.number, r.event, r.time) for r in total.records] == [(1, 2, 1.0), (2, 4, 2.0)]


def test_a_window_that_lost_values_is_flagged_partial():
    stream = fed(batch([1, 2, 3]))
    total = stream.query("sum(v for v in values)", window=2)
    stream.publish(batch([9, 9, 9], first=10))
    assert [(r.value, r.partial) for r in total.records] == [(3, False), (12, True), (18, False)]
    assert total.dropped == 6


@pytest.mark.parametrize("query", ["stdev(values)", "statistics.stdev(values)", "variance(v for v in values)"])
def test_a_sliding_window_fails_only_while_it_has_too_few_values(query):
    stream = fed()
    derived = stream.query(query, window=sliding(5))
    values = [float(number % 7) for number in range(120)]
    for number, value in enumerate(values, 1):
        stream.publish(batch([value], first=number))
    expected = statistics.variance if "variance" in query else statistics.stdev
    found = [expected(values[max(0, number - 5) : number]) for number in range(2, 121)]
    assert derived.values == pytest.approx(found)
    assert derived.error_count == 1


def test_a_sliding_window_is_flagged_partial_while_it_lacks_lost_values():
    stream = fed(batch([1, 2, 3]))
    total = stream.query("sum(v for v in values)", window=sliding(2))
    stream.publish(batch([9, 9, 9], first=10))
    assert [r.partial for r in total.records] == [False, False, False, True, False, False]
    assert total.values == [1, 3, 5, 12, 18, 18]


def test_a_window_that_the_end_cuts_short_is_flagged_partial_as_in_a_run():
    job = pair()
    values = job.run.stream("loss", on="batch")
    windows = {"window": 2}, {"window": sliding(3)}, {"window": seconds(60)}
    here = [values.query("sum(v for v in values)", **window) for window in windows]
    there = [job.run.stream("sum(e.loss for e in events)", on="batch", **window) for window in windows]
    for loss in (1, 2, 4):
        job.agent.emit("batch", loss=loss)
    job.agent.close()
    for mine, its in zip(here, there, strict=True):
        soon(lambda mine=mine: mine.state == "ended")
        assert [(r.value, r.partial) for r in mine.records] == [(r.value, r.partial) for r in its.records]
    assert [r.partial for r in here[0].records] == [False, True]


def test_the_window_of_a_finished_stream_is_whole_and_that_of_a_group_that_no_event_ended_is_not():
    job = pair()
    values = job.run.stream("loss", on="batch")
    here = values.query("sum(v for v in values)")
    there = job.run.stream("sum(e.loss for e in events)", on="batch")
    for loss in (1, 2, 4):
        job.agent.emit("batch", loss=loss)
    job.agent.close()
    soon(lambda: here.state == "ended")
    assert [(r.value, r.partial) for r in here.records] == [(7, False)]
    assert [(r.value, r.partial) for r in there.records] == [(7, True)]


def test_a_derived_query_continues_after_an_error_at_one_value():
    stream = fed(batch([1, 0, 2]))
    inverse = stream.query("lambda v: 1 / v")
    assert inverse.values == [1.0, 0.5]
    assert inverse.error_count == 1
    assert "ZeroDivisionError" in inverse.traceback


def test_a_derived_query_that_fails_a_hundred_times_in_a_row_ends():
    inverse = fed(batch([0] * 150)).query("lambda v: 1 / v")
    assert inverse.state == "failed"
    assert inverse.reason == "100 errors in a row, the first: ZeroDivisionError: division by zero"
    assert inverse.error_count == 100


def test_a_query_that_makes_no_sense_is_refused_with_a_caret():
    with pytest.raises(QueryError, match=r"\^"):
        Stream().query("max(v for v in")


def test_closing_a_derived_stream_leaves_its_source_alone():
    stream = fed(batch([1]))
    double = stream.query("lambda v: 2 * v")
    double.close()
    stream.publish(batch([2], first=2))
    assert (double.values, stream.values) == ([2], [1, 2])
    assert not stream.feed.subscribed


def test_derived_streams_can_be_derived_from():
    stream = fed(batch(range(8)))
    pairs = stream.query("sum(v for v in values)", window=2)
    assert pairs.query("max(v for v in values)", window=2).values == [5, 13]


# ---------------------------------------------------------------- cost


def test_taking_in_small_values_is_fast_and_builds_no_records():
    batches = [batch([(n, 0.5)] * 512, first=512 * n + 1) for n in range(400)]
    stream = Stream(buffer=100_000)
    began = time.thread_time()  # of this thread alone, however busy the machine is
    for one in batches:
        stream.publish(one)
    per_second = 400 * 512 / (time.thread_time() - began)
    assert per_second > 50_000  # a tenth of what is promised
    assert stream.arrived == 400 * 512
