"""Delivery: flushes visit streams with new values in turns; no wakeup is lost."""

from __future__ import annotations

import random
import sys
import threading

import pytest
from waiting import soon

import looptap
from looptap.agent.handoff.value_ring import RESERVATION_BYTES, QueueSet, ValueQueue
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


def test_a_value_after_an_interrupt_anywhere_wakes_the_io_thread():
    rang = []

    def ring():
        rang.append(len(rang))

    post = QueueSet(1_000_000, ring, lambda: None)
    queue = ValueQueue(post, 1000)
    post.open(queue)
    count = 0
    for _ in interrupts(lambda: queue.put(1, 0.0, 1.0, 64)):
        count += 1
        before = len(rang)
        queue.put(2, 0.0, 2.0, 64)
        assert queue in post.ready
        assert post.wakeup_pending
        assert len(rang) > before or before
        post.wakeup_pending = False
        assert post.collect() == [queue]
        while (columns := queue.peek(1000, 1_000_000)) is not None:
            assert columns.values[-1] == 2.0
            queue.take(columns)
        rang.clear()
        assert post.granted - post.taken == queue.reserved_bytes()
    assert count > 20


def test_reserved_bytes_are_exact_while_streams_come_and_go():
    post = QueueSet(400_000, lambda: None, lambda: None)
    dice, queues, over = random.Random(3), [], threading.Event()

    def fill():
        while not over.is_set():
            for queue in list(queues):
                for _ in range(dice.randrange(40)):
                    queue.put(1, 0.0, b"", dice.choice([64, 500, 20_000]))

    thread = threading.Thread(target=fill)
    thread.start()
    for turn in range(1_500):
        if len(queues) < 6:
            queue = ValueQueue(post, 1000)
            post.open(queue)
            queues.append(queue)
        for queue in queues:
            if (columns := queue.peek(100, 100_000)) is not None:
                queue.take(columns)
        if turn % 7 == 0:
            post.close(queues.pop(dice.randrange(len(queues))))
    over.set()
    thread.join()
    assert post.granted - post.taken == sum(queue.reserved_bytes() for queue in queues)
    assert post.peak_bytes <= 400_000 + 6 * RESERVATION_BYTES
    for queue in queues:
        post.close(queue)
    assert post.free_bytes() == 400_000
