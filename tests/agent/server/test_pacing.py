"""How long values gather before they are sent, by their readers and their room."""

from __future__ import annotations

import random
import threading

import pytest
from interrupts import interrupted
from memory_wire import Wire
from waiting import soon

import looptap
from looptap.agent.loop import evaluation_plan
from looptap.agent.loop.deferred_evaluation import MAX_PENDING_EVENTS
from looptap.agent.server import exporter
from looptap.protocol import messages as m
from looptap.streams.operators.windows import Count
from looptap.streams.stream.attention import PROMPT_SECONDS, UNSEEN_SECONDS, WATCHED_SECONDS
from looptap.testing import Clock, pair, parts_of

A, B = b"a", b"b"
MANY, LARGE = 100_000, 100_000
"""More values, and more bytes in one, than may gather for long."""


@pytest.fixture
def wire():
    found = Wire()
    yield found
    found.agent.close()


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(exporter, "time", found)
    found.monotonic = found
    return found


def patient(wire: Wire, **more) -> None:
    """Attach a client at whose stream nothing looks, flush, and let values gather."""
    wire.client(A)
    wire.attach(A, **more)
    wire.tell(A, m.Beat(patience=UNSEEN_SECONDS))
    wire.emit(0)
    wire.deliver()
    assert wire.dispatcher.linger(steady=True) == UNSEEN_SECONDS


def emitted_until_hastened(wire: Wire, **more) -> int:
    """Emit until the I/O thread is asked to hurry; return the number of events."""
    queues = wire.parts.ready_set
    before = queues.hastened
    for step in range(1, MANY):
        wire.emit(step, **more)
        if queues.hastened > before:
            assert wire.dispatcher.linger(steady=True) == 0.0
            return step
    raise AssertionError("values gathered without bound")


# ---------------------------------------------------------------- the agent's side


def test_values_gather_for_as_long_as_the_least_patient_client_can_wait(wire):
    for peer in (A, B):
        wire.client(peer)
        wire.attach(peer)
    assert wire.dispatcher.linger(steady=True) == PROMPT_SECONDS  # nothing is known of them
    wire.tell(A, m.Beat(patience=UNSEEN_SECONDS))
    assert wire.dispatcher.linger(steady=True) == PROMPT_SECONDS
    wire.tell(B, m.Beat(patience=WATCHED_SECONDS))
    assert wire.dispatcher.linger(steady=True) == WATCHED_SECONDS
    assert wire.dispatcher.linger() == PROMPT_SECONDS  # the first values after a rest
    wire.tell(B, m.Leave())
    assert wire.dispatcher.linger(steady=True) == UNSEEN_SECONDS
    wire.attach(A, 2, latency="low")
    assert wire.dispatcher.linger(steady=True) == 0.001


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("inf"), float("nan")])
def test_no_client_can_have_values_gather_for_longer_or_shorter_than_that(wire, seconds):
    wire.client(A)
    wire.attach(A)
    wire.tell(A, m.Beat(patience=seconds))
    assert PROMPT_SECONDS <= wire.dispatcher.linger(steady=True) <= UNSEEN_SECONDS


def test_a_client_that_comes_back_over_a_new_link_is_not_patient(wire):
    wire.client(A, token="same")
    wire.attach(A)
    wire.tell(A, m.Beat(patience=UNSEEN_SECONDS))
    assert wire.dispatcher.linger(steady=True) == UNSEEN_SECONDS
    wire.client(B, token="same", streams=(1,))
    assert wire.dispatcher.linger(steady=True) == PROMPT_SECONDS


def test_values_that_are_kept_in_a_file_gather_no_longer_than_ever(tmp_path):
    agent, run = pair(store=tmp_path / "run.looptap")
    stream = run.stream("step", on="batch")
    (client,) = parts_of(agent).dispatcher.clients.values()
    client.patience = UNSEEN_SECONDS
    assert parts_of(agent).dispatcher.linger(steady=True) == UNSEEN_SECONDS
    run.keep(stream, name="steps")
    assert parts_of(agent).dispatcher.linger(steady=True) == PROMPT_SECONDS
    agent.close()


def test_a_stream_that_is_kept_in_a_file_never_waits_for_others(tmp_path):
    agent, run = pair(store=tmp_path / "run.looptap")
    seen, kept = run.stream("step", on="batch"), run.stream("step * 10", on="batch")
    run.keep(kept, name="tens")
    parts_of(agent).sources.evaluator.max_pending = MAX_PENDING_EVENTS
    agent.emit("batch", step=0)
    forget(kept)
    run.session.on_tick()
    queries = parts_of(agent).sources.by_name["batch"].queries
    assert [query.unseen for query in queries] == [False, True]
    parts_of(agent).connection.manual = True
    for step in range(1, 40):
        agent.emit("batch", step=step)
    parts_of(agent).dispatcher.flush()
    assert seen.arrived == kept.arrived == 40
    agent.close()


def test_many_events_that_wait_for_their_evaluation_are_evaluated_at_once(wire):
    patient(wire)
    wire.parts.sources.evaluator.max_pending = MAX_PENDING_EVENTS
    assert 100 < emitted_until_hastened(wire) < MAX_PENDING_EVENTS


@pytest.mark.parametrize(("text", "most"), [("x", 5000), ("x" * LARGE, 5)])
def test_many_values_or_large_ones_are_sent_at_once(wire, text, most):
    patient(wire, code="text")
    assert emitted_until_hastened(wire, text=text) <= most


@pytest.mark.parametrize("values", [2, 16, 1000])
def test_no_more_values_gather_than_half_of_those_that_a_queue_holds(values):
    wire = Wire(outbox_values=values)
    patient(wire, code="text, step")
    emitted_until_hastened(wire, text="x")
    wire.deliver()
    assert wire.said(m.Status)[-1].dropped == 0
    assert len(wire.values(A)) <= 1 + (values + 1) // 2
    wire.agent.close()


@pytest.mark.parametrize("query", ["step, text", "step"])
@pytest.mark.parametrize("history", [2, 16, 300])
def test_no_value_of_a_declared_stream_is_overwritten_while_values_gather(wire, history, query, clock):
    wire.parts.sources.evaluator.max_pending = MAX_PENDING_EVENTS
    wire.agent.stream("declared", query, on="batch", history=history)
    wire.client(A)
    wire.tell(A, m.Read(1, 1, "declared"))
    wire.tell(A, m.Beat(patience=UNSEEN_SECONDS))
    for step in range(3000):
        wire.emit(step, text="x")
        if wire.dispatcher.linger(steady=True) == 0.0:
            wire.deliver()
            clock.advance(2.0)
            assert wire.dispatcher.linger(steady=True) == UNSEEN_SECONDS
    wire.deliver()
    seen = wire.values(A)
    assert [one[0] if isinstance(one, tuple | list) else one for one in seen] == list(range(3000))


def test_where_values_had_to_be_sent_early_fewer_gather_for_a_while(wire, clock):
    patient(wire, code="text")
    clock.advance(0.1)
    emitted_until_hastened(wire, text="x")
    wire.deliver()
    assert wire.dispatcher.linger(steady=True) == pytest.approx(0.05)
    clock.advance(2.0)
    wire.deliver()
    assert wire.dispatcher.linger(steady=True) == UNSEEN_SECONDS
    clock.advance(0.001)
    emitted_until_hastened(wire, text="x")
    wire.deliver()
    assert wire.dispatcher.linger(steady=True) == PROMPT_SECONDS


def test_an_interrupt_costs_no_request_to_hurry(wire):
    patient(wire)

    def interrupted() -> None:
        raise KeyboardInterrupt

    queues, wake = wire.parts.ready_set, wire.parts.ready_set.wake_gathering
    queues.wake_gathering = interrupted
    with pytest.raises(KeyboardInterrupt):
        queues.hasten()
    woken = []
    queues.wake_gathering = lambda: (woken.append(True), wake())
    queues.hasten()
    assert woken


# ---------------------------------------------------------------- what something looks at comes first


@pytest.fixture
def due(monkeypatch):
    """Return the clock that says when the values at which nothing looks are due."""
    found = Clock()
    monkeypatch.setattr(evaluation_plan, "monotonic", found)
    return found


def two_streams(wire: Wire, **second) -> None:
    """Attach two streams, at the second of which nothing looks, with one value each."""
    wire.parts.sources.evaluator.max_pending = MAX_PENDING_EVENTS
    wire.client(A, token="same")
    wire.attach(A, 1, code="step")
    wire.attach(A, 2, code="step * 10", **second)
    wire.tell(A, m.Beat(patience=WATCHED_SECONDS, unseen=(2,)))
    wire.emit(0)
    wire.deliver()
    assert arrived(wire) == (1, 1)


def arrived(wire: Wire) -> tuple[int, int]:
    return len(wire.values(A, 1)), len(wire.values(A, 2))


def test_values_at_which_something_looks_are_evaluated_before_the_others(wire, due):
    two_streams(wire)
    for step in range(1, 100):
        wire.emit(step)
        if step % 10 == 0:
            wire.deliver()
    assert arrived(wire) == (91, 1)
    due.advance(UNSEEN_SECONDS)
    wire.deliver()
    assert arrived(wire) == (100, 100)
    assert wire.values(A, 2) == [10 * step for step in range(100)]
    wire.emit(100)
    wire.deliver()
    assert arrived(wire) == (101, 100)


@pytest.mark.parametrize(
    "look",
    [
        lambda wire: wire.tell(A, m.Beat(patience=WATCHED_SECONDS)),
        lambda wire: (wire.tell(A, m.Attach(3, 3, m.Code("step + 1"), "batch")), wire.emit(4)),
        lambda wire: wire.tell(A, m.Attach(3, 3, m.Code("v + 1"), "", of_stream=2)),
        lambda wire: wire.tell(A, m.Detach(3, 1)),
        lambda wire: (wire.client(B, token="same", streams=(1, 2)), wire.tell(B, m.Detach(3, 1))),
        lambda wire: wire.agent.close(),
    ],
    ids=["looks", "attaches", "reads its values", "detaches", "comes back", "ends"],
)
def test_values_that_have_waited_come_as_soon_as_something_changes(look, due, wire):
    two_streams(wire)
    wire.emit(1, 2, 3)
    wire.deliver()
    assert arrived(wire) == (4, 1)
    look(wire)
    wire.deliver()
    assert (wire.values(A, 2) + wire.values(B, 2))[:4] == [0, 10, 20, 30]


def test_no_more_values_wait_than_may_gather(wire, due):
    two_streams(wire)
    evaluator = wire.parts.sources.evaluator
    for step in range(1, 3000):
        wire.emit(step)
        if step % 7 == 0:
            wire.deliver()
            assert evaluator.pending() <= MAX_PENDING_EVENTS
    due.advance(UNSEEN_SECONDS)
    wire.deliver()
    assert wire.values(A, 2) == [10 * step for step in range(3000)]
    assert wire.said(m.Status)[-1].dropped == 0


def test_a_stream_of_low_latency_never_waits(wire, due):
    two_streams(wire, latency="low")
    wire.emit(1, 2)
    wire.deliver()
    assert arrived(wire) == (3, 3)


@pytest.mark.parametrize("query", ["step * 10", "mean(e.step for e in recent(20))", "sum(e.step for e in events)"])
def test_ctrl_c_while_what_has_waited_is_evaluated_costs_one_value_at_most(query, due):
    def once(at: int) -> tuple[int, KeyboardInterrupt | None]:
        wire = Wire()
        wire.parts.sources.evaluator.max_pending = MAX_PENDING_EVENTS
        wire.client(A)
        wire.attach(A, 1, code="step")
        wire.attach(A, 2, code=query)
        wire.tell(A, m.Beat(patience=WATCHED_SECONDS, unseen=(2,)))
        wire.emit(*range(1, 21))
        wire.deliver()
        wire.emit(*range(21, 41))
        count, pressed = interrupted(wire.parts.sources.drain, at)
        wire.emit(*range(41, 51))
        (steps, other), dropped = wire.parts.sources.by_name["batch"].queries, []
        wire.agent.close()
        wire.deliver()
        assert wire.values(A, 1) == list(range(1, 51))
        assert steps.events == other.events == 50
        for status in wire.said(m.Status):
            dropped += [status.dropped] * (status.stream == 2 and status.state == "ended")
        values = sum(len(message.events) // 8 for message in wire.said(m.Values) if message.stream == 2)
        assert values + dropped[-1] == (1 if "events" in query else 50)
        assert dropped[-1] <= (pressed is not None)
        return count, pressed

    count, pressed = once(0)
    assert pressed is None
    apart = max(23, count // 40)
    for at in range(random.randrange(1, apart), count, apart):
        once(at)


QUERIES = {
    "step": {}, "step, loss": {}, "2 * loss": {"every": 3}, "mean(e.loss for e in recent(20))": {},
    "sum(e.step for e in events)": {}, "max(e.loss for e in events)": {"window": Count(7)}, "step / (step % 50)": {},
    "group_by(((e.step % 3, e.loss) for e in events), mean)": {"window": Count(40)},
}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_has_the_same_values_whether_or_not_it_waits_for_others(seed, due):
    """Play random acts; compare with a job that is flushed only at the end."""
    draw = random.Random(seed)
    acts = [draw.choice("eeeeeeeeeeeefffglt") for _ in range(1500)]
    numbers = range(1, len(QUERIES) + 1)
    seen = []
    for waits in (True, False):
        wire, looks, step = Wire(), random.Random(seed), 0
        wire.parts.sources.evaluator.max_pending = MAX_PENDING_EVENTS
        wire.client(A)
        for number, (query, how) in zip(numbers, QUERIES.items(), strict=True):
            wire.attach(A, number, code=query, **how)
        for act in acts:
            if act == "e":
                step += 1
                wire.emit(step, loss=looks.random())
            elif act == "g":
                wire.agent.end_group("batch")
            elif waits and act == "f":
                wire.deliver()
            elif waits and act == "l":
                unseen = tuple(number for number in numbers if draw.random() < 0.6)
                wire.tell(A, m.Beat(patience=WATCHED_SECONDS, unseen=unseen))
            elif waits and act == "t":
                due.advance(0.2)
        wire.agent.close()
        wire.deliver()
        seen.append([repr(wire.values(A, number)) for number in numbers])
    assert seen[0] == seen[1]
    assert all(len(values) > 20 for values in seen[0])


# ---------------------------------------------------------------- the client's side


def patience(job: looptap.testing.Pair) -> float:
    """Return what the agent knows of its client, after a heartbeat of that."""
    job.run.session.on_tick()
    (client,) = job.parts.dispatcher.clients.values()
    return client.patience


def forget(*streams: looptap.LiveStream) -> None:
    """Let some time pass since the streams were last read."""
    for stream in streams:
        stream.feed.attention.looked_at = stream.feed.attention.waited_at = -1e9


def test_a_client_is_patient_while_nothing_looks_at_its_streams():
    job = pair()
    stream, other = job.run.stream("step", on="batch"), job.run.stream("step * 2", on="batch")
    assert patience(job) == PROMPT_SECONDS  # they have just been opened
    forget(stream, other)
    assert patience(job) == UNSEEN_SECONDS
    job.agent.emit("batch", step=1)
    (client,) = job.parts.dispatcher.clients.values()
    assert client.patience == UNSEEN_SECONDS
    assert stream.latest == 1
    assert client.patience == WATCHED_SECONDS  # at once
    assert patience(job) == WATCHED_SECONDS
    forget(stream)
    assert patience(job) == UNSEEN_SECONDS
    assert other.wait(1) == [2]
    assert client.patience == PROMPT_SECONDS
    forget(stream, other)
    other.on_value(print)
    forget(stream, other)
    assert patience(job) == PROMPT_SECONDS
    job.agent.close()


def test_a_client_says_at_which_streams_nothing_looks():
    job = pair()
    streams = [job.run.stream(query, on="batch") for query in ("step", "step * 2", "step * 3")]
    subscribed = job.parts.dispatcher.exporter.streams

    def unseen() -> list[bool]:
        return [one.unseen for one in subscribed]

    forget(*streams)
    job.run.session.on_tick()
    assert unseen() == [True, True, True]
    assert streams[1].latest is None
    assert unseen() == [True, False, True]  # at once
    assert streams[2].values == []
    assert unseen() == [True, False, False]
    forget(*streams)
    job.run.session.on_tick()
    assert unseen() == [True, True, True]
    job.agent.close()


@pytest.mark.parametrize("read", ["values", "records", "arrived", "to_numpy", "columns", "first"])
def test_every_way_to_read_a_stream_is_a_look(read):
    job = pair()
    stream = job.run.stream("step", on="batch")
    job.agent.emit("batch", step=1)
    forget(stream)
    assert patience(job) == UNSEEN_SECONDS
    found = getattr(stream, read)
    if callable(found):
        found()
    assert patience(job) == WATCHED_SECONDS
    job.agent.close()


def test_the_agent_knows_at_once_of_a_thread_that_waits(directory):
    with looptap.Agent("paced") as agent, looptap.attach("paced") as run:
        stream = run.stream("step", on="batch")
        (client,) = parts_of(agent).dispatcher.clients.values()

        def rests() -> bool:
            forget(stream)
            return client.patience == UNSEEN_SECONDS

        soon(rests)
        waiter = threading.Thread(target=stream.wait, args=(1,))
        waiter.start()
        soon(lambda: client.patience == PROMPT_SECONDS)
        agent.emit("batch", step=1)
        waiter.join()


def test_values_that_nothing_waits_for_arrive_as_soon_as_they_are_too_many(directory, monkeypatch):
    linger = exporter.Pacing.linger

    def longer(pacing: exporter.Pacing, *, steady: bool = False) -> float:
        """Return a minute for what is otherwise half a second."""
        seconds = linger(pacing, steady=steady)
        return 60.0 if seconds > PROMPT_SECONDS else seconds

    monkeypatch.setattr(exporter.Pacing, "linger", longer)
    with looptap.Agent("paced", budget=float("inf")) as agent, looptap.attach("paced") as run:
        streams = [run.stream("step", on="batch"), run.stream("step, text", on="batch")]
        agent.emit("batch", step=0, text="x")
        for stream in streams:
            stream.wait(1)
        (client,) = parts_of(agent).dispatcher.clients.values()

        def rests() -> bool:
            forget(*streams)
            return client.patience == UNSEEN_SECONDS

        soon(rests)
        for step in range(1, 20_000):
            agent.emit("batch", step=step, text="x")
        for stream in streams:
            soon(lambda stream=stream: stream.feed.arrived > 10_000)
            assert stream.dropped == 0
