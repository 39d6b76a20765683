"""Queries over the values of other queries, in the job: `of=`."""

from __future__ import annotations

import itertools
import math
import time

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from counts import examples
from hypothesis import given, settings
from interrupts import interrupted
from waiting import soon

import looptap
from looptap.agent.loop.derived_query import MAX_CHAINED_COUNT
from looptap.cli import main
from looptap.protocol.errors import NotAllowed
from looptap.streams.errors import QueryError
from looptap.streams.values.device_transfer import DeviceCopy, Pending
from looptap.testing import pair, parts_of

MEAN = "mean(v.loss for v in values)"


def flags(stream):
    return [(r.value, r.event, r.partial) for r in stream.records]


def emit(agent, losses, first=1):
    for step, loss in enumerate(losses, first):
        agent.emit("batch", step=step, loss=loss)


# ---------------------------------------------------------------- values as events


def test_fields_of_rows_have_names_and_plain_values_are_v_as_in_the_client():
    agent, run = pair()
    agent.stream("loss", "step, loss")
    agent.stream("plain", "loss")
    double, mean = run.stream("loss * 2", of="loss"), run.stream(MEAN, of="loss", window=2)
    plain, lambdas = run.stream("v + 1", of="plain"), run.stream(lambda v: v.step, of="loss")
    emit(agent, [1.0, 3.0, 5.0])
    assert (double.values, mean.values) == ([2.0, 6.0, 10.0], [2.0])
    assert (plain.values, lambdas.values) == ([2.0, 4.0, 6.0], [1, 2, 3])
    assert (mean.on, mean.mapped, double.mapped) == ("batch", False, True)
    assert flags(mean) == [(2.0, 2, False)]


def test_groups_end_with_those_of_the_events_of_the_source():
    agent, run = pair()
    agent.stream("loss", "step, loss")
    whole = run.stream(MEAN, of="loss")
    emit(agent, [1.0, 3.0])
    late = run.stream(MEAN, of="loss")
    emit(agent, [5.0])
    agent.emit("epoch")
    emit(agent, [7.0])
    agent.emit("epoch")
    assert flags(whole) == [(3.0, 3, False), (7.0, 4, False)]
    assert flags(late) == [(5.0, 3, True), (7.0, 4, False)]


def test_groups_end_in_the_right_place_where_a_whole_batch_of_events_is_evaluated_at_once():
    agent, run = pair(manual=True)
    parts_of(agent).sources.evaluator.max_pending = 256  # as in a job
    loss = run.stream("step, loss", on="batch")
    sums = run.stream("sum(v.loss for v in values)", of=loss)
    for epoch in range(5):
        emit(agent, [float(epoch)] * 6)
        agent.emit("epoch")
    run_all(agent)
    assert flags(sums) == [(6.0 * epoch, 6 * epoch + 6, False) for epoch in range(5)]


def run_all(agent):
    parts_of(agent).connection.deliver()


def test_values_that_are_a_group_each_close_no_group_and_say_so():
    agent, run = pair()
    agent.stream("mean", "mean(e.loss for e in events)")
    best, pairs = (
        run.stream("min(v for v in values)", of="mean"),
        run.stream("min(v for v in values)", of="mean", window=2),
    )
    for loss in (3.0, 1.0, 2.0, 4.0):
        emit(agent, [loss])
        agent.emit("epoch")
    assert (best.values, pairs.values) == ([], [1.0, 2.0])
    assert any("closes at the end of the run; use window=10 for earlier values" in note for note in best.notes)
    agent.close()
    assert flags(best) == [(1.0, 4, False)]


def test_windows_every_and_throttle_go_by_the_values():
    ticks = iter(range(1000))
    both = pair(clock=lambda: float(next(ticks)))
    agent, run = both
    agent.stream("odd", "(e.step for e in events if e.step % 2)")
    third = run.stream("v", of="odd", every=3)
    sliding = run.stream("sum(v for v in values)", of="odd", window=looptap.sliding(2))
    seconds = run.stream("list(v for v in values)", of="odd", window=looptap.seconds(4))
    sparse = run.stream("v", of="odd", throttle=4)
    emit(agent, [0.0] * 18)
    assert third.values == [5, 11, 17]
    assert sliding.values == [1, 4, 8, 12, 16, 20, 24, 28, 32]
    assert seconds.values == [[1, 3], [5, 7], [9, 11], [13, 15]]
    both.beat()
    assert (sparse.values, sparse.skipped) == ([1, 5, 9, 13, 17], 4)


def test_logged_values_are_a_source_too():
    agent, run = pair()
    agent.log(reward=9.0)
    above = run.stream("v > 1", of="reward")
    total = run.stream("sum(v for v in values)", of="reward", window=2)
    for reward in (1.0, 2.0, 3.0):
        agent.log(reward=reward)
    assert (above.values, total.values) == ([False, True, True], [3.0])
    assert [r.event for r in above.records] == [2, 3, 4]
    total.close()
    assert flags(total)[-1] == (3.0, 4, True)


# ---------------------------------------------------------------- what it equals

QUERIES = [
    ("v.a * 2 + v.b", {}), ("a, b", {}), ("(v.a for v in values if v.b > 0)", {}), ("lambda v: v.a / v.b", {}),
    ("ema((v.a for v in values), 0.5)", {"window": 3}), ("mean(v.a for v in values)", {"window": 4}),
    ("max(v.b for v in values), len(values)", {"window": 3}),
    ("sum(v.a for v in values)", {"window": looptap.sliding(3)}),
    ("group_by(((v.b, v.a) for v in values), max)", {"window": 5}), ("min(1 / v.b for v in values)", {"window": 2}),
    ("a > mean(v.a for v in recent(2))", {}), ("a", {"every": 3}),
    ("quantile((v.a for v in values), 0.5)", {"window": 4, "every": 2}),
    ("sum(v.a for v in values)", {}), ("lambda values: [v.b for v in values]", {"window": 3}),
]  # fmt: skip
NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(width=32), st.booleans())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(NUMBERS, st.integers(-2, 2)), max_size=12), st.sampled_from(QUERIES), st.booleans())
def test_it_is_the_stream_that_the_client_derives_from_the_same_values(rows, query, tensors):
    """The same values, events, numbers and partial flags, and as many errors."""
    code, how = query
    agent, run = pair()
    source = run.stream("a, b", on="batch")
    there, here = run.stream(code, of=source, **how), source.query(code, **how)
    for a, b in rows:
        agent.emit("batch", a=torch.tensor(a) if tensors and isinstance(a, float) else a, b=b)
    agent.close()
    soon(lambda: here.state != "live" and there.state != "live")
    cut = not there.mapped and how.get("window") is None  # no event ended the group, and the client knows no groups
    assert repr([tuple(r.value) if isinstance(r.value, tuple) else r.value for r in there.records]) == repr(
        [tuple(r.value) if isinstance(r.value, tuple) else r.value for r in here.records]
    )
    places = [[(r.number, r.event, r.partial) for r in stream.records] for stream in (there, here)]
    if cut and places[0]:
        places = [[*found[:-1], found[-1][:2]] for found in places]
    assert places[0] == places[1]
    assert [bool(r.error) for r in there.records] == [bool(r.error) for r in here.records]
    assert there.error_count == here.error_count


@pytest.mark.promise("of=")
def test_over_a_real_link_nothing_of_a_fast_loop_is_lost_between_the_two(place):
    with looptap.Agent("fast", budget=math.inf) as agent, looptap.attach("fast") as run:
        agent.stream("loss", "step, loss", history=10)
        sums = run.stream("sum(v.step for v in values), len(values)", of="loss", window=100)
        own = run.stream("step", on="batch")
        chained = run.stream("sum(v for v in values)", of=own, window=1000)
        emit(agent, [0.5] * 20_000)
        expected = [(sum(range(n + 1, n + 101)), 100) for n in range(0, 20_000, 100)]
        assert sums.wait(200) == expected
        assert chained.wait(20) == [sum(range(n + 1, n + 1001)) for n in range(0, 20_000, 1000)]
        assert (sums.dropped, chained.dropped) == (0, 0)


def test_what_a_slow_client_loses_is_not_lost_in_the_job():
    agent, run = pair(manual=True, limits=looptap.Limits(outbox_values=10))
    source = run.stream("step", on="batch")
    total = run.stream("sum(v for v in values)", of=source, window=50)
    emit(agent, [0.0] * 100)
    run_all(agent)
    assert source.dropped > 0
    assert total.values == [sum(range(1, 51)), sum(range(51, 101))]


# ---------------------------------------------------------------- chains, ends, errors


def test_a_chain_yields_through_all_of_its_queries_and_has_a_bound():
    agent, run = pair()
    agent.stream("s0", "loss")
    for depth in range(1, MAX_CHAINED_COUNT + 1):
        agent.stream(f"s{depth}", "v + 1", of=f"s{depth - 1}")
    with pytest.raises(QueryError, match="5 queries would read one another's values, and 4 may"):
        run.stream("v", of=f"s{MAX_CHAINED_COUNT}")
    emit(agent, [1.0, 2.0])
    agent.emit("epoch")
    assert run.stream(f"s{MAX_CHAINED_COUNT}").values == [5.0, 6.0]
    assert [one.of for one in run.streams] == ["", "s0", "s1", "s2", "s3"]


def test_the_end_of_a_group_reaches_the_end_of_a_chain():
    agent, run = pair()
    agent.stream("a", "loss")
    agent.stream("b", "v + 1", of="a")
    last = run.stream("sum(v for v in values)", of="b")
    for _ in range(2):
        emit(agent, [1.0, 2.0])
        agent.emit("epoch")
    assert flags(last) == [(5.0, 2, False), (5.0, 4, False)]


@pytest.mark.parametrize("pending", [1, 100])
def test_the_end_of_the_run_closes_its_window_behind_the_last_events(pending):
    agent, run = job = pair(manual=True)
    for evaluator in (parts_of(agent).sources.evaluator, parts_of(agent).sources.unobserved):
        evaluator.max_pending = pending
    agent.stream("fives", "mean(e.loss for e in events)", window=5)
    threes = run.stream("mean(v for v in values)", of="fives", window=3)
    emit(agent, map(float, range(20)))
    agent.close()
    job.deliver()
    assert flags(threes) == [(7.0, 15, False), (17.0, 20, True)]


def test_it_ends_with_its_source_and_says_why():
    agent, run = pair()
    mine = run.stream("loss", on="batch")
    total = run.stream("sum(v for v in values)", of=mine, window=3)
    beyond = run.stream("v", of=total)
    emit(agent, [1.0, 2.0])
    mine.close()
    soon(lambda: total.state == beyond.state == "ended")
    assert flags(total) == [(3.0, 2, True)]
    assert total.reason == "'loss', whose values it reads, was closed"
    assert "whose values it reads, has ended: 'loss', whose values it reads, was closed" in beyond.reason
    emit(agent, [1.0])
    assert not parts_of(agent).dispatcher.queries.chained


def test_it_ends_when_its_source_fails():
    agent, run = pair()
    agent.stream("inverse", "1 / loss")
    reader = run.stream("v", of="inverse")
    emit(agent, [1.0] + [0.0] * 150)
    assert reader.values == [1.0]
    assert reader.state == "ended"
    assert "has failed: 100 errors in a row" in reader.reason


def test_a_hundred_windows_that_fail_end_it_with_their_errors_in_the_job_and_in_the_client():
    agent, run = pair()
    source = run.stream("loss", on="batch")
    found = [source.query("1 / min(values)", window=2), run.stream("1 / min(values)", of=source, window=2)]
    emit(agent, [1.0, 2.0] + [0.0] * 250)
    soon(lambda: all(one.state == "failed" for one in found))
    for one in found:
        assert one.reason == "100 errors in a row, the first: ZeroDivisionError: float division by zero"
        assert (one.values, len(one.errors), one.error_count) == ([1.0], 100, 100)


def test_it_ends_when_the_client_of_its_source_leaves_and_keeps_a_shared_source_alive():
    pairs = pair()
    agent, run = pairs
    other = pairs.attach()
    mine = run.stream("loss", on="batch")
    run.export(mine, name="shared")
    reader = other.stream("v * 2", of="shared")
    run.close()
    other.stream("loss", on="batch").close()
    emit(agent, [1.0, 2.0])
    assert reader.values == [2.0, 4.0]


def test_a_stream_that_nothing_shows_any_more_ends_with_the_last_query_over_its_values(place):
    with looptap.Agent("shared") as agent, looptap.attach("shared") as run:
        mine = run.stream("step", on="batch")
        run.export(mine, name="steps")
        reader = run.stream("v * 2", of="steps")
        mine.close()
        run.export("steps", False)
        emit(agent, [0.0])
        soon(lambda: reader.values == [2])
        assert [one.name for one in run.streams] == ["steps"]
        reader.close()
        soon(lambda: not run.streams and not run.stats()["queries"])


def test_a_query_handed_over_to_the_job_still_feeds_those_over_its_values():
    agent, run = pair()
    mine = run.stream("step", on="batch")
    total = run.stream("sum(v for v in values)", of=mine, window=2)
    emit(agent, [0.0] * 3)
    run.export(mine, name="steps")
    run.export(total, name="totals")
    emit(agent, [0.0] * 3, first=4)
    assert total.values == [3, 7, 11]
    assert run.stream("totals").values == [7, 11]
    assert not [r for r in total.records if r.partial]


def test_errors_of_the_source_flag_the_window_and_errors_of_the_query_are_its_own():
    agent, run = pair()
    agent.stream("inverse", "min(1 / e.loss for e in events)", window=1)
    total, inverse = (
        run.stream("sum(v for v in values)", of="inverse", window=2),
        run.stream("1 / (v - 1)", of="inverse"),
    )
    emit(agent, [1.0, 0.0, 0.5, 0.25])
    assert flags(total) == [(3.0, 3, True)]
    assert (inverse.values, inverse.error_count) == ([1.0, 1 / 3], 1)
    assert "ZeroDivisionError" in inverse.traceback


def test_a_field_of_a_plain_value_is_answered_with_what_to_write():
    agent, run = pair()
    agent.stream("loss", "loss")
    wrong, window = run.stream("v.loss", of="loss"), run.stream("max(v.loss for v in values)", of="loss", window=2)
    emit(agent, [1.0, 2.0])
    assert "have no fields: write v, not v.loss." in wrong.traceback
    assert "have no fields: write v, not v.loss." in window.records[0].error
    assert "have no fields: write v, not v.loss." in window.traceback


def test_partial_windows_of_the_source_flag_what_is_made_of_them():
    agent, run = pair()
    emit(agent, [1.0])
    agent.stream("mean", "mean(e.loss for e in events)")
    same = run.stream("v", of="mean")
    for _ in range(2):
        emit(agent, [2.0])
        agent.emit("epoch")
    assert flags(same) == [(2.0, 2, True), (2.0, 3, False)]


def test_what_it_does_to_a_value_changes_no_other_stream():
    agent, run = pair()
    agent.stream("pairs", "[step, loss]")
    longer = run.stream(lambda v: v.append(0.5) or len(v), of="pairs", unsafe=True)
    emit(agent, [1.0, 2.0])
    assert longer.values == [3, 3]
    assert run.stream("pairs").values == [[1, 1.0], [2, 2.0]]


def test_arrays_and_tensors_are_values_like_any_other():
    agent, run = pair()
    agent.stream("x", "x")
    norms = run.stream("v.norm()", of="x")
    total = run.stream("sum(v for v in values)", of="x", window=2)
    for n in range(2):
        agent.emit("batch", x=torch.full((4,), float(n + 1)))
    assert norms.values == [2.0, 4.0]
    assert np.array_equal(total.values[0], [3.0] * 4)


def test_a_value_that_waits_for_its_device_holds_up_the_values_and_not_the_loop():
    agent, run = pair()
    agent.stream("loss", "loss")
    over = run.stream("sum(v for v in values)", of="loss", window=2)
    (query,) = parts_of(agent).dispatcher.queries.chained
    arrived, waits = [], []
    copy = DeviceCopy(torch.tensor(3.0), lambda: waits.append(bool(arrived)), lambda: bool(arrived))
    query.inbox.items.append((1, 1, 0.0, Pending({"x": copy}), 64))
    query.source.sink.lose()  # which numbers what follows
    over_items = query.inbox.items
    emit(agent, [1.0])
    assert (len(over_items), waits) == (2, [])
    arrived.append(True)
    over_items[0] = (1, 1, 0.0, Pending(copy), 64)
    emit(agent, [2.0])
    assert over.values == [4.0]
    assert waits == [True]


# ---------------------------------------------------------------- the history, the budget, a checkpoint


def test_the_history_of_its_source_comes_only_if_asked_for():
    agent, run = pair()
    agent.stream("loss", "step, loss")
    emit(agent, [1.0] * 700)
    plain, asked = run.stream("v.step", of="loss"), run.stream("v.step", of="loss", history=True)
    sums = run.stream("sum(v.step for v in values)", of="loss", window=100, history=True)
    emit(agent, [1.0] * 100, first=701)
    assert plain.values == list(range(701, 801))
    assert asked.values == list(range(1, 801))
    assert sums.values == [sum(range(n + 1, n + 101)) for n in range(0, 800, 100)]
    assert any("begins with the next value of 'loss'; history=True" in note for note in plain.notes)
    assert not asked.dropped
    assert not [r for r in sums.records if r.partial]


def test_values_that_come_while_the_history_is_evaluated_follow_it(place):
    with looptap.Agent("busy", budget=math.inf) as agent, looptap.attach("busy") as run:
        agent.stream("step", "step")
        emit(agent, [0.0] * 9_000)
        emitted = 9_000
        asked = run.stream("v", of="step", history=True)
        while asked.arrived < 12_000 and emitted < 2_000_000:
            emitted += 1
            agent.emit("batch", step=emitted, loss=0.0)
            if not emitted % 50:
                time.sleep(0.001)  # a loop without a step leaves the other threads no time
        asked.wait(12_000)
        first, last = asked.values[0], asked.values[-1]
        assert asked.values == list(range(first, last + 1))
        assert first == 1


def test_history_is_refused_where_it_cannot_be_had():
    agent, run = pair()
    agent.stream("loss", "loss")
    mine = run.stream("loss", on="batch")
    with pytest.raises(QueryError, match="history=True is for declared streams"):
        run.stream("v", of=mine, history=True)
    agent.expose(unknown=lambda v: v)
    with pytest.raises(QueryError, match="history=True needs a query that is known to be harmless"):
        run.stream("unknown(v)", of="loss", history=True)


def test_the_budget_charges_the_query_that_costs_and_not_its_source():
    ticks = iter(range(10**9))
    agent, run = pair(budget=0.03, clock=lambda: next(ticks) * 1e-3)
    agent.expose(slow=lambda v: sum(range(60_000)) * 0 + v)
    source = run.stream("step", on="batch", budget=float("inf"))  # else the purse of all is empty at once
    dear = run.stream("slow(v)", of=source)
    for step in range(3_000):
        agent.emit("batch", step=step, loss=0.0)
        if limited := any("evaluated at every" in note for note in dear.notes):
            break
    assert limited
    assert dear.withheld > 0
    assert source.withheld == 0
    assert dear.arrived + dear.withheld == source.arrived


def test_a_resumed_run_cuts_its_windows():
    agent, run = pair()
    agent.stream("loss", "step, loss")
    emit(agent, [1.0] * 3)
    state = agent.state_dict()
    agent, run = pair()
    agent.stream("loss", "step, loss")
    agent.stream("sums", "sum(v.loss for v in values)", of="loss", window=4)
    emit(agent, [5.0])
    agent.load_state_dict(state)
    emit(agent, [1.0] * 4)
    assert flags(run.stream("sums")) == [(5.0, 1, True), (4.0, 7, True)]


@pytest.mark.long
@pytest.mark.parametrize("fraction", [n / 29 for n in range(30)])
@pytest.mark.parametrize("code", ["v", "host(v)", "sum(v for v in values)"])
def test_ctrl_c_anywhere_in_an_event_leaves_each_value_accounted_for(code, fraction):
    def job():
        agent, run = pair("interrupted")
        agent.expose(host=lambda v: v)
        source = run.stream("step + 0 * x.sum()", on="batch")  # at its event, on the training thread
        over = run.stream(code, of=source, **({"window": 2} if "values" in code else {}))
        for step in range(1, 4):
            agent.emit("batch", step=step, x=torch.ones(1))
        return agent, source, over

    def pressed(at):
        agent, source, over = job()
        parts_of(agent).connection.manual = True
        ran, error = interrupted(lambda: agent.emit("batch", step=4, x=torch.ones(1)), at)
        parts_of(agent).connection.manual = False
        parts_of(agent).connection.deliver()
        return agent, source, over, ran, error

    *_, count, _ = pressed(0)
    agent, source, over, _, _error = pressed(1 + int(fraction * (count - 1)))
    for step in range(5, 9):
        agent.emit("batch", step=step, x=torch.ones(1))
    agent.close()
    assert source.arrived + source.dropped in (7, 8)  # the event itself may not have begun
    if "values" in code:
        sound = [r for r in over.records if not r.partial and r.error is None]
        assert {r.value for r in sound} <= {a + b for a, b in itertools.pairwise(source.values)}
    else:
        got = [r.value for r in over.records]
        assert got == sorted(set(got))
        assert source.arrived - over.dropped - 1 <= len(got) <= source.arrived
        assert set(source.values) - set(got) <= {4}
        assert (len(got) == source.arrived or over.dropped)


# ---------------------------------------------------------------- what is refused, and what is said


def test_the_host_declares_it_like_any_stream_and_refuses_what_makes_no_sense():
    agent, run = pair()
    with pytest.raises(QueryError, match="there is no declared stream 'loss'"):
        agent.stream("smooth", MEAN, of="loss", window=10)
    agent.stream("loss", "step, loss", unit="nats")
    agent.stream("smooth", MEAN, of="loss", window=2, unit="nats")
    for how, message in (
        ({"of": "loss", "on": "batch"}, "has the events of that stream: leave out on='batch'"),
        ({"of": "again"}, "there is no declared stream 'again'"),
        ({"of": "commands"}, "the stream of all commands"),
    ):
        with pytest.raises(QueryError, match=message):
            agent.stream("again", "v", **how)
    emit(agent, [1.0, 3.0])
    assert run.stream("smooth").values == [2.0]


def test_a_mistaken_event_is_answered_with_of():
    agent, run = pair()
    agent.stream("loss", "loss")
    with pytest.raises(QueryError, match="of='loss'"):
        run.stream("v * 2", on="loss")
    lost = run.stream("mean(v for v in values)")
    agent.emit("batch", loss=1.0)
    assert "for the values of a stream, name it: of='loss'" in lost.traceback
    with pytest.raises(QueryError, match="Over the values of a stream the sequence is 'values'"):
        run.stream("mean(e.loss for e in events)", of="loss")
    with pytest.raises(QueryError, match="leave out on='batch'"):
        run.stream("v", of="loss", on="batch")
    with pytest.raises(QueryError, match="Did you mean 'loss'"):
        run.stream("v", of="los")
    with pytest.raises(QueryError, match="Put the condition into the query"):
        run.stream("v", of="loss", when="v > 1")
    with pytest.raises(QueryError, match="every=0"):
        run.stream("v", of="loss", every=0)
    agent.stream("row", "step, loss")
    with pytest.raises(QueryError, match=r"no field 'lss'; there are: loss, step\.(.|\n)*Did you mean 'loss'"):
        run.stream("lss", of="row")
    with pytest.raises(QueryError, match="latest reads another type of events"):
        run.stream("latest('epoch').acc", of="row")


def test_a_number_that_events_carry_is_no_source_and_says_so():
    agent, run = pair(history=True)
    agent.emit("batch", step=1, loss=1.0)
    for of in ("loss", "step, loss"):
        with pytest.raises(QueryError, match="Events carry it, so ask over these"):
            run.stream("mean(values)", of=of, window=10)


def test_only_a_live_stream_of_this_run_can_be_the_source():
    _agent, run = pair()
    _, other = pair("other")
    elsewhere, mine = other.stream("loss", on="batch"), run.stream("loss", on="batch")
    for of in (elsewhere, mine.query("v"), looptap.stream_of([1]), 3):
        with pytest.raises(QueryError, match="neither the name of a declared stream nor a live stream of this run"):
            run.stream("v", of=of)
    for derived in (mine.query("v"), looptap.join(mine, mine, on="event")):
        with pytest.raises(QueryError, match=r"neither a live stream of this run .* take the streams that it reads"):
            run.export(derived)
    recorder = run.stream("loss", on="batch", when="loss > 1")
    with pytest.raises(QueryError, match="flight recorder"):
        run.stream("v", of=recorder)
    with pytest.raises(QueryError, match="combine= puts values of events together"):
        run.stream("v", of="loss", combine="mean")
    mine.close()
    with pytest.raises(QueryError, match="this stream has ended: closed"):
        run.stream("v", of=mine)


def test_viewers_ask_on_their_side(place, monkeypatch):
    monkeypatch.chdir(place)  # for the connection file
    with looptap.Agent("shown") as agent, looptap.attach("shown") as run:
        agent.stream("loss", "loss")
        share = run.share()
        run.export("loss")
        with looptap.attach(share.path) as viewer, pytest.raises(NotAllowed, match=r"run\.stream"):
            viewer.stream("v", of="loss")


def test_watch_asks_over_the_values_of_a_stream(place, capsys):
    with looptap.Agent("watched") as agent:
        agent.log(reward=0.0)
        agent.stream("loss", "step, loss")
        import threading

        done = threading.Event()

        def loop():
            step = 0
            while not done.wait(0.001):
                step += 1
                agent.emit("batch", step=step, loss=2.0)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            with pytest.raises(SystemExit) as ended:
                main(["watch", "watched", MEAN, "--of", "loss", "--window", "10", "--count", "3", "--json"])
        finally:
            done.set()
            thread.join()
        assert ended.value.code == 0
        assert capsys.readouterr().out.count('"value": 2.0') == 3
