"""Several streams joined into one, live and stored."""

from __future__ import annotations

import math
import random
import threading
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import soon

import looptap
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.stream import join as joining
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream


def live(name, fields=("step", "loss")):
    return Stream(name, fields=fields)


def feed(stream, *values, time=0.0, clock=0.0, flags=b"", event=None):
    first = stream.newest + 1
    events = array("q", range(first, first + len(values)) if event is None else [event] * len(values))
    stream.publish(Batch(first, events, array("d", [time] * len(values)), list(values), clock, flags))


def plain(stream):
    return [tuple(value) for value in stream.values]


def end(*streams):
    for stream in streams:
        stream.feed.finish("ended", "over")


@pytest.mark.parametrize("how", ["inner", "outer"])
@given(
    keys=st.lists(st.lists(st.integers(0, 30), unique=True).map(sorted), min_size=2, max_size=3),
    seed=st.integers(0, 999),
)
def test_rows_are_those_of_a_merge_however_the_values_interleave(how, keys, seed):
    dice = random.Random(seed)
    sources = [live(f"s{index}") for index in range(len(keys))]
    joined = looptap.join(*sources, on="step", how=how)
    todo = [[(key, 100 * index + key) for key in one] for index, one in enumerate(keys)]
    while any(todo):
        index = dice.choice([index for index, one in enumerate(todo) if one])
        feed(sources[index], *[todo[index].pop(0) for _ in range(dice.randint(1, len(todo[index])))])
    end(*sources)
    sets = [set(one) for one in keys]
    expected = sorted(set.union(*sets) if how == "outer" else set.intersection(*sets))
    assert sorted(plain(joined)) == [
        (key, *(100 * index + key if key in one else None for index, one in enumerate(sets))) for key in expected
    ]
    if len(keys) == 2:
        assert plain(joined) == sorted(plain(joined))
    assert joined.unmatched == len(set.union(*sets)) - len(set.intersection(*sets))
    assert joined.state == "ended"
    assert joined.dropped == joined.given_up == joined.keyless == 0


def test_a_row_comes_as_soon_as_its_values_are_there():
    a, b = live("train"), live("val")
    joined = looptap.join(a, b)
    feed(a, (1, 0.5), (2, 0.4))
    assert plain(joined) == []
    feed(b, (1, 0.9))
    assert joined.values[0]._asdict() == {"step": 1, "loss": 0.5, "loss_2": 0.9}
    feed(b, (2, 0.8))
    assert plain(joined) == [(1, 0.5, 0.9), (2, 0.4, 0.8)]
    assert joined.state == "live"


def test_an_outer_row_comes_once_the_other_stream_is_past_it():
    a, b = live("train"), live("val")
    joined = looptap.join(a, b, how="outer")
    feed(a, (1, 0.5), (2, 0.4), (3, 0.3))
    feed(b, (2, 0.8))
    assert plain(joined) == [(1, 0.5, None), (2, 0.4, 0.8)]
    end(b)
    assert plain(joined)[-1] == (3, 0.3, None)
    feed(a, (4, 0.2))
    assert plain(joined)[-1] == (4, 0.2, None)


def test_steps_that_begin_again_are_joined_round_by_round():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b)
    feed(a, *[(step, 10 * epoch + step) for epoch in range(3) for step in range(1, 4)])
    feed(b, *[(step, -(10 * epoch + step)) for epoch in range(3) for step in range(1, 4)])
    assert [row.loss + row.loss_2 for row in joined.values] == [0] * 9


def test_values_of_one_key_are_joined_in_their_order():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b)
    feed(a, (1, "first"), (1, "second"), (2, "third"))
    feed(b, (1, 1), (1, 2), (2, 3))
    assert plain(joined) == [(1, "first", 1), (1, "second", 2), (2, "third", 3)]


def test_keys_may_be_some_way_apart():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b, within=2)
    feed(a, (100, "a"), (110, "b"), (120, "c"))
    feed(b, (101, 1), (113, 2), (119, 3))
    end(a, b)
    assert plain(joined) == [(100, "a", 1), (120, "c", 3)]


def test_values_are_joined_by_the_wall_clock_of_their_hosts():
    a, b = live("a", ("loss",)), live("b", ("util",))
    joined = looptap.join(a, b, on="time", within=0.5)
    for second in range(4):
        feed(a, (second,), time=1000.0 + second, clock=5000.0)
        feed(b, (10 * second,), time=7.2 + second, clock=5993.0)
    assert [row[1:] for row in plain(joined)] == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert [record.wall for record in joined.records] == pytest.approx([6000.2, 6001.2, 6002.2, 6003.2])
    assert joined.fields == ("time", "loss", "util")


def test_plain_values_are_joined_by_the_number_of_their_event():
    a, b = Stream("loss"), Stream("x + 1")
    joined = looptap.join(a, b, on="event")
    feed(a, 0.5, event=7)
    feed(b, 3, event=7)
    assert joined.values[0]._asdict() == {"event": 7, "loss": 0.5, "value": 3}


def test_dicts_have_fields_too():
    a, b = Stream("a"), Stream("b")
    joined = looptap.join(a, b, on="epoch")
    feed(a, {"epoch": 1, "acc": 0.5})
    feed(b, {"epoch": 1, "f1": 0.6})
    assert joined.values[0]._asdict() == {"epoch": 1, "acc": 0.5, "f1": 0.6}


def test_dicts_of_any_keys_are_joined_and_keys_that_come_too_late_are_reported():
    a, b = Stream("a"), Stream("b")
    joined = looptap.join(a, b, on="event")
    feed(a, {0: 0.5}, {0: 0.25, 1: 0.75}, {2: 0.1})
    feed(b, 1)
    assert joined.values == [(1, 0.5, None, None, 1)]
    assert joined.fields == ("event", "0", "1", "2", "b")
    feed(a, {0: 0.5, 3: 1.0}, {3: 2.0})
    feed(b, 2, 3, 4)
    assert plain(joined)[1:] == [(2, 0.25, 0.75, None, 2), (3, None, None, 0.1, 3), (4, 0.5, None, None, 4)]
    assert joined.notes == ["left out, as no value had it before the first row: 3"]


def test_a_row_is_at_the_event_of_its_value_where_no_clock_is_known():
    joined = looptap.join(looptap.stream_of([1, 2], name="a"), looptap.stream_of([3, 4], name="b"), on="event")
    assert [record.event for record in joined.records] == [1, 2]


def test_what_has_no_key_or_is_an_error_is_counted_and_left_out():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b, how="outer")
    feed(a, ("one", 1), (None, 2), (math.nan, 3), (True, 4), 5, (6, 6))
    feed(b, (6, "error"), (6, 60), flags=bytes((ERROR, PARTIAL)))
    assert plain(joined) == [(6, 6, 60)]
    assert joined.records[0].partial
    assert joined.keyless == 5
    assert joined.notes == ["left out: of 'a' a value with step='one', which is no number"]  # once for each stream


def test_values_without_the_field_are_named_with_what_they_have():
    joined = looptap.join(live("a"), looptap.stream_of([0.5], name="plain"))
    soon(lambda: joined.keyless)
    assert joined.notes == [
        "left out: the values of 'plain' have no 'step'; they have: plain. Join on='event' or on='time' instead."
    ]


@pytest.mark.parametrize("within", [0, 0.5])
def test_huge_and_infinite_keys_are_joined(within):
    a, b = live("a"), live("b")
    joined = looptap.join(a, b, within=within)
    for stream in (a, b):
        feed(stream, (-math.inf, 0), (10**400, 1))
    assert [row.loss for row in joined.values] == [0, 1]


def test_waiting_rows_are_bounded_and_what_is_given_up_is_counted(monkeypatch):
    monkeypatch.setattr(joining, "MAX_WAITING_ROWS", 10)
    a, b = live("a"), live("b")
    inner, outer = looptap.join(a, b), looptap.join(a, b, how="outer")
    feed(a, *[(step, step) for step in range(15)])
    feed(b, *[(step, step) for step in range(15)])
    assert inner.given_up == outer.given_up == 5
    assert [row.step for row in inner.values] == list(range(5, 15))
    assert plain(outer)[:6] == [*((step, step, None) for step in range(5)), (5, 5, 5)] or plain(outer)[5][0] == 0


def test_values_from_many_threads_make_each_row_once():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b)
    seen = []
    joined.on_value(seen.append)
    threads = [
        threading.Thread(target=lambda stream=stream: [feed(stream, (step, step)) for step in range(2000)])
        for stream in (a, b)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    soon(lambda: len(seen) == 2000)
    assert [row.step for row in seen] == list(range(2000))


def test_a_callback_may_read_and_close_the_joined_stream():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b)
    joined.on_value(lambda row: joined.close())
    feed(a, (1, 1), (2, 2))
    feed(b, (1, 1), (2, 2))
    assert joined.state == "ended"
    assert a.state == "live"
    feed(a, (3, 3))
    assert joined.callback_error is None


def test_a_source_that_failed_says_why():
    a, b = live("a"), live("b")
    joined = looptap.join(a, b)
    a.feed.finish("failed", "no field 'step'")
    end(b)
    assert (joined.state, joined.reason) == ("failed", "no field 'step'")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"streams": 1}, "two streams or more"),
        ({"how": "left"}, "how='left' must be 'inner' or 'outer'"),
        ({"on": "stp"}, "have no 'stp'; they have: step, loss.*Did you mean 'step'"),
        ({"on": ""}, "the name of a field"),
        ({"on": 3}, "the name of a field"),
        ({"within": -1}, "within=-1"),
        ({"within": math.nan}, "within=nan"),
        ({"within": "1s"}, "within='1s'"),
    ],
)
def test_what_cannot_be_joined_is_refused(arguments, error):
    count = arguments.pop("streams", 2)
    with pytest.raises(looptap.QueryError, match=error):
        looptap.join(*(live("a") for _ in range(count)), **arguments)


def test_streams_of_a_running_job_and_of_a_stored_run_are_joined(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOPTAP_STORE")
    with looptap.Agent("yesterday") as agent:
        agent.stream("losses", "step, loss", on="batch", keep=True)
        for step in range(1, 51):
            agent.emit("batch", step=step, loss=1 / step)
    (path,) = (tmp_path / "looptap-runs").glob("yesterday*")
    with looptap.open(path) as stored:
        with looptap.Agent("today") as agent, looptap.attach("today") as run:
            losses, squares = run.stream("step, loss", on="batch"), run.stream("step, loss ** 2", on="batch")
            joined = looptap.join(stored.stream("losses"), losses, squares)
            for step in range(1, 51):
                agent.emit("batch", step=step, loss=2 / step)
            rows = joined.wait(50)
            assert [tuple(row) for row in rows] == [(s, 1 / s, 2 / s, (2 / s) ** 2) for s in range(1, 51)]
            assert list(joined.to_pandas().columns)[-4:] == list(joined.fields)
        soon(lambda: joined.state == "ended")
