"""Deferred evaluation of queries on plain numbers: same values at a lower cost."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time

import pytest
import torch
from waiting import soon

import looptap
from looptap.agent.agent import Agent
from looptap.agent.loop import in_columns
from looptap.agent.loop.columns.event_batch import EventBatch
from looptap.agent.loop.deferred_evaluation import MAX_PENDING_EVENTS, MAX_PENDING_EVENTS_WITHOUT_WAIT, OVERFLOW_EVENTS
from looptap.agent.loop.evaluation_plan import EvaluationPlan
from looptap.agent.loop.in_columns import EVENTS_AT_A_TIME, evaluate_in_columns
from looptap.agent.loop.overhead_budget import Account, OverheadBudget
from looptap.streams.errors import StreamEnded
from looptap.streams.events import EventOrigin
from looptap.testing import pair, parts_of

SUMS = "sum(e.step for e in events), len(events), first(e.step for e in events)"


@pytest.fixture
def run(directory):
    with Agent("later") as agent, looptap.attach("later") as run:
        yield agent, run


def later(agent: Agent, name: str) -> list[bool | None]:
    return [query.deferred for query in parts_of(agent).sources.open(name).queries]


@pytest.mark.parametrize(
    "query",
    [
        "step, loss", "e.loss * 2", "loss > 3 * mean(e.loss for e in recent(50))", "math.sqrt(loss) if step else 0.0",
        "max(e.loss for e in events)", "len([e for e in events if e.loss < 5])", "ema((e.loss for e in events), 0.1)",
        "group_by(((e.step % 3, e.loss) for e in events), mean)", "lambda e: (e.step, e.loss)", "isnan(loss)",
        "sorted(e.loss for e in events)[-1]", "reduce(lambda a, e: a + e.loss, events, 0)",
    ],
)  # fmt: skip
def test_arithmetic_is_evaluated_later(query, run):
    agent, client = run  # with an I/O thread: in a pair, evaluating includes all that becomes of the values
    stream = client.stream(query, on="batch")
    agent.emit("batch", step=1, loss=torch.tensor(0.5))
    agent.emit("batch", step=2, loss=0.25)
    agent.emit("epoch")
    stream.wait(1)
    assert later(agent, "batch") == [True]
    assert not stream.errors


def test_deferred_evaluation_honours_every_third_event(run):
    agent, run = run
    third, sums = run.stream("step", on="batch", every=3), run.stream(SUMS, on="batch", every=4)
    for step in range(1, 1001):
        agent.emit("batch", step=step)
    agent.emit("epoch")
    assert later(agent, "batch") == [True, True]
    assert third.wait(333) == list(range(3, 1001, 3))
    assert sums.wait(1) == [(sum(range(4, 1001, 4)), 250, 4)]


@pytest.mark.parametrize(
    "query",
    [
        "loss.item()", "x.mean()", "x", "latest('epoch').error", "host(loss)", "map(type, events)", "norm(x)",
        "(e.x for e in events)", "missing", "lazy", "exposed", "torch.abs(loss)",
    ],
)  # fmt: skip
def test_all_else_is_evaluated_at_the_event(query):
    agent, run = pair()
    agent.expose(exposed=1.0, host=abs)
    run.stream(query, on="batch")
    agent.emit("batch", step=1, loss=torch.tensor(0.5), x=torch.ones(3), lazy=looptap.lazy(lambda: 1.0))
    assert later(agent, "batch") == [False]


def test_a_number_that_becomes_a_tensor_moves_the_query_to_its_events_in_order(run):
    agent, client = run
    stream = client.stream("step, loss", on="batch")
    for step in range(5):
        agent.emit("batch", step=step, loss=float(step))
    assert later(agent, "batch") == [True]
    agent.emit("batch", step=5, loss=torch.tensor([1.0, 2.0]))
    assert later(agent, "batch") == [False]
    agent.emit("batch", step=6, loss=6.0)
    assert later(agent, "batch") == [True]
    assert stream.wait(7, timeout=300)
    assert [step for step, _ in stream.values] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("large", ["x" * 129, 1 << 1024], ids=["text", "integer"])
def test_what_is_large_does_not_wait_for_thousands_of_others(large, run):
    agent, client = run
    stream = client.stream("what, step", on="batch")
    small = large[1:] if isinstance(large, str) else large - 1
    values = [small] * 5 + [large, small]
    for step, value in enumerate(values):
        agent.emit("batch", what=value, step=step)
        assert later(agent, "batch") == [step != 5]
    assert stream.wait(7, timeout=300)
    assert stream.values == [(value, step) for step, value in enumerate(values)]


def test_a_scalar_tensor_keeps_the_value_of_its_event(run):
    agent, client = run
    stream = client.stream("step, loss", on="batch")
    loss = torch.zeros(())
    for step in range(5):
        agent.emit("batch", step=step, loss=loss.fill_(step))
    assert stream.wait(5, timeout=300)
    assert stream.values == [(step, float(step)) for step in range(5)]


def test_an_observable_that_hides_a_function_wins():
    agent, run = pair()
    stream = run.stream("max + 1", on="batch")
    agent.emit("batch", max=1)
    agent.emit("batch", max=2)
    assert stream.values == [2, 3]


@pytest.mark.parametrize("query", ["step", "sum(e.step for e in events)"])
def test_every_third_event_is_every_third(run, query):
    agent, client = run
    stream = client.stream(query, on="batch", every=3, window=1)
    for step in range(1, 100):
        agent.emit("batch", step=step)
    assert stream.wait(33, timeout=300)
    assert stream.values == list(range(3, 100, 3))


def test_the_last_values_of_a_resting_loop_arrive(run):
    agent, client = run
    stream = client.stream("step", on="batch")
    for step in range(5):
        agent.emit("batch", step=step)
    assert stream.wait(5, timeout=300)
    assert stream.values == [0, 1, 2, 3, 4]


def test_the_number_of_pending_events_is_bounded(run):
    agent, client = run
    stream = client.stream("mean(e.step for e in events)", on="batch")
    agent.emit("batch", step=0)
    most = 0
    for step in range(1, 20 * MAX_PENDING_EVENTS):
        agent.emit("batch", step=step)
        most = max(most, parts_of(agent).sources.evaluator.pending())
    agent.emit("epoch")
    assert most <= MAX_PENDING_EVENTS_WITHOUT_WAIT  # beyond 256 only while the I/O thread has a piece and no processor
    assert stream.wait(1, timeout=300)
    assert stream.values == [(20 * MAX_PENDING_EVENTS - 1) / 2]


def test_clients_that_come_and_go_see_each_event_once_and_in_order(run):
    agent, client = run
    over = threading.Event()
    total = 0

    def loop() -> None:
        nonlocal total
        pause = random.Random(1)
        while not over.is_set():
            agent.emit("batch", step=total)
            total += 1
            if total % 500 == 0:
                agent.emit("epoch")
            if pause.random() < 0.002:
                time.sleep(pause.random() / 50)  # long enough for the I/O thread to take over, now and then

    thread = threading.Thread(target=loop)
    thread.start()
    rest = client.stream(SUMS, on="batch")
    try:
        for _ in range(10):
            steps = client.stream("step", on="batch", buffer=1_000_000)
            steps.wait(200, timeout=300)
            steps.close()
            values = steps.values
            assert values == list(range(values[0], values[0] + len(values)))
            assert not steps.dropped
            assert not steps.gaps
    finally:
        over.set()
        thread.join()
    agent.emit("epoch")
    agent.close()
    with pytest.raises(StreamEnded):
        rest.wait(1_000_000, timeout=300)
    whole = [(r.value, r.partial) for r in rest.records]
    assert len(whole) > 2
    for (total_, count, first), partial in whole:
        assert total_ == sum(range(first, first + count))
        assert partial or first % 500 == 0


def test_arithmetic_that_turns_out_to_be_expensive_is_left_to_the_budget(run):
    agent, client = run
    stream = client.stream("sum(range(int(step) * 0 + 100_000))", on="batch")
    deadline = time.monotonic() + 60
    while not any("evaluated at every" in note for note in stream.notes) and time.monotonic() < deadline:
        agent.emit("batch", step=1)
        time.sleep(0.0005)
    assert later(agent, "batch") == [False]
    assert any("evaluated at every" in note for note in stream.notes)
    assert set(stream.values) == {sum(range(100_000))}


@pytest.mark.parametrize("query", ["step", "sum(e.step for e in events)", "sum(e.step for e in recent(3))"])
def test_ctrl_c_while_many_events_are_evaluated_loses_one_at_most_and_passes(query, monkeypatch):
    agent, run = pair()
    stream = run.stream(query, on="batch", window=1)
    attached = parts_of(agent).sources.open("batch").queries[0]
    attached.pipeline.form = None
    for part in getattr(attached.pipeline, "slots", ()):
        part.columns = None
    agent.emit("batch", step=0)
    post, calls = in_columns.evaluate_at_event, []

    def pressed(query, *event):
        calls.append(event)
        post(query, *event)
        if len(calls) in (5, 6):
            raise KeyboardInterrupt

    monkeypatch.setattr(in_columns, "evaluate_at_event", pressed)
    rows = [element for n in range(2, 22) for element in (n, 0.0, 0, n)]
    batch = EventBatch.of_rows(EventOrigin("batch"), ["step"], rows)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            evaluate_in_columns(attached, batch)
    evaluate_in_columns(attached, batch)  # which does what is left
    parts_of(agent).connection.wake()
    assert [event[1] for event in calls] == list(range(2, 22))
    assert stream.arrived == 21


@pytest.mark.parametrize("when", ["before", "amid"])
def test_ctrl_c_while_columns_are_reduced_costs_one_window_at_most_and_no_event_comes_twice(when):
    agent, run = pair()
    stream = run.stream("sum(e.step for e in events)", on="batch", window=5)
    agent.emit("batch", step=1)
    attached = parts_of(agent).sources.open("batch").queries[0]
    push, calls = attached.pipeline.push_many, []

    def pressed(*events):
        calls.append(events[2:])
        if len(calls) == 2 and when == "before":
            raise KeyboardInterrupt
        return push(*events)

    attached.pipeline.push_many = pressed
    rows = [element for n in range(2, 31) for element in (n, 0.0, 0, n)]
    batch = EventBatch.of_rows(EventOrigin("batch"), ["step"], rows)
    if when == "amid":
        reducer = attached.pipeline.slots[0].reducer
        add = type(reducer).extend

        def interrupted(items):
            add(reducer, items)
            raise KeyboardInterrupt

        attached.pipeline.slots[0].extend = interrupted
    with pytest.raises(KeyboardInterrupt):
        evaluate_in_columns(attached, batch)
    if when == "amid":
        del attached.pipeline.slots[0].extend
    evaluate_in_columns(attached, batch)
    parts_of(agent).connection.wake()
    assert attached.events == 30
    whole = [sum(range(first, first + 5)) for first in range(1, 31, 5)]
    assert len(stream.records) == len(whole)
    right = [value == record.value for value, record in zip(whole, stream.records, strict=True)]
    assert right.count(False) == (when == "amid")
    assert all(record.error or record.partial for record, fine in zip(stream.records, right, strict=True) if not fine)


def test_an_evaluation_that_does_not_return_blocks_no_event_and_keeps_no_memory(run):
    agent, client = run
    stuck = client.stream("step", on="batch")
    agent.emit("batch", step=0)
    stuck.wait(1)
    evaluator, taken, over = parts_of(agent).sources.evaluator, threading.Event(), threading.Event()

    def hold():
        with evaluator.turn.lock:
            taken.set()
            over.wait(300)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(300)
    try:
        for step in range(1, OVERFLOW_EVENTS + 5_000):  # one wait of half a second for each would take nine hours
            agent.emit("batch", step=step)
        assert evaluator.pending() < 5_000
        assert evaluator.turn.overdue
    finally:
        over.set()
        holder.join()
    agent.emit("batch", step=-1)
    soon(lambda: stuck.state == "failed")
    assert "did not return" in stuck.reason
    assert not evaluator.pending()
    fresh = client.stream("step", on="batch")
    agent.emit("batch", step=7)
    fresh.wait(1)
    assert fresh.values == [7]


@pytest.mark.parametrize("query", ["mean(e.step for e in recent(5))", "{'step': step}"])
def test_another_thread_has_its_turn_between_events_that_are_evaluated_one_by_one(query):
    agent, run = pair()
    stream = run.stream(query, on="batch")
    agent.emit("batch", step=1)
    attached = parts_of(agent).sources.open("batch").queries[0]
    attached.deferred = True
    rows = [element for n in range(2, 258) for element in (n, 0.0, 0, n)]
    turns = [1]
    batch = EventBatch.of_rows(EventOrigin("batch"), ["step"], rows)
    evaluate_in_columns(attached, batch, lambda: turns.append(attached.seen))
    parts_of(agent).connection.wake()
    assert stream.arrived == attached.seen == 257
    assert max(after - before for before, after in itertools.pairwise([*turns, 257])) <= EVENTS_AT_A_TIME + 1


def test_a_piece_that_another_thread_waits_for_is_not_held_up():
    agent, run = pair(manual=True)
    run.stream("mean(e.step for e in recent(5))", on="batch")
    evaluator = parts_of(agent).sources.evaluator
    evaluator.max_pending = 1000
    for step in range(201):
        agent.emit("batch", step=step)
    assert evaluator.pending() == 200
    waiter, turns = threading.Thread(target=evaluator.drain), []

    def give_way() -> None:
        turns.append(evaluator.turn.wanted)
        if len(turns) == 2:
            waiter.start()
            soon(lambda: evaluator.turn.wanted)

    evaluator.catch_up(give_way)
    waiter.join()
    assert turns == [False, False]
    assert evaluator.pending() == 0


def test_what_another_thread_takes_meanwhile_is_no_cost_of_the_query():
    agent, run = pair()
    run.stream("step", on="batch")
    agent.emit("batch", step=1)
    attached = parts_of(agent).sources.open("batch").queries[0]
    before, account = attached.seconds, attached.account
    for _ in range(9):
        attached.evaluate_later(lambda give_way: give_way(), 1, lambda: time.sleep(0.02))
    assert attached.seconds - before < 0.05
    assert account.is_cheap_later


def test_one_evaluation_that_takes_long_by_chance_leaves_a_query_deferred_and_three_do_not():
    account = Account(OverheadBudget())
    for chance in (0.0, 1.0, 0.0, 0.0, 1.0, 0.0):
        account.charge_later(chance, 20)
        assert account.is_cheap_later
    for _ in range(3):
        account.charge_later(1.0, 20)
    assert not account.is_cheap_later


@pytest.mark.parametrize("otherwise", [{}, {"loss": torch.tensor([1.0, 2.0])}], ids=["missing", "vector"])
@pytest.mark.parametrize(
    ("odd", "at_events"),
    [(lambda step: step == 5, 1), (lambda step: not step % 10, 10), (lambda step: 20 < step < 40, 35)],
    ids=["once", "now and then", "for a while"],
)
def test_a_query_that_lacks_a_plain_number_is_deferred_again_once_it_has_it(odd, at_events, otherwise, run):
    agent, client = run
    stream = client.stream("step, loss", on="batch")
    seen = []
    for step in range(1, 102):
        agent.emit("batch", step=step, **(otherwise if odd(step) else {"loss": float(step)}))
        seen += later(agent, "batch")
    assert seen.count(False) <= at_events
    assert seen[-1]
    expected = [step for step in range(1, 102) if otherwise or not odd(step)]
    assert stream.wait(len(expected), timeout=300)
    assert [step for step, _ in stream.values] == expected
    assert all(loss == step for step, loss in stream.values if not odd(step))


def test_a_query_that_lacks_a_number_at_every_second_event_costs_few_plans(run, monkeypatch):
    agent, client = run
    client.stream("step, loss", on="batch")
    plans = []
    follow = EvaluationPlan.follow
    monkeypatch.setattr(EvaluationPlan, "follow", lambda *given: plans.append(follow(*given)))
    for step in range(1000):
        agent.emit("batch", step=step, **({"loss": 1.0} if step % 2 else {}))
    assert len(plans) < 50


def test_an_event_without_its_number_leaves_a_query_deferred_where_the_budget_is_exhausted():
    agent, run = pair(budget=0.001)
    stream, _ = run.stream("loss", on="batch"), run.stream("time.sleep(0.001) or 1", on="batch", unsafe=True)
    for step in range(1, 501):
        agent.emit("batch", **({"loss": 1.0} if step != 50 else {}))
    parts_of(agent).sources.drain()
    assert stream.wait(498, timeout=60)
    (withheld,) = [one.withheld for one in run.agent_stats().queries if one.name == "loss"]
    assert withheld <= 2


@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min", "any", "all", "len", "first", "last", "stdev"])
def test_a_sliding_window_gives_what_its_events_alone_give(reducer):
    agent, run = pair()
    items_of = "([e.x for e in recent(7)])" if reducer == "len" else "(e.x for e in recent(7))"
    stream = run.stream(f"{reducer}{items_of} if step > 1 else 0", on="batch")
    randoms = random.Random(3)
    items = [randoms.choice([0, 1, randoms.gauss(0, 1e6), -0.0, 0.1, randoms.randrange(-9, 9)]) for _ in range(200)]
    for step, x in enumerate(items, 1):
        agent.emit("batch", step=step, x=x)
    plain = {"len": len, "any": any, "all": all, "max": max, "min": min, "first": lambda xs: xs[0]}
    plain |= {"last": lambda xs: xs[-1], "sum": math.fsum, "mean": statistics.fmean, "stdev": statistics.stdev}
    expected = [plain[reducer](items[max(0, step - 7) : step]) for step in range(2, 201)]
    assert stream.values[1:] == pytest.approx(expected, rel=1e-12, abs=1e-9)
