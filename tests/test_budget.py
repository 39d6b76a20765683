"""Queries together stay within the budget, say so, and are granted more (SAFETY S15)."""

from __future__ import annotations

import math
import time

import pytest

import looptap
from looptap.agent.budget import HEADROOM, Budget, Meter
from looptap.testing import pair
from looptap.visualizers.plots import Plot

STEP, SLOW = 0.001, 0.005


def loop(agent, seconds):
    """Steps of 1 ms for so many seconds of step time; the share of them that `emit` took."""
    inside, steps = 0.0, int(seconds / STEP)
    for step in range(steps):
        started = time.perf_counter()
        while time.perf_counter() - started < STEP:
            pass
        emitted = time.perf_counter()
        agent.emit("batch", step=step)
        inside += time.perf_counter() - emitted
    return inside / (steps * STEP)


@pytest.fixture
def limited():
    agent, run = pair("budget", budget=0.03)
    agent.expose(slow=lambda seconds=SLOW: time.sleep(seconds))
    yield agent, run
    agent.close()


@pytest.mark.parametrize("queries", [1, 10])
def test_hostile_queries_together_keep_to_the_budget(limited, queries):
    agent, run = limited
    streams = [run.stream("slow() or step", on="batch") for _ in range(queries)]
    loop(agent, 0.1)  # the grace
    assert loop(agent, 1.0) < 10 * 0.03
    run.stats()
    assert all(s.arrived for s in streams)
    assert any("event, to stay within" in note for note in streams[0].notes)
    (picture,) = Plot(streams[0]).pictures()  # a chart that begins now says it, too
    assert "event, to stay within" in " ".join(picture.badges)
    assert "event, to stay within" in run.stats()["queries"][0]["limitation"]


def test_a_heavy_reducing_query_closes_a_partial_window_and_waits_for_a_grant(limited):
    agent, run = limited
    total = run.stream("sum(slow() or 1 for e in events)", on="batch")
    loop(agent, 0.05)
    agent.emit("epoch")
    (record,) = total.records
    assert record.partial
    assert any("suspended" in note for note in total.notes)
    with pytest.raises(looptap.StreamTimeout, match=r"1 of 3 values .* Suspended: it takes more than .* stream.grant"):
        total.wait(n=3, timeout=0.01)
    total.grant(math.inf)
    for _ in range(10):
        agent.emit("batch", step=0)
    agent.emit("epoch")
    assert total.records[-1].value == 10


def test_a_granted_query_runs_at_every_event(limited):
    agent, run = limited
    stream = run.stream("slow() or step", on="batch", budget=math.inf)
    for step in range(30):
        agent.emit("batch", step=step)
    assert stream.values == list(range(30))


def test_an_evaluation_over_a_second_twice_detaches(limited, monkeypatch):
    meter = Meter(Budget(0.03))
    assert meter.charge(1.5, 0.001, 1.5, 1, 1.5)
    assert not meter.charge(1.5, 0.001, 3.0, 2, 3.0)
    assert Meter(Budget(0.03), grant=math.inf).charge(100, 0.001, 100, 9, 100)


def test_a_cheap_query_is_never_limited_even_in_a_loop_that_does_nothing():
    agent, run = pair("budget")
    stream = run.stream("step", on="batch", buffer=100_000)
    for step in range(20_000):
        agent.emit("batch", step=step)
    assert stream.arrived == 20_000
    meter = Meter(Budget(0.03))
    for i in range(1, 1000):  # now and then a pause of the machine: 1,000 events at 2 µs, then one of 5 ms
        assert meter.charge(5e-3, 1e-5, i * 7e-3, i * 1001, i * 0.015)
    assert meter.every == 1
    agent.close()


def charged(budget, cost):
    meter = Meter(budget)
    for i in range(1, 6):
        meter.charge(cost, STEP, i * cost, i, i * (STEP + cost))
    return meter


def test_the_budget_is_shared_fairly_and_what_one_does_not_want_the_others_have():
    budget = Budget(0.03 / HEADROOM)
    small = Meter(budget)
    for i in range(1, 1000):  # 2.5 % of a step
        small.charge(25e-6, STEP, i * 25e-6, i, i * STEP)
    assert not small.limited
    first, second = charged(budget, SLOW), charged(budget, SLOW)
    assert budget.share() == pytest.approx(0.01)
    assert first.limited
    assert second.every == pytest.approx(SLOW / STEP / 0.01, abs=1)
    second.forget()
    small.forget()
    assert budget.share() == pytest.approx(0.03)
    budget.io = 0.01 / HEADROOM
    assert budget.share() == pytest.approx(0.02)
    budget.io = 1.0
    assert budget.share() == pytest.approx(0.01)


@pytest.mark.parametrize("budget", [0, -1, "3%", True, math.nan])
def test_a_bad_budget_is_a_sentence(budget):
    with pytest.raises(ValueError, match="fraction of the loop's time"):
        looptap.Agent("budget", budget=budget)
