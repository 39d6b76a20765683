"""Delivery: flushes visit streams with new values in turns; no wakeup is lost."""

from __future__ import annotations

import random
import sys
import threading
from array import array

import pytest
from interrupts import interrupted
from waiting import soon

import looptap
from looptap.agent.handoff.ready_set import ReadySet
from looptap.agent.handoff.value_batch import bytes_in
from looptap.agent.handoff.value_ring import Cursor, RingSet
from looptap.testing import pair, parts_of

MANY = looptap.Limits(streams=2000, streams_per_client=2000, clients=64)


def calls(work, *how, **named):
    """Return how many Python and C functions ``work`` calls: its cost on any machine."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work(*how, **named)
    finally:
        sys.setprofile(None)
    return count


def test_a_flush_skips_idle_streams():
    seen = {}
    for idle in (8, 128, 512):
        job = pair(limits=MANY)
        agent, run = job
        held = [job.attach() for _ in range(3)]
        kept = [held[n % 3].stream("step", on="never") for n in range(idle)]
        busy = run.stream("step", on="batch")
        agent.emit("batch", step=0)
        service = parts_of(agent).dispatcher
        seen[idle] = [calls(service.flush), calls(service.is_idle), calls(agent.emit, "batch", step=1)]
        assert busy.values == [0, 1]
        assert len(kept) == idle
        agent.close()
    assert seen[8] == pytest.approx(seen[512], abs=10)  # of 240


def test_a_heartbeat_and_a_new_stream_cost_the_same_for_each_stream():
    seen = {}
    for idle in (100, 200, 400):
        agent, run = pair(limits=MANY)
        held = [run.stream("step", on="never") for _ in range(idle)]
        parts_of(agent).dispatcher.on_heartbeat_timer()  # the first heartbeat reports all of them
        parts_of(agent).dispatcher.flush()
        seen[idle] = calls(parts_of(agent).dispatcher.on_heartbeat_timer), calls(run.stream, "step", on="never")
        assert len(held) == idle
        agent.close()
    beats = [seen[idle][0] for idle in seen]
    assert beats[2] - beats[1] == pytest.approx(2 * (beats[1] - beats[0]), rel=0.2)
    assert (beats[2] - beats[1]) / 200 < 20
    assert seen[400][1] < 1.2 * seen[100][1]


def test_many_queries_of_one_type_are_planned_in_linear_time():
    seen = {}
    for many in (100, 400):
        agent, run = pair(limits=MANY)
        kept = [run.stream("step", on="batch") for _ in range(many)]
        seen[many] = calls(agent.emit, "batch", step=1), len(kept)
        assert all(stream.arrived == 1 for stream in kept)
        agent.close()
    assert seen[400][0] < 5 * seen[100][0]


def test_clients_and_their_streams_take_turns():
    job = pair(manual=True)  # all of it waits before anything is sent
    agent, run = job
    second = job.attach()
    streams = [run.stream("step", on="batch"), run.stream("step", on="batch"), second.stream("step", on="batch")]
    job.deliver()
    service, order = job.parts.dispatcher, []
    send = service.send

    def noting(peer, frame):
        order.append(peer)
        return send(peer, frame)

    service.send = noting
    for step in range(4_000):
        agent.emit("batch", step=step)
    order.clear()
    job.deliver()
    assert all(stream.arrived == 4_000 for stream in streams)
    half = order[: len(order) // 2]
    assert half.count(b"peer0") == pytest.approx(half.count(b"peer1"), abs=2)  # though one has twice as much to get
    agent.close()


def test_no_wakeup_is_lost_between_two_threads(directory):
    dice, limits = random.Random(7), looptap.Limits(heartbeat=600.0, heartbeat_timeout=600.0)
    with looptap.Agent("woken", limits=limits) as agent, looptap.attach("woken") as run:  # no heartbeat helps
        streams = [run.stream("lambda e: e.step", on="batch", latency="low") for _ in range(3)]
        sent = 0
        for _ in range(150):
            for _ in range(dice.choice([1, 1, 2, 50])):
                agent.emit("batch", step=sent)
                sent += 1
                for _ in range(dice.randrange(2_000)):
                    pass
            soon(lambda sent=sent: all(stream.arrived == sent for stream in streams), 60)
        assert all(stream.values == list(range(sent)) for stream in streams)


def interrupts(work):
    """Run ``work`` with Ctrl-C at each of its opcodes; yield after each."""
    at = 0
    while True:
        at += 1
        left = at

        def trace(frame, event, argument):
            nonlocal left
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            pass
        else:
            return
        finally:
            sys.settrace(None)
        yield at


def outbox(limit=1 << 20, lag=1000, wake=lambda: None, wake_now=lambda: None):
    return RingSet(ReadySet(wake, wake_now), limit, 2 * limit // 3, lag)


def test_a_value_after_an_interrupt_anywhere_wakes_the_io_thread():
    rang = []

    def call():
        rang.append(len(rang))

    rings = outbox(wake=call)
    post, ring = rings.ready, rings.open()
    reader = Cursor(ring)
    count = 0
    for _ in interrupts(lambda: ring.put(1, 0.0, 1.0, 64)):
        count += 1
        before = len(rang)
        ring.put(2, 0.0, 2.0, 64)
        assert ring in post.ready
        assert post.wakeup_pending
        assert len(rang) > before or before
        post.wakeup_pending = False
        assert post.collect() == [ring]
        while (columns := reader.peek(1000, 1_000_000)) is not None:
            assert columns.values[-1] == 2.0
            reader.take(columns)
        rang.clear()
    assert count > 20


@pytest.mark.parametrize("many", [False, True])
def test_ctrl_c_anywhere_leaves_a_value_whole_or_out_and_its_bytes_exact(many):
    rings = outbox(limit=6_000)
    ring, dice = rings.open(), random.Random(5)
    reader, seen = Cursor(ring), []

    def put():
        first = ring.number + 1
        if many:
            numbers = list(range(first, first + 20))
            ring.put_all(array("q", numbers), array("d", [0.0] * 20), numbers, 64)
        else:
            ring.put(first, 0.0, first, 500)

    for at in range(1, 500):
        for _ in range(dice.randrange(20)):
            put()
        interrupted(put, at)
        assert ring.held == rings.held == bytes_in(ring.entries(0, 10**6)[1]) <= 6_000
        if not dice.randrange(4) and (columns := reader.peek(7, 10**6)) is not None:
            assert tuple(columns.numbers) == tuple(columns.values)
            reader.take(columns)
            seen += columns.numbers
    while (columns := reader.peek(1000, 10**6)) is not None:
        reader.take(columns)
        seen += columns.numbers
    assert seen == sorted(set(seen))
    assert len(seen) + reader.dropped == ring.number
    assert ring.held == rings.held == 0


def test_bytes_are_exact_and_nothing_is_silent_while_streams_come_and_go():
    rings = outbox(limit=400_000)
    dice, kept, over = random.Random(3), [], threading.Event()

    def fill():
        while not over.is_set():
            for reader, _ in list(kept):
                for _ in range(dice.randrange(40)):
                    reader.ring.put(1, 0.0, b"", dice.choice([64, 500, 20_000]))

    def read(reader, seen, count):
        if (columns := reader.peek(count, 100_000)) is not None:
            reader.take(columns)
            seen.extend(columns.numbers)

    thread = threading.Thread(target=fill)
    thread.start()
    for turn in range(1_500):
        if len(kept) < 6:
            kept.append((Cursor(rings.open()), []))
        for reader, seen in kept:
            read(reader, seen, 100)
        if turn % 7 == 0:
            reader, _ = kept.pop(dice.randrange(len(kept)))
            assert reader.leave()
    over.set()
    thread.join()
    assert rings.held == sum(reader.ring.held for reader, _ in kept)
    assert rings.peak_bytes <= 400_000
    for reader, seen in kept:
        while len(reader):
            read(reader, seen, 1000)
        assert seen == sorted(set(seen))
        assert len(seen) + reader.dropped == reader.ring.number
    assert rings.held == 0


@pytest.mark.parametrize("seed", range(6))
def test_two_producers_and_the_readers_of_a_full_set_lose_nothing_silently(seed):
    """Each takes away from the other's ring, while the readers take from both."""
    rings, dice, over = outbox(limit=60_000), random.Random(seed), threading.Event()
    kept = [(Cursor(rings.open(keep)), []) for keep in (0, 50, 0, 200)]

    def fill(mine):
        chance = random.Random(seed)
        while not over.is_set():
            for reader, _ in mine:
                first = reader.ring.number + 1
                if chance.random() < 0.5:
                    reader.ring.put(first, 0.0, first, chance.choice([64, 2_000]))
                else:
                    numbers = list(range(first, first + chance.choice([3, 40])))
                    reader.ring.put_all(array("q", numbers), array("d", [0.0] * len(numbers)), numbers, 64)

    threads = [threading.Thread(target=fill, args=(mine,)) for mine in (kept[:2], kept[2:])]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(3_000):
            reader, seen = dice.choice(kept)
            if (columns := reader.peek(dice.choice([1, 50, 500]), 100_000)) is not None:
                assert tuple(columns.numbers) == tuple(columns.values)
                reader.take(columns)
                seen += columns.numbers
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    for reader, seen in kept:
        while len(reader):
            if (columns := reader.peek(1000, 10**6)) is not None:
                reader.take(columns)
                seen += columns.numbers
        assert seen == sorted(set(seen))
        assert len(seen) + reader.dropped == reader.ring.number
    held = [bytes_in(reader.ring.entries(0, 10**6)[1]) for reader, _ in kept]
    assert held == [reader.ring.held for reader, _ in kept]
    assert rings.held == sum(held) <= 60_000 + 2_192  # both may have found the same room


def test_the_ring_with_the_most_gives_up_its_oldest_values_and_a_reader_that_reads_loses_none():
    rings = outbox(limit=100_000)
    deaf, healthy = Cursor(rings.open()), Cursor(rings.open())
    seen = []
    for number in range(1, 2_001):
        for reader in (deaf, healthy):
            reader.ring.put(number, 0.0, number, 300)
        if number % 20 == 0:
            while (columns := healthy.peek(100, 100_000)) is not None:
                healthy.take(columns)
                seen += columns.values
    assert (seen, healthy.dropped) == (list(range(1, 2_001)), 0)
    assert 50_000 < rings.held <= 2 * 100_000 // 3
    found = []
    while (columns := deaf.peek(100, 100_000)) is not None:
        deaf.take(columns)
        found += columns.values
    assert found == list(range(2_001 - len(found), 2_001))  # the newest
    assert deaf.dropped == 2_000 - len(found) > 0
