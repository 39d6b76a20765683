"""Clients that ask for the same: one evaluation, the values that each had alone."""

from __future__ import annotations

import threading
from array import array
from typing import Any

import pytest
from counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_wire import Wire

from looptap.agent.server import encoded_batches, subscription_manager
from looptap.protocol import messages as m
from looptap.protocol.values.unpacking import unpack_values
from looptap.streams.operators.windows import Count, Group

PEERS = tuple(b"peer%d" % number for number in range(4))
QUERIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("step, loss", {}), ("loss * 2", {"every": 3}), ("1 / (step % 4)", {}), ("step if step % 3 else [step]", {}),
    ("mean(e.loss for e in events)", {"window": Group()}), ("len(events), sum(e.loss for e in events)", {}),
    ("median(e.loss for e in events)", {"window": Group(), "every": 2}),
    ("max(e.loss for e in events)", {"window": Count(3)}), ("[e.step for e in events]", {"window": Count(5)}),
    ("mean(e.loss for e in recent(3))", {}), ("loss", {"throttle": 1.0}),
    ("step, loss", {"when": m.Code("step % 5 == 0")}),
    ("step, loss", {"when": m.Code("step % 7 == 0"), "before": 2, "after": 1}),
)  # fmt: skip
"""Rows, errors, values that are no columns, windows of both kinds; the last four cannot be shared."""

STREAM_NUMBERS = 10_000
"""Numbers that are set aside for each stream, so that they tell streams apart."""

numbers = st.integers(1, 2)
peers = st.sampled_from(PEERS)


def steps(queries: list[Any]) -> st.SearchStrategy[list[Any]]:
    """Return scripts whose clients ask for few queries, and so for the same."""
    attach = st.tuples(st.just("attach"), peers, numbers, st.sampled_from(queries))
    emit, epoch = st.tuples(st.just("emit"), st.integers(1, 12)), st.tuples(st.just("epoch"))
    step = st.one_of(
        attach, attach, attach, emit, emit, emit, epoch, epoch, st.tuples(st.just("deliver")),
        st.tuples(st.just("beat")), st.tuples(st.just("beat")),
        st.tuples(st.just("detach"), peers, numbers), st.tuples(st.just("leave"), peers),
        st.tuples(st.just("close window"), peers, numbers), st.tuples(st.just("grant"), peers, numbers),
        st.tuples(st.just("slow"), peers), st.tuples(st.just("fast"), peers),
    )  # fmt: skip
    return st.lists(step, min_size=10, max_size=60)


scripts = st.lists(st.sampled_from(QUERIES), min_size=1, max_size=2).flatmap(steps)
scripts_without_recorders = st.lists(st.sampled_from(QUERIES[:-2]), min_size=1, max_size=2).flatmap(steps)
"""A recorder that has lost values numbers those that follow differently."""


class Job:
    """A job that follows a script; with ``shared`` its clients share queries."""

    def __init__(self, shared: bool, **limits: int) -> None:
        self.shared, self.step, self.generation = shared, 0, 0
        self.wire = Wire(clock=lambda: 1.0 + self.step / 8, **limits)
        self.streams: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        for evaluator in (self.wire.parts.sources.evaluator, self.wire.parts.sources.unobserved):
            evaluator.max_pending = 20
        if not shared:
            self.wire.dispatcher.subscriptions._shared.add = lambda *_: None
        self.lives: dict[bytes, bytes] = {}

    def follow(self, script: list[Any]) -> Job:
        for name, *how in [*script, *(("fast", peer) for peer in PEERS), ("emit", 3), ("epoch",), ("deliver",)]:
            getattr(self, name.replace(" ", "_"))(*how)
        for peer in list(self.lives):
            for number in (1, 2):
                self.detach(peer, number)
        self.deliver()
        self.wire.agent.close()
        return self

    def emit(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            self.wire.agent.emit("batch", step=self.step, loss=(self.step * 37 % 11) / 7)

    def epoch(self) -> None:
        self.wire.agent.emit("epoch")

    def deliver(self) -> None:
        for client in self.wire.dispatcher.clients.values():
            client.full_until = 0.0
        self.wire.deliver()

    def beat(self) -> None:
        self.wire.dispatcher.on_heartbeat_timer()

    def attach(self, peer: bytes, number: int, query: tuple[str, dict[str, Any]]) -> None:
        if peer not in self.lives:
            self.generation += 1
            self.lives[peer] = peer + b".%d" % self.generation
            self.wire.client(self.lives[peer])
        if self.wire.dispatcher.clients[self.lives[peer]].streams.get(number) is None:
            self.generation += 1
            code, how = query
            how = {"above": STREAM_NUMBERS * self.generation, **how}
            self.wire.tell(self.lives[peer], m.Attach(self.generation, number, m.Code(code), "batch", **how))

    def detach(self, peer: bytes, number: int) -> None:
        if peer in self.lives:
            self.wire.tell(self.lives[peer], m.Detach(9, number))

    def leave(self, peer: bytes) -> None:
        if peer in self.lives:
            self.wire.tell(self.lives.pop(peer), m.Leave())

    def close_window(self, peer: bytes, number: int) -> None:
        if peer in self.lives:
            self.wire.tell(self.lives[peer], m.CloseWindow(9, number))

    def grant(self, peer: bytes, number: int) -> None:
        if peer in self.lives:
            self.wire.tell(self.lives[peer], m.Grant(9, number, 0.5))

    def slow(self, peer: bytes) -> None:
        if peer in self.lives:
            self.wire.full.add(self.lives[peer])

    def fast(self, peer: bytes) -> None:
        self.wire.full.discard(self.lives.get(peer))

    def values(self) -> dict[tuple[bytes, int], dict[int, Any]]:
        """Return each client's values by number, of each of its streams."""
        found: dict[tuple[bytes, int], dict[int, Any]] = {}
        for peer in sorted({peer for peer, _ in self.wire.frames}):
            for message in self.wire.said(m.Values, to=peer):
                values = unpack_values(message.form, message.values)
                events, times = array("q", message.events), array("d", message.times)
                flags = message.flags or bytes(len(values))
                mine = found.setdefault((peer, message.stream), {})
                for place, one in enumerate(zip(events, times, map(repr, values), flags, strict=True)):
                    assert message.first + place not in mine, "a value came twice"
                    mine[message.first + place] = one
        return found

    def ends(self) -> dict[tuple[bytes, int], Any]:
        """Return how each stream ended, by client and the number before its values."""
        return {
            (peer, status.last // STREAM_NUMBERS * STREAM_NUMBERS): (
                status.last, status.dropped, status.skipped, status.errors, status.withheld, status.filtered,
                status.reached, status.traceback, status.reason, status.notes,
            )
            for peer in sorted({peer for peer, _ in self.wire.frames})
            for status in self.wire.said(m.Status, to=peer)
            if status.state == "ended"
        }  # fmt: skip


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts)
def test_each_client_gets_what_it_would_have_had_alone(script):
    together, alone = Job(shared=True).follow(script), Job(shared=False).follow(script)
    assert together.values() == alone.values()
    assert together.ends() == alone.ends()
    assert together.wire.dispatcher.outbox.pending_bytes() == 0


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts_without_recorders, st.integers(1, 40))
def test_a_client_that_does_not_read_loses_its_oldest_values_alone(script, room):
    """Each number is a value that it would have had alone, or is counted."""
    together = Job(shared=True, outbox_values=room).follow(script)
    prompt = [step for one in script for step in (("deliver",), one)]  # so that none is still on its way at an end
    whole = Job(shared=False).follow(prompt).values()
    found = together.values()
    for key, values in found.items():
        assert values.items() <= whole[key].items()
    for (peer, base), (last, dropped, *_) in together.ends().items():
        came = [number for (of, _), values in found.items() if of == peer for number in values]
        assert len([number for number in came if base < number <= last]) + dropped == last - base
    assert together.wire.dispatcher.outbox.pending_bytes() == 0


# ---------------------------------------------------------------- what is shared


@pytest.fixture
def job():
    found = Job(shared=True)
    yield found
    found.wire.agent.close()


@pytest.fixture
def packed(monkeypatch):
    """Count the batches that are packed."""
    found, pack = [], encoded_batches.pack_values
    monkeypatch.setattr(encoded_batches, "pack_values", lambda *how, **more: found.append(1) or pack(*how, **more))
    return found


def queries(job: Job) -> int:
    """Return the number of queries that each event is evaluated by."""
    return len(job.wire.parts.sources.open("batch").queries)


@pytest.mark.parametrize("query", [QUERIES[0], QUERIES[1], QUERIES[2], QUERIES[7]])
def test_clients_that_ask_for_the_same_share_one_evaluation_and_one_encoding(job, packed, query):
    for peer in PEERS:
        job.attach(peer, 1, query)
    assert queries(job) == 1
    job.emit(60)
    job.deliver()
    values = job.values()
    assert len(values) == len(PEERS)
    assert len({str([*one.values()]) for one in values.values()}) == 1
    assert len(packed) == max(len(job.wire.said(m.Values, to=job.lives[peer])) for peer in PEERS)


@pytest.mark.parametrize("query", QUERIES[9:])
def test_queries_that_remember_earlier_events_are_not_shared(job, query):
    for peer in PEERS:
        job.attach(peer, 1, query)
    assert queries(job) == len(PEERS)


@pytest.mark.parametrize("how", [how for text, how in QUERIES if text == "step, loss" and how] + [{"every": 3}])
def test_a_query_of_the_same_text_with_other_options_is_another_one(job, how):
    job.attach(PEERS[0], 1, ("step, loss", {}))
    job.attach(PEERS[1], 1, ("step, loss", how))
    job.emit(12)
    job.deliver()
    plain, other = (len(values) for values in job.values().values())
    assert plain == 12
    assert 0 < other < 12


@pytest.mark.parametrize("query", QUERIES[4:7])
def test_a_client_that_comes_in_mid_window_shares_the_next_one(job, query):
    job.attach(PEERS[0], 1, query)
    job.emit(5)
    job.attach(PEERS[1], 1, query)
    assert queries(job) == 2  # its first window is another one
    job.emit(3)
    job.beat()
    assert queries(job) == 2
    job.epoch()
    job.emit(4)
    job.beat()
    assert queries(job) == 1
    job.emit(4)
    job.epoch()
    job.deliver()
    first, second = job.values().values()
    assert [flags for *_, flags in second.values()] == [1, 0]
    assert [*first.values()][1:] == [*second.values()][1:]


def test_readers_of_a_declared_stream_share_its_encoding(job, packed):
    job.wire.agent.stream("both", "step, loss", on="batch")
    job.emit(10)
    for number, peer in enumerate(PEERS):
        job.lives[peer] = peer
        job.wire.client(peer)
        job.wire.tell(peer, m.Read(number, 1, "both", above=2 * number))
    job.emit(30)
    job.deliver()
    before = len(packed)
    for _ in range(5):
        job.emit(30)
        job.deliver()
    assert len(packed) - before <= 11  # two batches a round, once for all four readers; and a first one that was cut
    assert [len(values) for values in job.values().values()] == [190 - 2 * number for number in range(len(PEERS))]


def test_a_client_can_leave_a_shared_window_while_an_event_does_not_end(job, monkeypatch):
    monkeypatch.setattr(subscription_manager, "PAUSE_TIMEOUT_SECONDS", 0.01)
    for peer in PEERS[:2]:
        job.attach(peer, 1, QUERIES[4])
    job.emit(3)
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with job.wire.parts.sources.lock:
            inside.set()
            go_on.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(30)
    job.detach(PEERS[0], 1)
    go_on.set()
    thread.join()
    job.epoch()
    job.deliver()
    assert not job.wire.said(m.Failed)
    assert [status.state for status in job.wire.said(m.Status, to=job.lives[PEERS[0]])][-1] == "ended"
    assert [len(values) for values in job.values().values()] == [1]  # of the other one, whole


def test_a_budget_is_the_clients_own(job):
    for peer in PEERS[:2]:
        job.attach(peer, 1, QUERIES[4])
    job.emit(3)
    job.grant(PEERS[0], 1)
    assert queries(job) == 2
    assert {query.account.grant for query in job.wire.parts.sources.open("batch").queries} == {0.5, None}
    job.epoch()
    job.deliver()
    first, second = job.values().values()
    assert [*first.values()] == [*second.values()]
