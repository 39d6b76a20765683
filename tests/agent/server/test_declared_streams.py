"""Declared streams: history, then live values, exact for any number of readers."""

from __future__ import annotations

import json
import random
import threading
import time
import tracemalloc
from array import array

import numpy as np
import pytest
import torch
from waiting import soon

import looptap
from looptap.agent.agent import Agent
from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.value_batch import ITEM_OVERHEAD_BYTES, MIN_BATCH_VALUES, bytes_in
from looptap.agent.handoff.value_ring import Cursor, RingSet
from looptap.agent.loop.deferred_evaluation import MAX_PENDING_EVENTS
from looptap.cli import main
from looptap.protocol.errors import LimitReached
from looptap.streams.columns.value_columns import ValueColumns, as_columns
from looptap.streams.errors import QueryError
from looptap.testing import pair, parts_of

# ---------------------------------------------------------------- declared and read


def test_a_reader_gets_the_history_and_then_what_comes_with_the_numbers_of_the_stream():
    agent, run = pair()
    agent.stream("loss", "step, loss", history=5, unit="nats")
    for step in range(8):
        agent.emit("batch", step=step, loss=0.5)
    early = run.stream("loss")
    agent.emit("batch", step=8, loss=torch.tensor(0.25))
    late = run.stream("loss")
    agent.emit("batch", step=9, loss=0.125)
    assert [(r.number, r.value.step) for r in early.records] == [(n + 1, n) for n in range(3, 10)]
    assert [(r.number, r.value.step) for r in late.records] == [(n + 1, n) for n in range(4, 10)]
    assert (early.dropped, early.gaps, late.dropped, late.gaps) == (0, [], 0, [])
    assert (early.name, early.text, early.on, early.unit) == ("loss", "step, loss", "batch", "nats")
    assert late.latest.loss == 0.125


@pytest.mark.parametrize("pending", [1, 40])
def test_a_new_reader_of_a_full_history_has_no_gap_where_values_come_before_it_could_take_the_oldest(pending):
    job = pair(manual=True)
    agent, run = job
    agent.stream("loss", "step, loss", history=100)
    for evaluator in (parts_of(agent).sources.evaluator, parts_of(agent).sources.unobserved):
        evaluator.max_pending = pending
    for step in range(1, 251):
        agent.emit("batch", step=step, loss=0.5)
    reader = run.stream("loss")
    for step in range(251, 331):
        agent.emit("batch", step=step, loss=0.5)
    job.deliver()
    assert (reader.gaps, reader.dropped) == ([], 0)
    assert [(r.number, r.value.step) for r in reader.records] == [(n, n) for n in range(151, 331)]
    (info,) = run.streams
    assert info.held == 100


def test_a_declared_reduction_keeps_its_windows_and_its_partial_flags():
    agent, run = pair()
    agent.emit("batch", loss=9.0)
    agent.stream("mean", "mean(e.loss for e in events)")
    for loss in (1.0, 3.0):
        agent.emit("batch", loss=loss)
    agent.emit("epoch")
    agent.stream("by hundred", "len(events)", window=2)
    for _ in range(4):
        agent.emit("batch", loss=0.0)
    agent.emit("epoch")
    assert [(r.value, r.partial) for r in run.stream("mean").records] == [(2.0, True), (0.0, False)]
    assert run.stream("by hundred").values == [2, 2]


def test_a_name_is_a_name_only_where_it_is_exact_and_no_argument_of_a_query_is_given():
    agent, run = pair()
    agent.stream("loss", "100 * loss")
    agent.emit("batch", loss=1.0)
    assert run.stream("loss").values == [100.0]
    queries = [run.stream("loss ", on="batch"), run.stream("loss", on="batch"), run.stream("loss", every=1, window=5)]
    queries += [run.stream(" loss"), run.stream("loss", budget=0.5)]
    agent.emit("batch", loss=2.0)
    assert [q.values for q in queries] == [[2.0]] * 5
    assert [q.declared for q in queries] == [None] * 5


def test_streams_are_listed_with_what_they_are_and_cost():
    agent, run = pair()
    agent.stream("loss", "step, loss", unit="nats")
    agent.stream("slow", "error", on="epoch")
    for step in range(3):
        agent.emit("batch", step=step, loss=0.5)
    agent.log(lr=0.1)
    reader = run.stream("loss")
    loss, slow, lr = run.streams
    assert (loss.name, loss.query, loss.on, loss.unit, loss.fields) == (
        "loss", "step, loss", "batch", "nats", ("step", "loss"),
    )  # fmt: skip
    assert (loss.values, loss.held, loss.readers, loss.state) == (3, 3, 1, "live")
    assert loss.bytes == 3 * (ITEM_OVERHEAD_BYTES + 128)
    assert loss.rate > 0
    assert loss.cost.nanoseconds > 0
    assert (slow.values, slow.rate, slow.on) == (0, 0.0, "epoch")
    assert (lr.query, lr.on, lr.values) == ("", "", 1)
    assert reader.arrived == 3


def test_an_invalid_declaration_is_refused_at_once():
    agent, run = pair(limits=looptap.Limits(declared_streams=2))
    with pytest.raises(QueryError):
        agent.stream("bad", "1 +")
    with pytest.raises(ValueError, match="whole number"):
        agent.stream("bad", "loss", history=0)
    with pytest.raises(ValueError, match="printable"):
        agent.stream("", "loss")
    agent.stream("loss", "loss")
    with pytest.raises(ValueError, match="another name"):
        agent.stream("loss", "2 * loss")
    agent.log(lr=1)
    with pytest.raises(LimitReached, match="declared_streams"):
        agent.stream("third", "loss")
    assert [s.name for s in run.streams] == ["loss", "lr"]


def test_the_queries_of_the_host_are_not_a_clients_to_change_and_have_no_budget():
    agent, run = pair(budget=1e-6)
    agent.stream("expensive", "sum(i for i in range(5000)) + loss")
    reader = run.stream("expensive")
    for _ in range(50):
        agent.emit("batch", loss=1.0)
    assert reader.arrived == 50
    for ask in (reader.close_window, lambda: reader.grant(0.5)):
        with pytest.raises(QueryError, match="declared by the job"):
            ask()


def test_an_inert_or_closed_agent_takes_the_calls_and_does_nothing():
    for agent in (Agent("none", enabled=False), pair()[0]):
        agent.close()
        agent.stream("loss", "1 +")
        agent.log(loss=1.0)
        assert agent.stats()["streams"] == []


def test_a_failing_query_never_reaches_the_loop_and_every_reader_learns_of_it():
    agent, run = pair()
    agent.stream("broken", "loss.nothing")
    early = run.stream("broken")
    for _ in range(150):
        agent.emit("batch", loss=1.0)
    late = run.stream("broken")
    assert (early.state, late.state) == ("failed", "failed")
    assert "nothing" in late.traceback
    assert parts_of(agent).sources.open("batch").queries == ()


# ---------------------------------------------------------------- log


def test_log_keeps_a_value_per_call_with_its_number_and_time():
    agent, run = pair()
    before = time.monotonic()
    for step in range(3):
        agent.log(loss=torch.tensor(step / 2, requires_grad=True), row=(step, "x"))
    agent.log(loss=9.0)
    loss = run.stream("loss")
    agent.log(loss=[1])
    assert [(r.number, r.event, r.value) for r in loss.records] == [
        (1, 1, 0.0), (2, 2, 0.5), (3, 3, 1.0), (4, 4, 9.0), (5, 5, [1])
    ]  # fmt: skip
    assert before <= loss.records[0].time <= loss.records[-1].time <= time.monotonic()
    assert run.stream("row").values == [(0, "x"), (1, "x"), (2, "x")]


@pytest.mark.promise("values")
def test_log_never_raises(caplog):
    agent, run = pair(limits=looptap.Limits(declared_streams=3))
    agent.stream("loss", "loss")
    agent.log(thing=object())
    for name in range(10):
        agent.log(**{f"name {name}": name}, loss=1.0)
    agent.log(loss=1.0)
    assert [s.name for s in run.streams] == ["loss", "thing", "name 0"]
    assert run.stream("thing").state == "live"
    assert run.stream("thing").error_count == 1
    assert any("declared_streams" in r.message for r in caplog.records)
    assert any("is a stream of a query" in r.message for r in caplog.records)


def test_values_logged_from_any_thread_all_arrive():
    agent, run = pair()
    threads = [threading.Thread(target=lambda: [agent.log(x=i) for i in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream = run.stream("x")
    assert sorted(stream.values) == sorted([*range(500)] * 4)
    assert [r.number for r in stream.records] == list(range(1, 2001))


# ---------------------------------------------------------------- readers under load


@pytest.mark.parametrize("query", ["step, loss", "lambda e: (e.step, abs(e.loss))", "norm(step), loss"])
def test_readers_that_join_and_leave_at_any_moment_see_no_gap_and_no_duplicate(directory, query):
    chance, total = random.Random(0), 12_000
    with Agent("busy") as agent, looptap.attach("busy") as run:
        agent.stream("loss", query, history=total)
        going = threading.Event()

        def loop():
            for step in range(1, total + 1):
                agent.emit("batch", step=step, loss=0.5)
                if not step % 100:
                    time.sleep(0.002)
                    going.set()

        loops = threading.Thread(target=loop)
        loops.start()
        soon(going.is_set)
        readers = []
        while loops.is_alive() and len(readers) < 12:
            readers.append(run.stream("loss"))
            if chance.random() < 0.3:
                readers.pop(chance.randrange(len(readers))).close()
            time.sleep(chance.random() * 0.05)
        loops.join()
        readers.append(run.stream("loss"))
        for reader in readers:
            soon(lambda reader=reader: reader.arrived == total)
            assert [r.number for r in reader.records] == list(range(1, total + 1))
            assert [int(value[0]) for value in reader.values] == list(range(1, total + 1))
            assert (reader.dropped, reader.gaps) == (0, [])


def history(limit=1 << 20, each=1 << 20, lag=0, wake=lambda: None, wake_now=lambda: None):
    return RingSet(ReadySet(wake, wake_now), limit, each, lag)


def held_by(ring):
    """Return the bytes of what is in a ring."""
    return bytes_in(ring.entries(0, 10**6)[1])


@pytest.mark.parametrize("seed", range(20))
def test_blocks_and_single_values_share_a_ring_whose_bytes_are_exact(seed):
    """Whatever comes, goes or is lost, a reader gets each value or counts it."""
    chance = random.Random(seed)
    each = chance.choice([20_000, 60_000, 1 << 20])
    rings = history(3 * each // 2, each, chance.choice([0, 100]))
    kept = [rings.open(chance.choice([30, 100, 700])) for _ in range(2)]
    readers = [(Cursor(ring), []) for ring in kept for _ in range(2)]
    for _ in range(300):
        ring, what = chance.choice(kept), chance.randrange(8)
        first, count = ring.number + 1, chance.choice([1, 2, 15, 16, 40, 256])
        numbers = list(range(first, first + count))
        events, times = array("q", [3 * n for n in numbers]), array("d", numbers)
        if what == 0:
            ring.lose(chance.choice([1, 5, 50]))
        elif what == 1:
            ring.give_up()
        elif what < 4:
            ring.put(3 * first, float(first), first, chance.choice([64, 5000]))
        elif what == 4:
            ring.put_all(events, times, numbers, 64)
        elif what == 5:
            ring.put_all(events, times, [(n, "text", None) for n in numbers], 192)
        else:
            ring.put_all(events, times, as_columns([(n, n / 2) for n in numbers]), 128)
        assert [ring.held for ring in kept] == [held_by(ring) for ring in kept]
        assert sum(map(held_by, kept)) == rings.held <= 3 * each // 2
        assert max(ring.held for ring in kept) <= each
        for reader, seen in readers:
            if chance.random() < 0.3 and (columns := reader.peek(chance.choice([1, 30, 300]), 100_000)) is not None:
                for number, event, time, value in zip(columns.numbers, *columns[1:4], strict=True):
                    assert (event, time) == (3 * number, number)
                    assert value in (number, (number, "text", None), (number, number / 2))
                reader.take(columns)
                seen += columns.numbers
    for reader, seen in readers:
        while len(reader):
            if (columns := reader.peek(1000, 1 << 20)) is not None:
                reader.take(columns)
                seen += columns.numbers
        assert seen == sorted(set(seen))
        assert len(seen) + reader.dropped == reader.ring.number


def test_an_overtaken_reader_learns_exactly_what_it_lost():
    rings, chance = history(), random.Random(1)
    ring = rings.open(100)
    readers = [(Cursor(ring), []) for _ in range(5)]
    for turn in range(400):
        for _ in range(chance.randrange(3)):
            ring.put(turn, 0.0, ring.number + 1, 64)
        if not chance.randrange(4):
            count = chance.randrange(1, 130)
            numbers = list(range(ring.number + 1, ring.number + 1 + count))
            ring.put_all(array("q", numbers), array("d", [0.0] * count), numbers, 64)
        for reader, seen in readers:
            if chance.random() < 0.1 and (columns := reader.peek(chance.randrange(1, 80), 10_000)) is not None:
                assert tuple(columns.numbers) == tuple(columns.values)
                reader.take(columns)
                seen += columns.numbers
    assert len(ring) == 100
    assert ring.held == rings.held == held_by(ring)
    for reader, seen in readers:
        while (columns := reader.peek(1000, 1 << 20)) is not None:
            reader.take(columns)
            seen += columns.numbers
        assert seen == sorted(set(seen))
        assert len(seen) + reader.dropped == ring.number
        assert reader.dropped > 0


def test_a_reader_skips_and_counts_values_that_never_existed():
    ring = history().open(100)
    reader, seen = Cursor(ring), []
    for number in (1, 2):
        ring.put(number, 0.0, number, 64)
    ring.lose(35)
    ring.put(38, 0.0, 38, 64)
    for _ in range(3):
        if (columns := reader.peek(10, 1 << 20)) is not None:
            reader.take(columns)
            seen += columns.numbers
    assert (seen, reader.dropped) == ([1, 2, 38], 35)


def test_without_readers_there_is_no_wakeup_and_only_the_first_value_hurries():
    woken, urgent = [], []
    rings = history(wake=lambda: woken.append(1), wake_now=lambda: urgent.append(1))
    ring = rings.open(100)
    ring.put(1, 0.0, 1, 64)
    ring.put_all(array("q", [2, 3]), array("d", [0.0, 0.0]), [2, 3], 64)
    ring.lose(2)
    assert (woken, urgent) == ([], [])
    Cursor(ring)
    ring.put(6, 0.0, 6, 64)
    assert (len(woken), urgent) == (1, [])
    first = rings.open(100)
    Cursor(first)
    first.put(1, 0.0, 1, 64)
    assert urgent == [1]
    first.put_all(array("q", [2, 3]), array("d", [0.0, 0.0]), [2, 3], 64)
    assert urgent == [1]


def test_as_many_numbers_as_a_history_holds_are_one_batch():
    ring = history().open(100)
    ring.put_all(array("q", range(1, 101)), array("d", [0.0] * 100), [0.5] * 100, 64)
    assert ring.held == held_by(ring) < 100 * ITEM_OVERHEAD_BYTES


def test_while_values_gather_they_are_announced_once_a_quarter_of_those_held_wait():
    woken = []
    rings = history(wake=lambda: woken.append(ring.number))
    ring, post = rings.open(100), rings.ready
    Cursor(ring)
    for number in range(1, 101):
        ring.put(number, 0.0, number, 64)
    for _ in range(3):
        assert post.collect() == [ring]
        post.wakeup_pending, post.patient = False, True
        first = ring.number + 1
        for number in range(first, first + 80):
            ring.put(number, 0.0, number, 64)
        assert woken[-2] == first
        assert first < woken[-1] <= first + 25 + 12  # it is looked at now and then


def test_a_reader_that_lags_keeps_what_it_has_yet_to_take_up_to_a_bound():
    ring = history(lag=50).open(100)
    reader = Cursor(ring)
    for number in range(1, 151):
        ring.put(number, 0.0, number, 64)
    assert (len(ring), reader.dropped) == (100, 0)
    assert reader.peek(1000, 1 << 20).numbers == range(1, 151)
    for number in range(151, 301):
        ring.put(number, 0.0, number, 64)
    columns = reader.peek(1000, 1 << 20)
    assert reader.dropped == columns.first - 1 >= 100
    reader.take(columns)
    assert columns.numbers[-1] == 300
    assert ring.held == held_by(ring) == 100 * (64 + ITEM_OVERHEAD_BYTES)


def test_readers_on_a_thread_of_their_own_get_whole_values_while_the_ring_is_written():
    ring = history().open(50)
    reader, seen, over = Cursor(ring), [], threading.Event()

    def read():
        while not over.is_set() or len(reader):
            if (columns := reader.peek(30, 1 << 20)) is not None:
                assert tuple(columns.numbers) == tuple(columns.values)
                reader.take(columns)
                seen.extend(columns.numbers)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 30_001):
        ring.put(number, 0.0, number, 64)
    over.set()
    thread.join(300)
    assert seen == sorted(set(seen))
    assert len(seen) + reader.dropped == 30_000


# ---------------------------------------------------------------- bounds


def test_all_histories_together_stay_within_their_bounds():
    limits = looptap.Limits(history_bytes=100_000, history_bytes_in_all=250_000)
    agent, run = pair(limits=limits)
    agent.log(first=b"x" * 50_000)
    for step in range(300):
        agent.log(**{f"s{i}": bytes(1000 * i + 1000) for i in range(4)})
        held = {s.name: s.bytes for s in run.streams} if not step % 20 else {}
        assert sum(held.values()) <= 250_000
        assert max(held.values(), default=0) <= 100_000
    stats = agent.stats()
    assert 200_000 < stats["history_bytes"] <= stats["history_peak"] <= 250_000
    assert stats["history_bytes"] == sum(s["bytes"] for s in stats["streams"])
    assert all(s.held for s in run.streams)  # each stream keeps some
    stream = run.stream("s3")
    assert (len(stream), stream.dropped) == (stream.records[-1].number + 1 - stream.records[0].number, 0)


def test_a_history_of_numbers_takes_no_more_memory_than_is_counted():
    rings = history(1 << 24, 1 << 24)
    ring = rings.open(10_000)
    tracemalloc.start()
    try:
        for step in range(20_000):
            ring.put(step, step + 0.5, step / 3, 64)
        assert tracemalloc.get_traced_memory()[0] <= rings.held <= 11_024 * (64 + ITEM_OVERHEAD_BYTES)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("count", [MIN_BATCH_VALUES, 100, 256])
def test_a_history_of_columns_takes_no_more_memory_than_is_counted(columns, count):
    rings = history(1 << 24, 1 << 24)
    ring = rings.open(10_000)
    tracemalloc.start()
    try:
        for first in range(0, 20_000, count):
            numbers = range(first, first + count)
            values = [np.frombuffer(array("d", [n / 3 for n in numbers])) for _ in range(columns)]
            ring.put_all(array("q", numbers), array("d", numbers), ValueColumns(values, columns > 1), 64 * columns)
        del numbers, values
        assert tracemalloc.get_traced_memory()[0] <= rings.held == held_by(ring)
        assert rings.held < 10_000 * (64 * columns + ITEM_OVERHEAD_BYTES) / 1.5
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- without readers


@pytest.mark.promise("cost")
def test_without_readers_there_is_no_wakeup_and_with_one_there_is(directory):
    with Agent("quiet", budget=float("inf")) as agent:  # a query that becomes limited says so at once
        agent.stream("later", "step, loss")
        agent.stream("at once", "norm(loss)")
        agent.emit("batch", step=0, loss=0.5)
        wakes = parts_of(agent).connection.link.wakes
        for step in range(1, 5 * MAX_PENDING_EVENTS):
            agent.emit("batch", step=step, loss=0.5)
            agent.log(lr=0.1)
        assert parts_of(agent).connection.link.wakes == wakes
        assert not parts_of(agent).dispatcher.ready_set.wakeup_pending
        assert parts_of(agent).sources.unobserved.pending() < MAX_PENDING_EVENTS
        with looptap.attach("quiet") as run:
            streams = [run.stream(name) for name in ("later", "at once", "lr")]
            soon(
                lambda: (
                    [s.arrived for s in streams]
                    == [5 * MAX_PENDING_EVENTS, 5 * MAX_PENDING_EVENTS, 5 * MAX_PENDING_EVENTS - 1]
                )
            )
            agent.emit("batch", step=1, loss=0.5)
            soon(
                lambda: (
                    [s.arrived for s in streams]
                    == [5 * MAX_PENDING_EVENTS + 1, 5 * MAX_PENDING_EVENTS + 1, 5 * MAX_PENDING_EVENTS - 1]
                )
            )
            assert parts_of(agent).connection.link.wakes > wakes
            for stream in streams:
                stream.close()
            soon(lambda: not agent.stats()["readers"])
            soon(lambda: parts_of(agent).dispatcher.ready_set.wakeup_pending is False)
            wakes = parts_of(agent).connection.link.wakes
            for step in range(1000):
                agent.emit("batch", step=step, loss=0.5)
            assert parts_of(agent).connection.link.wakes == wakes


def test_the_query_runs_once_for_all_readers():
    calls = []
    agent, run = pair()
    agent.expose(count=calls.append)
    agent.stream("counted", "count(step) or step", unsafe=True)
    readers = [run.stream("counted") for _ in range(5)]
    for step in range(10):
        agent.emit("batch", step=step)
    assert calls == list(range(10))
    assert [r.values for r in readers] == [list(range(10))] * 5
    assert [r["sent"] for r in agent.stats()["readers"]] == [10] * 5


def test_a_client_and_a_declared_stream_on_the_same_events_are_both_right(directory):
    with Agent("both") as agent, looptap.attach("both") as run:
        agent.stream("kept", "step", history=5000)
        for step in range(1000):
            agent.emit("batch", step=step)
        own = run.stream("step", on="batch")
        for step in range(1000, 2000):
            agent.emit("batch", step=step)
        soon(lambda: own.arrived == 1000)
        own.close()
        for step in range(2000, 3000):
            agent.emit("batch", step=step)
        kept = run.stream("kept")
        soon(lambda: kept.arrived == 3000)
        assert kept.values == list(range(3000))
        assert own.values == list(range(1000, 2000))


# ---------------------------------------------------------------- the command line


def shell(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code or 0


def test_streams_are_listed_and_watched_by_name_in_a_shell(directory, capsys):
    with Agent("shell") as agent:
        agent.stream("loss", "step, loss", unit="nats")
        for step in range(5):
            agent.emit("batch", step=step, loss=0.5)
        assert shell("streams", "shell", "--json") == 0
        (info,) = json.loads(capsys.readouterr().out)
        assert (info["name"], info["query"], info["values"], info["held"]) == ("loss", "step, loss", 5, 5)
        assert shell("streams", "shell") == 0
        assert "loss [nats] step, loss on batch: 5 values, 5 held" in capsys.readouterr().out
        assert shell("ls", "shell") == 0
        assert "loss [nats] step, loss on batch: 5 values" in capsys.readouterr().out
        assert shell("watch", "shell", "loss", "--count", "5", "--timeout", "20", "--json") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["value"]["step"] for line in lines if line.get("number")] == list(range(5))


@pytest.mark.parametrize("bad", ["x" * 101, "a\nb", "commands", "", "beyond"])
def test_a_name_that_cannot_be_a_stream_keeps_no_other_value_out(bad, caplog):
    agent, run = pair("logged", limits=looptap.Limits(declared_streams=3))
    if bad == "beyond":
        agent.log(first=1, loss=0.0, third=2)
    for step in range(3):
        agent.log(**{"first": step, bad: 1.0, "loss": step / 2})
    assert list(run.stream("loss").values)[-3:] == [0.0, 0.5, 1.0]
    assert caplog.text.count("said once") == 1


def test_the_history_reads_losses_first_where_an_event_has_more_names_than_it_may_read():
    from looptap.agent.loop.plain_numbers import plain_numbers

    many = {f"weight{i}": float(i) for i in range(300)}
    found, left_out = plain_numbers({**many, "val/loss": 0.25, "loss": 0.5})
    assert (found["loss"], found["val/loss"], left_out) == (0.5, 0.25, 46)
    assert found["weight0"] == 0.0
