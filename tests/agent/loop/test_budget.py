"""The overhead budget: bounds all queries together, reports limits (S15)."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time

import pytest
from waiting import soon

import looptap
from looptap.agent.loop.overhead_budget import BURST_SECONDS, Account, OverheadBudget
from looptap.agent.loop.thread_time import SWITCH_SECONDS, OwnTime, thread_usage
from looptap.streams.native.compiled import which_tap
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
    began = time.monotonic()
    soon(lambda: loop(agent, 0.1) or all(s.arrived for s in streams), detail="each is evaluated")
    loop(agent, 1.0)
    allowed = 0.035 * (time.monotonic() - began) + BURST_SECONDS + queries * SLOW  # each may begin, and one is over
    assert sum(s.arrived for s in streams) * SLOW <= allowed
    run.stats()
    assert any("to stay within" in note for note in streams[0].notes)
    (picture,) = Plot(streams[0]).pictures()  # a chart that begins now says it, too
    assert "to stay within" in " ".join(picture.badges)
    assert "to stay within" in run.stats()["queries"][0]["limitation"]


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


@pytest.mark.promise("S15")
def test_each_event_is_evaluated_or_counted_as_withheld(limited):
    agent, run = limited

    def ask(name, query, **how):
        return run.stream(query, on="batch", unsafe=True, name=name, **how)

    def counted():
        return {one.name: (one.evaluated, one.withheld) for one in run.agent_stats().queries}

    total = ask("total", "sum(len(str(e.step)) for e in events)", window=5)
    total.grant(math.inf)
    streams = {every: ask(f"every {every}", "slow() or step", every=every) for every in (1, 3, 7)}
    soon(lambda: loop(agent, 0.1) or all(counted()[f"every {n}"][1] > 10 for n in streams))
    late = ask("late", "slow() or -step")
    before = run.agent_stats().events["batch"]
    soon(lambda: loop(agent, 0.1) or counted()["late"][1] > 100)
    for grant in (0.02, None):
        streams[3].grant(grant)
        loop(agent, 0.3)
    streams[7].detach()
    loop(agent, 0.1)
    events, counts = run.agent_stats().events["batch"], counted()
    assert counts[total.name] == (events, 0)
    assert [sum(counts[f"every {n}"]) for n in (1, 3)] == [events, events // 3]
    assert sum(counts[late.name]) == events - before


def test_a_granted_query_runs_at_every_event(limited):
    agent, run = limited
    stream = run.stream("slow() or step", on="batch", budget=math.inf, unsafe=True)
    for step in range(30):
        agent.emit("batch", step=step)
    assert stream.values == list(range(30))


def test_an_evaluation_over_a_second_twice_detaches():
    account = Account(OverheadBudget(0.03))
    assert account.charge(1.5, 0.001, 1, 1.5)
    assert not account.charge(1.5, 0.001, 1, 3.0)
    granted = Account(OverheadBudget(0.03), grant=math.inf)
    assert all(granted.charge(100, 0.001, 1, 9) for _ in range(3))


def test_arithmetic_is_never_limited_even_in_an_empty_loop():
    agent, run = pair("budget")
    stream = run.stream("step", on="batch", buffer=100_000)
    for step in range(20_000):
        agent.emit("batch", step=step)
    assert stream.arrived == 20_000
    agent.close()


# ---------------------------------------------------------------- accounts, by themselves


def spending(costs, events, step, grants=None, evaluated=None, whole=True, mapped=(True,) * 40):
    """Run a loop of costs; return what each query has spent, and the loop's seconds.

    ``costs[i](n)`` are the wall seconds, CPU seconds and waits of the n-th evaluation of the i-th query.
    """
    budget, own, now = OverheadBudget(0.03), OwnTime(), 0.0
    accounts = [Account(budget, grant, one) for grant, one in zip(grants or [None] * len(costs), mapped, strict=False)]
    for account in accounts:
        budget.join(account)
    spent, counts = [0.0] * len(costs), [0] * len(costs)
    for event in range(events):
        now = began = now + step
        pays, paid, skipping = budget.fill(now), 0.0, 0.0
        for i, account in enumerate(accounts):
            if account.may_run(began, pays) if counts[i] else account.may_begin(began, now - began):
                counts[i] += 1
                if evaluated is not None:
                    evaluated.append((event, i))
                wall, cpu, waits = costs[i](counts[i])
                cost = own.of(wall, cpu, waits)
                now, spent[i] = now + wall, spent[i] + cost
                if counts[i] == 1:
                    account.begin(cost, began)
                account.charge(cost, step, 1, began)
                if account.grant is None:
                    paid, skipping = paid + cost, skipping + cost * mapped[i]
        budget.pay(paid, skipping)
    assert all(counts) or not whole
    return spent, now


def always(wall, cpu=None, waits=0):
    return lambda n: (wall, wall if cpu is None else cpu, waits)


@pytest.mark.parametrize("step", [1e-3, 2e-3, 5e-3, 20e-3])
@pytest.mark.parametrize("short", [10e-6, 50e-6, 400e-6])
def test_forty_queries_take_five_percent_in_the_first_second_and_three_after(step, short):
    def cost(n):  # the first evaluation takes 2 ms more
        return lambda count: (2e-3 * (count == 1) + short * (1 + n % 5),) * 2 + (0,)

    costs = [cost(n) for n in range(40)]
    first, time = spending(costs, round(1 / step), step, whole=False)
    assert sum(first) <= 0.05 * time + 2e-3
    long, time = spending(costs, round(40 / step), step)
    assert sum(long) - 0.02 - sum(cost(2)[0] for cost in costs) <= 0.03 * time
    if sum(cost(2)[0] for cost in costs) > 0.1 * step:
        assert sum(long) >= 0.025 * time


def test_a_query_that_takes_little_is_not_held_up_by_those_that_take_much():
    evaluated = []
    spent, time = spending([always(5e-3)] * 3 + [always(8e-6)], 10_000, 5e-3, evaluated=evaluated)
    seen = [event for event, i in evaluated if i == 3]
    assert seen == [*range(seen[0], 10_000)]
    assert sum(spent) <= 0.031 * time
    assert spent[0] == pytest.approx(spent[2], rel=0.1)


def test_mapped_queries_are_evaluated_now_and_then_while_a_reducing_one_takes_the_whole_budget():
    spent, time = spending([always(40e-6), always(40e-6)], 10_000, 1e-3, mapped=(False, True))
    assert spent[0] == pytest.approx(10_000 * 40e-6)
    assert 0.006 * time < spent[1] < 0.009 * time


def test_a_part_of_the_budget_is_divided_among_clients_and_their_queries():
    budget = OverheadBudget(0.03)
    accounts = [Account(budget) for _ in range(4)]
    for client, account in zip("aaab", accounts, strict=True):
        account.client = client
        budget.join(account)
    assert [account.share for account in accounts] == pytest.approx([0.00125, 0.00125, 0.00125, 0.00375])
    accounts[0].set_grant(math.inf)
    budget.leave(accounts[1])
    assert accounts[2].share == accounts[3].share == pytest.approx(0.00375)
    accounts[0].set_grant(None)
    assert accounts[0].share == pytest.approx(0.00375 / 2)
    assert (budget.rate, budget.io) == (0.03, 0.0)
    budget.io = 0.012
    assert budget.rate == pytest.approx(0.018)
    budget.io = 1.0
    assert budget.rate == pytest.approx(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread has waited")
@pytest.mark.parametrize("waits", [0, 1], ids=["preempted", "deprived of the lock"])
def test_a_query_is_not_charged_while_others_have_the_cpu_or_the_lock(waits):
    def cost(n):  # 15 µs, and in every 4 ms of that another process has 4 ms, or in every 6 ms the lock
        others = n % round((1.2 * SWITCH_SECONDS if waits else 4e-3) / 15e-6) == 0
        return (4e-3, 15e-6, waits) if others else (15e-6, 15e-6, 0)

    evaluated = []
    spending([cost], 50_000, 5e-5, evaluated=evaluated)
    assert len(evaluated) == 50_000


@pytest.mark.parametrize(
    ("cost", "most"),
    [
        (always(4e-3), 0.031),
        (always(4e-3, 1e-5, 1), 0.031),
        (lambda n: (60e-3, 1e-5, 1) if n % 1000 == 0 else (2e-6, 2e-6, 0), 0.04),  # 60 ms in each 1.06 s
    ],
    ids=["computes", "sleeps", "sleeps now and then"],
)
def test_a_query_that_computes_or_sleeps_keeps_to_the_budget(cost, most):
    (spent,), time = spending([cost], 30_000, 1e-3)
    assert spent <= most * time + 0.06


def test_a_granted_query_is_limited_for_the_time_that_it_sleeps_too():
    (spent,), time = spending([always(50e-3, 1e-3, 1)], 1_000, 1e-3, grants=[0.5])
    assert spent <= 0.5 * time + 0.3


@pytest.mark.parametrize("cost", [2e-5, 3e-5, 1e-4, 1.9e-4])
def test_a_slightly_too_expensive_query_is_kept_to_the_budget_and_has_all_of_it(cost):
    (spent,), time = spending([always(cost)], 20_000, 1e-3)
    assert min(0.029, 0.95 * cost / 1e-3) * time <= spent + 0.03
    assert spent - 0.03 <= 0.03 * time


def test_a_pause_within_a_query_keeps_events_from_it_until_it_is_paid():
    evaluated = []
    cost = always(3e-5)
    spending([lambda n: (50e-3, 50e-3, 0) if n == 1_200 else cost(n)], 4_000, 5e-3, evaluated=evaluated)
    seen = {event for event, _ in evaluated}
    missed = [event for event in range(4_000) if event not in seen]
    assert len(missed) * 5e-3 < 0.05 / 0.03
    assert missed == [*range(1_200, 1_200 + len(missed))]


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
    agent, run = pair("many", budget=0.03, clock=lambda: next(ticks) * 3e-3)  # of which an event reads a few
    agent.expose(short=lambda: sum(range(600)))  # some 10 µs
    cheap = [run.stream(f"short() * 0 + step + {n}", on="batch", unsafe=True) for n in range(40)]
    granted = run.stream("short() * 0 + step", on="batch", unsafe=True, budget=float("inf"))
    for step in range(5_000):
        agent.emit("batch", step=step)
    parts_of(agent).dispatcher.on_heartbeat_timer()
    run.stats()
    assert all(stream.withheld > 1_000 for stream in cheap)
    assert [accounted(stream) for stream in cheap] == [5_000] * 40
    steps = [{value - n for value in stream.values} for n, stream in enumerate(cheap)]
    began = max(min(seen) for seen in steps)  # one after the other
    late = [{step for step in seen if step > began} for seen in steps]
    assert late[0]
    assert all(seen == late[0] for seen in late), "at the same events"
    assert (granted.withheld, granted.arrived) == (0, 5_000)
    assert "all queries together may take" in " ".join(cheap[0].notes)
    assert not any("all queries together" in note for note in granted.notes)


def test_a_query_that_comes_while_the_purse_is_empty_begins_all_the_same():
    ticks = itertools.count()
    agent, run = pair("late", budget=0.03, clock=lambda: next(ticks) * 1e-4)
    agent.expose(long=lambda: sum(range(300_000)))
    before = run.stream("long() * 0 + step", on="batch", unsafe=True)
    while not before.withheld:
        agent.emit("batch", step=1)
    late = run.stream("long() * 0 + step + 1", on="batch", unsafe=True)
    while not late.values:
        agent.emit("batch", step=1)
    assert next(ticks) * 1e-4 < 1.5


@pytest.mark.usefixtures("directory")
def test_what_queries_cost_adds_up_to_what_events_took_with_the_lookup_of_names():
    with looptap.Agent("sum", budget=0.99) as agent, looptap.attach("sum") as run:
        agent.expose(short=lambda: sum(range(6_000)))
        streams = [run.stream(f"short() * 0 + step + {n}", on="batch", unsafe=True) for n in range(3)]
        computed = took = 0.0  # of which only a part counts where another thread has the lock
        for step in range(300):
            began, began_at = time.thread_time(), time.monotonic()
            agent.emit("batch", step=step)
            computed, took = computed + time.thread_time() - began, took + time.monotonic() - began_at
            time.sleep(1e-3)  # a step, so that no event is withheld
        for stream in streams:
            stream.wait(300)
        costs = [query["nanoseconds_per_event"] * 1e-9 * query["evaluated"] for query in run.stats()["queries"]]
    assert len(costs) == 3
    assert 0.8 * computed <= sum(costs) <= 1.05 * took


def test_the_purse_fills_with_time_and_pays_20_us_an_event_in_a_loop_without_work():
    budget = OverheadBudget(0.03)
    assert all(budget.fill(0.0) or budget.pay(20e-6) for _ in range(10_000))
    budget.pay(1_000.0, 1_000.0)  # it never owes more than ten seconds of a loop pay
    assert not budget.fill(1.0)
    assert [budget.fill(second) for second in (5.0, 12.0)] == [False, True]
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
    total = run.stream("sum(work() or 1 for e in events)", on="batch", window=100, budget=0.5, unsafe=True)
    loop(agent, 0.1)
    (served,) = parts_of(agent).dispatcher.exporter.streams
    query = served.query
    assert query.limit.suspended
    first, values = query.limit.pause_seconds, total.arrived
    query.limit.retry_at = time.monotonic()  # as if the time had passed: the load is still there
    loop(agent, 0.05)
    assert query.limit.suspended
    assert query.limit.pause_seconds == 2 * first
    query.limit.retry_at, costs[0] = time.monotonic(), 0
    loop(agent, 0.4)
    assert not query.limit.suspended, query.limit.describe()
    parts_of(agent).dispatcher.on_heartbeat_timer()
    assert total.limits == []
    assert [record.partial for record in total.records[values:]][1:3] == [True, False]  # the retry's, and the next
    agent.emit("epoch")
    assert query.events + query.limit.withheld == 550


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
    post, sent = parts_of(agent).dispatcher.ready_set, []
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


def test_the_reason_of_a_limit_names_the_costs_the_step_and_the_others():
    budget = OverheadBudget(0.03)
    budget.io = 0.012
    first, second = Account(budget), Account(budget)
    for account in (first, second):
        budget.join(account)
        account.charge(10 * SLOW, STEP, 1, 1.0)  # the first is not typical
        account.charge(SLOW, STEP, 1, 1.0)
    assert second.reason == ("an evaluation took 5 ms of a step of 1 ms (500%); other queries: 1; the I/O thread: 1.2%")


@pytest.mark.parametrize("budget", [0, -1, "3%", True, math.nan])
def test_a_bad_budget_is_a_sentence(budget):
    with pytest.raises(ValueError, match="fraction of the loop's time"):
        looptap.Agent("budget", budget=budget)


# ---------------------------------------------------------------- events that the empty purse withholds


@pytest.fixture
def broke():
    """Return a job with an empty purse, and a stream whose events are withheld."""
    job = pair("broke", manual=True, budget=0.03)
    job.agent.expose(slow=lambda: time.sleep(0.3))
    stream = job.run.stream("slow() or step", on="batch", unsafe=True)
    for step in range(4):
        job.agent.emit("batch", step=step)
    job.deliver()
    yield job, stream
    job.agent.close()


@pytest.mark.pure
@pytest.mark.parametrize("beside", [(), ("step",), ("step", "mean(e.step for e in recent(3))")])
def test_each_event_that_the_empty_purse_withholds_is_counted(broke, beside):
    job, _ = broke
    others = [job.run.stream(query, on="batch") for query in beside]
    for step in range(4, 500):
        job.agent.emit("batch", step=step)
        if step % 50 == 0:
            job.deliver()
    others.append(job.run.stream("slow() or step", on="batch", every=3, unsafe=True))
    for step in range(500, 1000):
        job.agent.emit("batch", step=step)
    job.deliver()
    first, *_, third = job.run.agent_stats().queries
    assert first.evaluated + first.withheld == 1000
    assert first.withheld >= 990
    assert third.evaluated + third.withheld == sum(not number % 3 for number in range(501, 1001))
    assert [other.arrived for other in others[:-1]] == [996] * len(beside)


@pytest.mark.skipif(which_tap() == "pure Python", reason="the tap was not built, or is not wanted")
def test_an_event_that_the_empty_purse_withholds_runs_no_python_code(broke):
    job, _ = broke
    ran: list[str] = []
    sys.setprofile(lambda frame, what, arg: ran.append(frame.f_code.co_name) if what == "call" else None)
    try:
        for step in range(4, 104):
            job.agent.emit("batch", step=step)
    finally:
        sys.setprofile(None)
    assert ran.count("deliver") < 10  # it is looked at ten times a second
    job.deliver()
    (query,) = job.run.agent_stats().queries
    assert query.evaluated + query.withheld == 104


def test_a_grant_is_heard_of_while_events_are_passed_over(broke):
    job, stream = broke
    job.agent.emit("batch", step=4)
    stream.grant(math.inf)
    arrived = stream.arrived

    def evaluated():
        job.agent.emit("batch", step=5)
        job.deliver()
        return stream.arrived > arrived

    soon(evaluated)
