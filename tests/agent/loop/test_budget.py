"""The overhead budget: bounds all queries together, reports limits (S15)."""

from __future__ import annotations

import itertools
import math
import re
import sys
import threading
import time

import pytest
from waiting import soon

import looptap
from looptap.agent.loop.overhead_budget import MEASURE_NEXT, SKIP_SECONDS, SPENDABLE_SHARE, CostMeter, OverheadBudget
from looptap.agent.loop.thread_time import SWITCH_SECONDS, thread_usage
from looptap.testing import pair, parts_of
from looptap.visualizers.plot import Plot

STEP, SLOW = 0.001, 0.005


def loop(agent, seconds):
    """Run steps of 1 ms for so many seconds of step time."""
    for step in range(int(seconds / STEP)):
        started = time.perf_counter()
        while time.perf_counter() - started < STEP:
            pass
        agent.emit("batch", step=step)


@pytest.fixture
def limited():
    agent, run = pair("budget", budget=0.03)
    agent.expose(slow=lambda seconds=SLOW: time.sleep(seconds))
    yield agent, run
    agent.close()


@pytest.mark.promise("S15")
@pytest.mark.parametrize("queries", [1, 10])
def test_hostile_queries_together_keep_to_the_budget(limited, queries):
    agent, run = limited
    streams = [run.stream("slow() or step", on="batch", unsafe=True) for _ in range(queries)]
    loop(agent, 0.1)  # the grace
    before = sum(s.arrived for s in streams)
    loop(agent, 1.0)
    assert (sum(s.arrived for s in streams) - before) * SLOW < 10 * 0.03
    run.stats()
    assert all(s.arrived for s in streams)
    assert any("event, to stay within" in note for note in streams[0].notes)
    (picture,) = Plot(streams[0]).pictures()  # a chart that begins now says it, too
    assert "event, to stay within" in " ".join(picture.badges)
    assert "event, to stay within" in run.stats()["queries"][0]["limitation"]


def test_a_chart_marks_where_the_budget_kept_events_from_its_query(limited):
    agent, run = limited
    stream = run.stream("slow() or step", on="batch", unsafe=True)
    loop(agent, 0.1)  # the grace
    soon(lambda: loop(agent, 0.05) or (run.stats() and stream.limited), detail="the budget limits the query")
    stream.grant(math.inf)
    soon(lambda: loop(agent, 0.01) or (run.stats() and stream.limited[-1].last), detail="it is lifted")
    loop(agent, 0.01)
    first, last = stream.limited[-1]
    assert 1 <= first <= last < stream.newest
    plot = Plot(stream, x="event")
    plot.pull()
    (picture,) = plot.pictures()
    events = {record.number: record.event for record in stream.records}
    assert [(rule.x, rule.text) for rule in picture.rules] == [
        (events[first], "budget: fewer events"),
        (events[last + 1], "budget: all events"),
    ]
    steps = {number: events[number] - events[number - 1] for number in events if number - 1 in events}
    assert max(step for number, step in steps.items() if first <= number <= last + 1) > 1
    assert all(step == 1 for number, step in steps.items() if number > last + 1)


def test_a_heavy_reducing_query_closes_a_partial_window_and_waits_for_a_grant(limited):
    agent, run = limited
    total = run.stream("sum(slow() or 1 for e in events)", on="batch", unsafe=True)
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
    stream = run.stream("slow() or step", on="batch", budget=math.inf, unsafe=True)
    for step in range(30):
        agent.emit("batch", step=step)
    assert stream.values == list(range(30))


def test_an_evaluation_over_a_second_twice_detaches(limited, monkeypatch):
    meter = CostMeter(OverheadBudget(0.03))
    assert meter.charge(1.5, 0.001, 1.5, 1, 1.5)
    assert not meter.charge(1.5, 0.001, 3.0, 2, 3.0)
    assert CostMeter(OverheadBudget(0.03), grant=math.inf).charge(100, 0.001, 100, 9, 100)


def test_a_cheap_query_is_never_limited_even_in_an_empty_loop():
    agent, run = pair("budget")
    stream = run.stream("step", on="batch", buffer=100_000)
    for step in range(20_000):
        agent.emit("batch", step=step)
    assert stream.arrived == 20_000
    meter = CostMeter(OverheadBudget(0.03))
    for i in range(1, 1000):  # now and then a pause of the machine: 1,000 events at 2 µs, then one of 5 ms
        assert meter.charge(5e-3, 1e-5, i * 7e-3, i * 1001, i * 0.015)
    assert meter.every == 1
    agent.close()


def charged(budget, cost):
    meter = CostMeter(budget)
    for i in range(1, 6):
        meter.charge(cost, STEP, i * cost, i, i * (STEP + cost))
    return meter


def test_the_budget_is_shared_fairly_and_what_one_does_not_want_the_others_have():
    budget = OverheadBudget(0.03 / SPENDABLE_SHARE)
    small = CostMeter(budget)
    for i in range(1, 2000):  # 2.5% of a step
        small.charge(25e-6, STEP, i * 25e-6, i, i * STEP)
    assert not small.limited
    first, second = charged(budget, SLOW), charged(budget, SLOW)
    assert budget.share() == pytest.approx(0.01)
    assert first.limited
    assert SLOW / second.every + SKIP_SECONDS == pytest.approx(0.01 * STEP, rel=0.01)  # passing over costs, too
    second.forget()
    small.forget()
    assert budget.share() == pytest.approx(0.03)
    budget.io = 0.01 / SPENDABLE_SHARE
    assert budget.share() == pytest.approx(0.02)
    budget.io = 1.0
    assert budget.share() == pytest.approx(0.01)


def evaluated(costs, events, step, meter):
    """Return the evaluated events; ``costs(n)`` are wall seconds, CPU seconds, waits."""
    seen, seconds, now = [], 0.0, 0.0
    for event in range(1, events + 1):  # as looptap.agent.loop.event_sources.evaluate has it
        now += step
        watched = meter.skip == MEASURE_NEXT
        if meter.skip > 0:
            meter.skip = meter.skip - 1 or MEASURE_NEXT
            continue
        seen.append(event)
        wall, cpu, waits = costs(len(seen))
        cost = meter.own.of(wall, cpu, waits) if watched else wall
        now, seconds = now + wall, seconds + cost
        if cost > meter.cheap:
            meter.charge(cost, step, seconds, len(seen), now)
        elif watched:
            meter.note_cheap(now)
        elif meter.every != 1:
            meter.forget()
    return seen


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread has waited")
@pytest.mark.parametrize("waits", [0, 1], ids=["preempted", "deprived of the lock"])
def test_a_query_is_not_charged_while_others_have_the_cpu_or_the_lock(waits):
    def costs(n):  # 15 µs, and in every 4 ms of that another process has 4 ms, or in every 6 ms the lock
        others = n % round((1.2 * SWITCH_SECONDS if waits else 4e-3) / 15e-6) == 0
        return (4e-3, 15e-6, waits) if others else (15e-6, 15e-6, 0)

    assert len(evaluated(costs, 50_000, 5e-5, CostMeter(OverheadBudget(0.03)))) == 50_000


@pytest.mark.parametrize("limits", ["computes", "sleeps", "sleeps now and then"])
def test_a_query_that_computes_or_sleeps_is_detected(limits):
    def costs(n):
        match limits:
            case "computes":
                return 4e-3, 4e-3, 0
            case "sleeps":
                return 4e-3, 1e-5, 1
        return (60e-3, 1e-5, 1) if n % 1000 == 0 else (2e-6, 2e-6, 0)  # 60 ms in each 1.06 s

    seen = len(evaluated(costs, 10_000, 1e-3, CostMeter(OverheadBudget(0.03))))
    if limits == "sleeps now and then":
        assert seen < 10_000
    else:
        assert seen * 4e-3 < 0.04 * 10


def test_a_query_is_limited_for_the_time_that_it_sleeps_too():
    meter = CostMeter(OverheadBudget(0.03), grant=2.0)
    assert len(evaluated(lambda n: (50e-3, 1e-3, 1), 1_000, 1e-3, meter)) * 50e-3 < 3 * 2.0


@pytest.mark.parametrize("cost", [3e-5, 1e-4, 1.9e-4])
def test_a_slightly_too_expensive_query_is_kept_to_its_share(cost):
    seen = evaluated(lambda n: (cost, cost, 0), 20_000, 1e-3, CostMeter(OverheadBudget(0.03)))
    late = [event for event in seen if event > 2_000]  # after it was judged, and watched
    share = 0.03 * SPENDABLE_SHARE
    assert len(late) * cost / 18 <= 1.1 * share
    assert len(late) * cost / 18 >= 0.4 * share


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread has waited")
def test_the_kernel_counts_how_often_a_thread_has_waited():
    cpu, waits = thread_usage()
    for _ in range(3):
        time.sleep(0.001)
    assert thread_usage()[1] - waits >= 3
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass
    assert thread_usage()[0] - cpu >= 0.0099


# ---------------------------------------------------------------- the purse of all


@pytest.mark.promise("S15")
def test_many_queries_that_are_cheap_alone_are_paid_from_one_purse():
    ticks = itertools.count()
    agent, run = pair("many", budget=0.03, clock=lambda: next(ticks) * 1e-4)  # of which an event reads a few
    agent.expose(short=lambda: sum(range(600)))  # some 10 µs
    cheap = [run.stream(f"short() * 0 + step + {n}", on="batch", unsafe=True) for n in range(40)]
    granted = run.stream("short() * 0 + step", on="batch", unsafe=True, budget=float("inf"))
    total = run.stream("sum(short() * 0 + e.step for e in events)", on="batch", window=2_000, unsafe=True)
    for step in range(2_000):
        agent.emit("batch", step=step)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    run.stats()
    assert all(stream.withheld > 1_000 for stream in cheap)
    assert [accounted(stream) for stream in cheap] == [2_000] * 40
    assert len({tuple(stream.values[:1]) for stream in cheap}) == 40  # each is evaluated
    steps = [{value - n for value in stream.values} for n, stream in enumerate(cheap)]
    assert all(one == steps[0] for one in steps), "at the same events"
    assert (granted.withheld, granted.arrived) == (0, 2_000)
    assert total.values == [sum(range(2_000))]
    assert "all queries together may take 3% of the loop's time" in " ".join(cheap[0].notes)
    assert not any("all queries together" in note for stream in (granted, total) for note in stream.notes)


def test_a_query_that_comes_while_the_purse_is_empty_has_its_first_value_at_once():
    ticks = itertools.count()
    agent, run = pair("late", budget=0.03, clock=lambda: next(ticks) * 1e-4)
    agent.expose(long=lambda: sum(range(300_000)))
    before = run.stream("long() * 0 + step", on="batch", unsafe=True)
    while not before.withheld:
        agent.emit("batch", step=1)
    late = run.stream("long() * 0 + step + 1", on="batch", unsafe=True)
    agent.emit("batch", step=1)
    assert late.values == [2]


def test_the_purse_fills_with_time_and_a_single_query_of_20_us_never_empties_it():
    budget = OverheadBudget(0.03)
    assert all(budget.fill(0.0) or budget.pay(20e-6) for _ in range(10_000))
    budget.pay(1_000.0)  # it never owes more than ten seconds of a loop pay
    assert not budget.fill(1.0)
    assert "all queries together may take 3%" in budget.shortage()
    assert [budget.fill(second) for second in (5.0, 12.0)] == [False, True]
    assert OverheadBudget(0.03).shortage() == ""
    assert all(OverheadBudget(math.inf).fill(0.0) for _ in range(3))


# ---------------------------------------------------------------- what is withheld is counted


def accounted(stream, made=None):
    """Return the events that a mapped query has asked for, from its counts alone."""
    made = stream.arrived + stream.dropped if made is None else made
    return made + stream.withheld + stream.filtered + stream.error_count + stream.skipped


def test_each_event_that_a_query_asks_for_is_a_value_or_counted_as_something_else(limited):
    agent, run = limited
    free = {"budget": float("inf")}
    streams = {
        "slow() or step": {}, "slow() or 1 / (step % 5)": {}, "(slow() or e.step for e in events if e.step % 3)": {},
        "step": free, "step + 0": {"throttle": 0.01, **free}, "slow() or step + 1": {"every": 4},
    }  # fmt: skip
    streams = {run.stream(query, on="batch", unsafe="slow" in query, **how): how for query, how in streams.items()}
    loop(agent, 0.4)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    run.stats()
    for stream, how in streams.items():
        asked = 400 // how.get("every", 1)
        assert accounted(stream) == asked, stream
        assert stream.dropped == 0
    limited = [stream for stream in streams if stream.text.startswith(("slow", "(slow"))]
    assert all(stream.withheld > 50 for stream in limited)
    assert sum(stream.withheld for stream in streams if stream not in limited) == 0
    withheld = sum(stream.withheld for stream in streams)
    assert run.stats()["withheld"] == sum(query["withheld"] for query in run.stats()["queries"]) == withheld
    assert f"{limited[0].withheld:,} events withheld by the budget" in repr(limited[0])


def test_the_events_of_a_suspended_query_are_withheld_and_its_windows_have_the_others(limited):
    agent, run = limited
    total = run.stream("sum(slow() or 1 for e in events)", on="batch", window=10, unsafe=True)
    loop(agent, 0.2)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    run.stats()
    assert total.withheld > 100
    assert sum(record.value for record in total.records) + total.withheld == 200
    (note,) = total.limits
    assert "suspended: it takes more than" in note
    assert re.search(r"an evaluation took [\d.]+ [mµ]s of a step of [\d.]+ ms \([\d.,]+%\)", note)
    assert re.search(r"tried again in \d+ s", note)
    (query,) = run.stats()["queries"]
    assert query["evaluated"] + query["withheld"] == 200


def test_a_suspended_query_is_retried_later_and_resumes_if_it_is_cheap(limited, monkeypatch):
    agent, run = limited
    costs = [10 * SLOW]
    agent.expose(work=lambda: time.sleep(costs[0]) if costs[0] else None)
    total = run.stream("sum(work() or 1 for e in events)", on="batch", window=100, budget=2.0, unsafe=True)
    loop(agent, 0.1)
    (served,) = parts_of(agent).dispatcher.exporter.streams
    query = served.query
    assert query.suspended
    first, values = query.pause_seconds, total.arrived
    query.retry_at = time.monotonic()  # as if the time had passed: the load is still there
    loop(agent, 0.05)
    assert query.suspended
    assert query.pause_seconds == 2 * first
    query.retry_at, costs[0] = time.monotonic(), 0
    loop(agent, 0.4)
    assert not query.suspended, query.limitation()
    parts_of(agent).dispatcher.on_heartbeat_timer()
    assert total.limits == []
    assert [record.partial for record in total.records[values:]][1:3] == [True, False]  # the retry's, and the next
    agent.emit("epoch")
    assert query.events + query.withheld == 550


def test_the_file_of_a_kept_stream_counts_events_withheld_by_the_budget(tmp_path, directory):
    agent, run = pair("kept", budget=0.03, store=tmp_path)
    agent.expose(slow=lambda: time.sleep(SLOW))
    stream = run.stream("slow() or step", on="batch", name="slow", unsafe=True)
    run.keep(stream)
    loop(agent, 0.2)
    agent.close()
    (file,) = tmp_path.glob("*.looptap")
    with looptap.open(file) as stored:
        kept = stored.stream("slow")
        assert kept.withheld > 100
        assert kept.arrived + kept.withheld == 200


# ---------------------------------------------------------------- what is not the query's cost


def test_no_wakeup_is_sent_while_a_query_is_measured(limited, monkeypatch):
    agent, run = limited
    first, second = (run.stream(query, on="batch", unsafe=True) for query in ("slow(0) or step", "slow(0) or step + 1"))
    agent.emit("batch", step=0)
    post, sent = parts_of(agent).dispatcher.queues, []
    queries = [served.query for served in parts_of(agent).dispatcher.exporter.streams]
    before = [query.seconds for query in queries]
    ring = post.wake_gathering

    def slow_ring():
        sent.append(time.sleep(0.3))  # as if the I/O thread kept the interpreter lock
        ring()

    post.wake_gathering = slow_ring
    agent.emit("batch", step=1)
    assert sent
    assert not post.deferred
    assert max(query.seconds - was for query, was in zip(queries, before, strict=True)) < 0.3
    assert (first.values, second.values) == ([0, 1], [1, 2])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the schedule of another thread")
def test_a_query_is_not_charged_for_the_time_of_the_io_thread():
    budget = OverheadBudget(0.03)
    meter = CostMeter(budget)
    for _ in range(20):  # more waits than are excused
        meter.own.of(1e-3, 1e-5, 1)
    assert meter.own.of(1e-3, 1e-5, 1) == pytest.approx(1e-3)
    assert meter.own.of(1e-3, 1e-5, 1, others=0.9e-3) == pytest.approx(0.1e-3)
    assert meter.own.of(1e-3, 1e-5, 1, others=2e-3) == pytest.approx(1e-5)
    schedule, known, over = budget.io_schedule, threading.Event(), threading.Event()

    def io():
        schedule.is_this_thread()
        known.set()
        while not over.is_set():
            pass

    assert schedule.seconds() == 0.0
    thread = threading.Thread(target=io)
    thread.start()
    known.wait(300)
    soon(lambda: schedule.seconds() > 0.01, 60)
    before, started, had = meter.own.start(), time.monotonic(), schedule.seconds()
    soon(lambda: schedule.seconds() > had + 0.1, 60)  # as long as it wants the CPU, that is no query's doing
    for _ in range(5):
        meter.own.of(1e-3, 1e-5, 1)
    assert meter.own.stop(before) < time.monotonic() - started - 0.05
    over.set()
    thread.join()
    soon(lambda: schedule.seconds() == 0.0, 60)  # it is no more


def test_one_pause_of_the_machine_limits_no_query():
    meter = CostMeter(OverheadBudget(0.03))
    cost = [60e-6 if n % 50 == 0 else 3e-5 for n in range(2_000)]
    cost[1_200] = 50e-3  # all on the CPU: another query, the collector of garbage, a page that was swapped out
    assert len(evaluated(lambda n: (cost[n - 1], cost[n - 1], 0), 2_000, 5e-3, meter)) == 2_000


def test_the_reason_of_a_limit_names_the_costs_the_step_and_the_others():
    budget = OverheadBudget(0.03)
    budget.io = 0.012
    first, second = charged(budget, SLOW), charged(budget, SLOW)
    assert first.limited
    assert str(second.verdict) == (
        "an evaluation took 5 ms of a step of 1 ms (500%), besides 1 other expensive query of 500% and the I/O "
        "thread with 1.2%"
    )


@pytest.mark.parametrize("budget", [0, -1, "3%", True, math.nan])
def test_a_bad_budget_is_a_sentence(budget):
    with pytest.raises(ValueError, match="fraction of the loop's time"):
        looptap.Agent("budget", budget=budget)


def test_four_fifths_of_the_budget_are_shared_out_whatever_the_demand():
    """Costs rise before they are measured: a fifth is headroom."""
    budget = OverheadBudget(0.05)
    assert budget.share() == pytest.approx(0.04)
    wanting = [charged(budget, SLOW) for _ in range(4)]
    assert all(meter.limited for meter in wanting)
    assert budget.share() == pytest.approx(0.01)
    assert sum(SLOW / STEP / meter.every for meter in wanting) <= 4 * 0.04
    for meter in wanting[1:]:
        meter.forget()
    assert budget.share() == pytest.approx(0.04)
    budget.io = 0.02
    assert budget.share() == pytest.approx(0.8 * 0.03)
    budget.io = 1.0
    assert budget.share() == pytest.approx(0.8 * 0.05 / 3)


def test_the_share_of_a_small_demand_is_not_given_out_twice():
    budget = OverheadBudget(0.05)
    budget.demand(CostMeter(budget), 0.005)
    budget.demand(CostMeter(budget), 0.5)
    assert budget.share() == pytest.approx(0.035)
    budget.demand(CostMeter(budget), 0.6)
    assert budget.share() == pytest.approx(0.0175)


def test_a_few_expensive_evaluations_are_not_judged_too_early():
    meter = CostMeter(OverheadBudget(0.03))
    for i in range(101, 108):  # 100 µs each, in 8 ms, after a hundred cheap ones
        meter.charge(100e-6, STEP, i * 100e-6, i, 100 + i * STEP)
    assert (meter.watched, meter.every, meter.skip) == (False, 1, 0)
    for i in range(108, 3000):
        meter.charge(100e-6, STEP, i * 100e-6, i, 100 + i * STEP)
    assert meter.watched
