"""The exporter: order, frame sizes, and isolation of clients without room."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
from memory_wire import Wire

from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.server import exporter as exporter_module
from looptap.agent.server import subscription as subscription_module
from looptap.agent.server.exporter import LARGE_VALUE_BYTES, MAX_BATCH_VALUES, MAX_IN_FLIGHT_BYTES, TYPICAL_BATCH_VALUES
from looptap.agent.server.subscription import RETRY_DELAY_SECONDS, VIEWER_RETRY_DELAY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.codec import decode_from_agent, encode
from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.streams.flags import REPEATED
from looptap.streams.stream.attention import PROMPT_SECONDS
from looptap.testing import Clock, pair, parts_of

A, B = b"a", b"b"


@pytest.fixture
def wire():
    found = Wire()
    yield found
    found.agent.close()


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock of the exporter."""
    import time

    class Stopped(Clock):
        def monotonic(self):
            return self.now

        def __getattr__(self, name):
            return getattr(time, name)

    found = Stopped()
    for module in (exporter_module, subscription_module):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.mark.parametrize("count", [600, 3000, 20_000])
def test_all_that_waits_at_a_flush_is_sent_before_further_values_gather(wire, count):
    wire.client(A)
    wire.attach(A, code="step, loss")
    wire.parts.sources.evaluator.max_pending = 512
    wire.emit(*range(count), loss=0.5)
    fresh = True
    while wire.dispatcher.flush(0.0, fresh):  # as the reactor does, without a pause for more
        fresh = False
    assert [step for step, _ in wire.values(A)] == list(range(count))


def test_an_event_that_comes_during_a_flush_gathers_for_the_next_one(wire):
    wire.client(A)
    wire.attach(A, code="step, loss")
    evaluator, meanwhile = wire.parts.sources.evaluator, [20, 21]
    evaluator.max_pending = 512
    wire.emit(*range(20), loss=0.5)
    evaluator.catch_up(lambda: [wire.emit(meanwhile.pop(0), loss=0.5) for _ in meanwhile[:1]])
    assert not meanwhile
    assert evaluator.pending() == 2
    wire.deliver()
    assert [step for step, _ in wire.values(A)] == list(range(22))


def test_a_flush_evaluates_the_events_of_all_types(wire):
    wire.client(A)
    kinds = [f"kind{number}" for number in range(10)]
    for number, kind in enumerate(kinds, 1):
        wire.tell(A, m.Attach(number, number, m.Code("step, loss"), kind))
        wire.agent.emit(kind, step=0, loss=0.5)
    wire.deliver()
    wire.parts.sources.evaluator.max_pending = 512
    for kind in kinds:
        wire.agent.emit(kind, step=1, loss=0.5)
    assert wire.parts.sources.evaluator.pending() == 10
    wire.dispatcher.flush()
    assert wire.parts.sources.evaluator.pending() == 0


def test_columns_of_many_streams_share_a_frame(wire):
    wire.client(A)
    for number, code in enumerate(("step, loss", "loss", "step"), 1):
        wire.attach(A, number, code=code)
    wire.emit(0, loss=0.5)
    wire.deliver()
    wire.frames.clear()
    wire.parts.sources.evaluator.max_pending = 512
    wire.emit(*range(1, 500), loss=0.5)
    assert not wire.dispatcher.flush(0.0, True)
    assert wire.counts() == [[499] * 3]


@pytest.mark.parametrize(("version", "form"), [((2, 0), m.ROWS), (m.COLUMNS_SINCE, m.COLUMNS), ((2, 99), m.COLUMNS)])
def test_values_go_in_columns_to_clients_that_know_them(wire, version, form):
    wire.client(A, version=version)
    wire.attach(A, code="step, loss")
    wire.emit(*range(20), loss=0.5)
    wire.deliver()
    assert {message.form for message in wire.said(m.Values)} == {form}
    assert wire.values(A) == [(step, 0.5) for step in range(20)]


def test_a_client_that_comes_back_as_an_older_one_is_sent_what_it_knows(wire):
    wire.client(A, token="same")
    wire.attach(A, code="step, loss")
    wire.client(B, token="same", version=(2, 0), streams=(1,))
    wire.emit(*range(20), loss=0.5)
    wire.deliver()
    assert {message.form for message in wire.said(m.Values, to=B)} == {m.ROWS}


def ready(wire, *peers, **more):
    """Add clients with a stream each, which they know of."""
    clients = [wire.client(peer) for peer in peers]
    for peer in peers:
        wire.attach(peer, **more)
    wire.deliver()
    wire.frames.clear()
    return clients


# ---------------------------------------------------------------- the window


def test_unconfirmed_bytes_are_bounded_and_the_rest_follows_in_order():
    wire = Wire(in_flight_bytes=1)  # the least that a client gets
    (client,) = ready(wire, A, code="text")
    texts = [f"{step:04}" * 10_000 for step in range(60)]
    for text in texts:
        wire.emit(0, text=text)
    assert wire.deliver() is True  # more waits for the client
    unread = sum(len(frame) for _, frame in wire.frames)
    largest = max(len(frame) for _, frame in wire.frames)
    assert MAX_IN_FLIGHT_BYTES <= unread < MAX_IN_FLIGHT_BYTES + largest
    assert client.sent_bytes == unread
    assert not wire.dispatcher.heartbeat.confirmed()
    sent = len(wire.frames)
    wire.tell(A, m.Got(unread - MAX_IN_FLIGHT_BYTES))
    assert len(wire.frames) == sent
    wire.tell(A, m.Got(unread - MAX_IN_FLIGHT_BYTES + 1))
    assert len(wire.frames) == sent + 1
    while wire.deliver():
        wire.tell(A, m.Got(client.sent_bytes))
    assert wire.values(A) == texts
    assert client.sent_bytes == sum(len(frame) for _, frame in wire.frames)
    wire.tell(A, m.Got(client.sent_bytes))
    assert wire.dispatcher.heartbeat.confirmed()
    wire.agent.close()


def test_operators_share_what_may_be_in_flight_and_viewers_take_nothing_of_it():
    wire = Wire(in_flight_bytes=8 << 20)
    one = wire.client(A)
    assert wire.exporter.window()(one) == 8 << 20
    viewers = [wire.client(b"viewer %d" % n, VIEWER) for n in range(3)]
    assert [wire.exporter.window()(client) for client in (one, *viewers)] == [8 << 20, *[MAX_IN_FLIGHT_BYTES] * 3]
    wire.client(B)
    assert [wire.exporter.window()(client) for client in (one, *viewers)] == [4 << 20, *[MAX_IN_FLIGHT_BYTES] * 3]
    for n in range(14):
        wire.client(b"operator %d" % n)
    assert wire.exporter.window()(one) == MAX_IN_FLIGHT_BYTES
    for n in range(14):
        wire.tell(b"operator %d" % n, m.Leave())
    wire.tell(B, m.Leave())
    assert wire.exporter.window()(one) == 8 << 20
    wire.agent.close()


def test_at_the_end_of_the_run_values_are_sent_before_final_states():
    wire = Wire(in_flight_bytes=1)
    ready(wire, A, B, code="text")
    texts = [f"{step:04}" * 10_000 for step in range(60)]
    for text in texts:
        wire.emit(0, text=text)
    assert wire.deliver() is True
    wire.agent.close("the job is done")
    for peer in (A, B):
        assert wire.values(peer) == texts
        *_, status, goodbye = wire.said(to=peer)
        assert (status.state, status.reason, goodbye) == ("ended", "the job is done", m.Goodbye("the job is done"))
    assert wire.exporter.streams == {}


# ---------------------------------------------------------------- clients beside each other


@pytest.mark.parametrize("how", ["silent", "full", "gone"])
def test_a_client_that_does_not_read_delays_no_other(how):
    wire = Wire(in_flight_bytes=1)
    wire.client(A, token="back soon")
    wire.attach(A, code="text")
    (reader,) = ready(wire, B, code="text")
    if how != "silent":
        {"full": wire.full, "gone": wire.gone}[how].add(A)
    texts = [f"{step:04}" * 10_000 for step in range(60)]
    for text in texts:
        wire.emit(0, text=text)
        wire.deliver()
        wire.tell(B, m.Got(reader.sent_bytes))
        assert wire.values(B)[-1] == text
    assert wire.values(B) == texts
    assert len(wire.values(A)) < 40
    assert wire.dispatcher.flush() is (how != "gone")  # who is gone is not waited for
    assert wire.dispatcher.is_idle()
    wire.emit(0, text="more")
    assert not wire.dispatcher.is_idle()
    wire.agent.close()


def test_clients_take_turns_and_a_flush_says_whether_more_can_be_sent(wire):
    ready(wire, A, B)
    assert wire.dispatcher.flush() is False
    wire.emit(*range(2_000))
    said = [wire.dispatcher.flush()]
    assert not wire.dispatcher.is_idle()
    said += [wire.dispatcher.flush() for _ in range(7)]
    assert [peer for peer, _ in wire.frames] in ([A, B] * 4, [B, A] * 4)
    assert said == [True] * 7 + [False]
    assert wire.dispatcher.flush() is False
    assert wire.values(A) == wire.values(B) == list(range(2_000))


def test_a_client_that_leaves_in_between_is_sent_nothing_more(wire):
    ready(wire, A, B)
    wire.emit(*range(2_000))
    wire.dispatcher.flush()
    wire.tell(A, m.Leave())
    assert wire.deliver() is False
    assert Counter(peer for peer, _ in wire.frames)[A] <= 1
    assert wire.values(B) == list(range(2_000))
    assert [stream.client.peer for stream in wire.exporter.streams] == [B]
    assert len(wire.parts.sources.by_name["batch"].queries) == 1


def test_a_client_back_over_another_link_gets_the_pending_values(wire):
    wire.client(A, token="mine")
    wire.attach(A)
    wire.deliver()
    wire.gone.add(A)
    wire.emit(1)
    wire.deliver()
    wire.emit(2, 3)
    tries = wire.tries[A]
    assert wire.deliver() is False
    assert wire.tries[A] == tries
    wire.client(B, token="mine", streams=(1,))
    assert wire.deliver() is False
    assert wire.values(B) == [1, 2, 3]


def test_a_client_without_room_is_waited_for_beside_a_disconnected_one(wire):
    for peer in (A, B):
        wire.client(peer, token=peer.decode())
        wire.attach(peer)
    wire.deliver()
    wire.gone.add(B)
    wire.emit(1)
    wire.deliver()
    wire.full.add(A)
    wire.emit(2)
    assert [wire.dispatcher.flush() for _ in range(4)] == [True] * 4


def test_a_client_that_never_returns_leaves_nothing_behind(wire):
    ready(wire, A)
    wire.gone.add(A)
    wire.emit(1)
    wire.deliver()
    assert (wire.exporter.streams, wire.dispatcher.clients) == ({}, {})
    assert wire.parts.sources.by_name["batch"].queries == ()
    assert wire.dispatcher.outbox.pending_bytes() == 0


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize(
    ("many", "frames"),
    [
        (1, [1]), (TYPICAL_BATCH_VALUES, [512]), (2_000, [512, 512, 512, 464]),
        (10_000, [2500, 1875, 1406, 1054, 791, 593]), (80_000, [MAX_BATCH_VALUES]),
    ],
)  # fmt: skip
def test_a_message_holds_512_values_or_a_quarter_of_what_waits(wire, many, frames):
    ready(wire, A)
    wire.emit(*range(many))
    assert wire.deliver() is False
    assert [count for (count,) in wire.counts()][: len(frames)] == frames
    assert wire.values(A) == list(range(many))


def test_a_message_of_large_values_is_bounded_in_bytes(wire):
    ready(wire, A, code="text")
    wire.emit(*range(40), text="x" * 20_000)
    assert wire.deliver() is False
    sizes = [len(frame) for _, frame in wire.frames]
    assert max(sizes) <= LARGE_VALUE_BYTES
    assert len(sizes) == 4
    wire.frames.clear()
    wire.emit(1, 2, 3, text="x" * 300_000)
    assert wire.deliver() is False
    assert wire.counts() == [[1], [1], [1]]


def test_streams_with_little_share_a_frame_and_with_much_take_turns(wire):
    wire.client(A)
    for number in range(1, 51):
        wire.attach(A, number)
    assert wire.dispatcher.flush() is True
    assert len(wire.said(m.Status)) == 16  # as much work as 512 values
    wire.deliver()
    assert [status.stream for status in wire.said(m.Status)] == list(range(1, 51))
    wire.frames.clear()
    wire.emit(0)
    wire.deliver()
    assert [len(one) for one in wire.counts()] == [31, 19]
    wire.frames.clear()
    wire.emit(*range(1, 11))
    assert wire.deliver() is False
    assert [len(one) for one in wire.counts()] == [20, 20, 10]
    assert sorted(one.stream for one in wire.said(m.Values)) == list(range(1, 51))
    wire.frames.clear()
    wire.emit(*range(11, 1_011))
    wire.deliver()
    assert sorted([one.stream for one in wire.said(m.Values)][:50]) == list(range(1, 51))
    assert all(wire.values(A, number) == list(range(11, 1_011)) for number in range(1, 51))


def test_one_stream_with_values_is_no_bundle_and_two_are(wire):
    ready(wire, A)
    wire.emit(1)
    wire.deliver()
    wire.attach(A, 2)
    wire.deliver()
    wire.emit(2)
    wire.deliver()
    kinds = [type(decode_from_agent(frame)) for _, frame in wire.frames]
    assert [kind for kind in kinds if kind in (m.Values, m.Bundle)] == [m.Values, m.Bundle]


def test_large_values_of_several_streams_go_in_several_frames(wire):
    wire.client(A)
    for number in (1, 2, 3):
        wire.attach(A, number, "text")
    wire.deliver()
    wire.frames.clear()
    wire.emit(1, text="x" * 200_000)
    assert wire.deliver() is False
    assert wire.counts() == [[1, 1], [1]]  # 400 kB: no third one


def test_values_carry_the_rank_and_bytes_are_counted(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_PORT", "29500")
    wire = Wire()
    before = wire.exporter.sent_bytes
    assert before == 0
    (client,) = ready(wire, A)
    reported = wire.exporter.sent_bytes - before
    assert reported > 0
    assert client.sent_bytes == 0  # a client confirms values alone
    wire.emit(*range(600))
    wire.deliver()
    sent = sum(len(frame) for _, frame in wire.frames)
    assert (client.sent_bytes, wire.exporter.sent_bytes - before - reported) == (sent, sent)
    assert {one.rank for one in wire.said(m.Values)} == {3}
    wire.agent.close()


# ---------------------------------------------------------------- no room


@pytest.mark.parametrize(("role", "pause"), [(OPERATOR, RETRY_DELAY_SECONDS), (VIEWER, VIEWER_RETRY_DELAY_SECONDS)])
def test_without_room_a_client_is_tried_again_after_its_pause_and_loses_nothing(clock, role, pause):
    wire = Wire()
    wire.agent.stream("steps", "step", on="batch")
    wire.client(B)
    wire.tell(B, m.DeclareStream(1, 0, "steps", export=True))
    client = wire.client(A)
    wire.tell(A, m.Read(1, 1, "steps"))
    wire.deliver()
    wire.tell(A, m.Beat(), role)
    wire.full.add(A)
    tries = wire.tries[A]
    wire.emit(*range(5))
    assert [wire.dispatcher.flush() for _ in range(3)] == [True] * 3
    assert wire.tries[A] == tries + 1
    clock.advance(pause)
    wire.dispatcher.flush()
    assert (wire.tries[A], client.refusals) == (tries + 2, 2)
    wire.full.clear()
    clock.advance(2 * pause)
    assert wire.dispatcher.flush() is False
    assert (wire.values(A), client.refusals) == (list(range(5)), 0)
    wire.agent.close()


def test_a_state_without_room_is_sent_once_when_there_is_room(clock, wire):
    wire.client(A)
    wire.attach(A, 1)
    wire.attach(A, 2)
    wire.full.add(A)
    tries = wire.tries[A]
    wire.deliver()
    wire.deliver()
    assert wire.tries[A] == tries + 1
    wire.full.clear()
    clock.advance(RETRY_DELAY_SECONDS)
    wire.deliver()
    assert sorted(status.stream for status in wire.said(m.Status)) == [1, 2]
    wire.emit(1)
    clock.advance(RETRY_DELAY_SECONDS)
    wire.deliver()
    assert len(wire.said(m.Status)) == 2
    assert wire.values(A) == wire.values(A, 2) == [1]


def test_pending_replies_come_in_order_and_before_values(clock, wire):
    (client,) = ready(wire, A)
    wire.full.add(A)
    assert wire.dispatcher.is_idle()
    wire.tell(A, m.GetClock(9))
    assert wire.parts.ready_set.wakeup_pending  # so that it is tried again soon
    for request in range(10, 15):
        wire.tell(A, m.GetClock(request))
    assert wire.tries[A] > 0
    wire.full.clear()
    wire.tell(A, m.GetClock(15))  # there is room, and it waits its turn
    wire.emit(1)
    assert wire.said(to=A) == []
    assert wire.dispatcher.flush() is True
    assert wire.said(to=A) == []  # not before the pause is over
    clock.advance(RETRY_DELAY_SECONDS)
    assert wire.deliver() is False
    answers = wire.said(to=A)
    assert [one.request for one in answers[:7]] == list(range(9, 16))
    assert [type(one) for one in answers[7:]] == [m.Values]
    assert not client.unsent_replies
    wire.tell(A, m.GetClock(16))
    assert wire.said(to=A)[-1].request == 16


def test_a_client_with_pending_replies_is_sent_one_at_a_time(clock, wire):
    ready(wire, A)
    wire.full.add(A)
    for request in (10, 11, 12):
        wire.tell(A, m.GetClock(request))
    tries = wire.tries[A]
    for _ in range(5):
        assert wire.dispatcher.flush() is True
    assert wire.tries[A] == tries
    clock.advance(RETRY_DELAY_SECONDS)
    wire.dispatcher.flush()
    assert wire.tries[A] == tries + 1
    wire.tell(A, m.Leave())
    clock.advance(60)
    assert wire.deliver() is False
    assert wire.tries[A] == tries + 1


def test_pending_replies_are_bounded_and_those_that_fit_are_kept(clock, wire):
    (client,) = ready(wire, A)
    wire.full.add(A)
    big = encode(m.Done(1)) + bytes(MAX_IN_FLIGHT_BYTES // 2)
    for _ in range(2):
        wire.exporter.answer(client, big[: MAX_IN_FLIGHT_BYTES // 2])
    assert sum(map(len, client.unsent_replies)) == MAX_IN_FLIGHT_BYTES
    wire.exporter.answer(client, b"x")
    assert len(client.unsent_replies) == 2


def test_a_client_that_leaves_with_pending_replies_is_not_waited_for(clock, wire):
    client = wire.client(A, token="mine")
    wire.full.add(A)
    wire.tell(A, m.GetClock(10))
    wire.full.clear()
    wire.gone.add(A)
    clock.advance(RETRY_DELAY_SECONDS)
    assert wire.deliver() is False
    assert client.disconnected
    tries = wire.tries[A]
    clock.advance(1.0)
    assert wire.deliver() is False
    assert wire.tries[A] == tries


def test_closing_does_not_wait_for_a_client_that_left_with_pending_replies(clock, wire):
    client = wire.client(A, token="mine")
    wire.full.add(A)
    wire.tell(A, m.GetClock(10))
    wire.gone.add(A)
    wire.dispatcher.on_heartbeat_timer()
    assert client.disconnected
    assert len(client.unsent_replies) == 1
    assert wire.deliver() is False
    clock.advance(60.0)
    tries = wire.tries[A]
    assert wire.deliver() is False
    assert wire.tries[A] == tries


# ---------------------------------------------------------------- the end of a stream


def test_a_stream_ends_behind_its_last_value_and_leaves_nothing_behind(wire):
    (client,) = ready(wire, A)
    (stream,) = wire.exporter.streams
    wire.emit(*range(1_000))
    wire.tell(A, m.Detach(2, 1))
    wire.emit(1_000)
    wire.deliver()
    assert wire.values(A) == list(range(1_000))
    assert [type(one) for one in wire.said(to=A)].count(m.Status) == 1
    assert (wire.said(to=A)[-1].state, wire.said(to=A)[-1].reason) == ("ended", "closed by the client")
    assert (wire.exporter.streams, client.streams, dict(client.ready)) == ({}, {}, {})
    assert wire.parts.sources.by_name["batch"].queries == ()
    assert wire.dispatcher.outbox.pending_bytes() == 0
    assert wire.dispatcher.is_idle()
    sent = len(wire.frames)
    wire.exporter.mark(stream)
    wire.deliver()
    assert len(wire.frames) == sent
    wire.attach(A, 1)  # the number is free
    wire.deliver()
    wire.emit(5)
    wire.deliver()
    assert wire.said(m.Values)[-1].first == 1


def test_a_failed_query_is_detached_and_its_client_knows(wire):
    ready(wire, A, code="1 / 0 if step else 1")
    wire.emit(0, *[1] * 200)
    wire.deliver()
    assert wire.parts.sources.by_name["batch"].queries == ()
    assert wire.said(m.Status)[-1].state == "failed"
    assert wire.exporter.streams == {}


def test_a_failed_query_is_detached_although_its_client_has_no_room(wire):
    ready(wire, A, code="1 / 0")
    wire.emit(*[1] * 200)
    wire.full.add(A)
    wire.deliver()
    assert wire.parts.sources.by_name["batch"].queries == ()
    assert wire.said(m.Status) == []


def test_readers_of_a_declared_stream_leave_one_by_one_and_the_query_stays(wire):
    wire.agent.stream("steps", "step", on="batch")
    ring = wire.dispatcher.declared_streams.by_name["steps"].ring
    for peer in (A, B):
        wire.client(peer)
        wire.tell(peer, m.Read(1, 1, "steps"))
    wire.deliver()
    wire.emit(*range(3))
    wire.deliver()
    assert wire.values(A) == wire.values(B) == [0, 1, 2]
    for peer in (A, B):
        assert not ring.unobserved
        wire.tell(peer, m.Detach(2, 1))
        wire.deliver()
        wire.emit(4)
        wire.deliver()
        assert (wire.values(A)[3:], wire.values(B)[3:]) == ([], [4])  # from when A had left and B had not
    assert (wire.exporter.streams, ring.unobserved) == ({}, True)
    assert len(wire.parts.sources.by_name["batch"].queries) == 1


def value_rings():
    gc.collect()
    return sum(type(one) is ValueRing for one in gc.get_objects())


def test_a_handed_over_stream_ends_with_its_last_reader_once_hidden(wire):
    ready(wire, A)
    wire.tell(A, m.DeclareStream(2, 1, "mine", export=True))
    wire.tell(A, m.DeclareStream(3, 0, "mine", export=False))
    wire.deliver()
    assert list(wire.dispatcher.declared_streams.by_name) == ["mine"]
    wire.tell(A, m.Detach(4, 1))
    wire.deliver()
    assert wire.dispatcher.declared_streams.by_name == {}
    assert wire.parts.sources.by_name["batch"].queries == ()


def test_nothing_keeps_an_ended_stream_or_a_lost_client_alive(wire):
    wire.agent.stream("steps", "step", on="batch")
    client = weakref.ref(wire.client(A, token="mine"))
    wire.attach(A)
    wire.tell(A, m.Read(2, 2, "steps"))
    wire.deliver()
    streams, queues = [weakref.ref(stream) for stream in wire.exporter.streams], value_rings()
    for number in (1, 2):
        wire.tell(A, m.Detach(number, number))
    wire.deliver()
    gc.collect()
    assert [stream() for stream in streams] == [None, None]
    assert value_rings() == queues - 1
    wire.attach(A)
    wire.deliver()
    wire.gone.add(A)
    wire.emit(1)
    wire.deliver()
    wire.emit(2)
    assert client().disconnected
    wire.deliver()
    client().last_heard -= 6_000.0
    wire.dispatcher.on_heartbeat_timer()
    assert wire.dispatcher.clients == {}
    wire.dispatcher.flush()
    gc.collect()
    assert client() is None


def test_the_end_of_one_stream_leaves_what_waits_of_another(wire):
    ready(wire, A)
    wire.attach(A, 2, "-step")
    wire.deliver()
    wire.emit(*range(600))
    wire.dispatcher.flush()
    one, two = wire.exporter.streams
    wire.exporter.remove(one)
    wire.exporter.remove(one)  # for the second time
    wire.deliver()
    assert wire.values(A, 2) == [-step for step in range(600)]
    assert list(wire.exporter.streams) == [two]


def test_a_client_learns_that_its_stream_is_live_before_its_first_value(wire):
    wire.client(A)
    wire.attach(A)
    wire.frames.clear()
    wire.emit(*range(10))
    wire.deliver()
    assert [type(one) for one in wire.said(to=A)] == [m.Status, m.Values]
    assert wire.said(m.Status)[0].state == "live"


def test_a_stream_that_is_handed_over_continues_without_a_gap(wire):
    ready(wire, A, B)
    wire.emit(1, 2)
    wire.tell(A, m.DeclareStream(2, 1, "mine", export=True))
    wire.deliver()
    assert wire.values(A) == [1, 2]  # without another event
    wire.emit(3, 4)
    wire.deliver()
    assert wire.values(A) == wire.values(B) == [1, 2, 3, 4]
    wire.emit(5)
    wire.deliver()
    assert wire.values(A) == [1, 2, 3, 4, 5]
    wire.tell(A, m.Detach(3, 1))
    wire.emit(6)
    wire.deliver()
    assert wire.values(A) == [1, 2, 3, 4, 5]
    assert wire.values(B)[-1] == 6


# ---------------------------------------------------------------- heartbeats and latency


def test_a_heartbeat_sends_a_stream_state_only_if_it_changed(wire):
    ready(wire, A, B)
    wire.attach(B, 2, "step", throttle=1e9)
    wire.deliver()
    wire.dispatcher.on_heartbeat_timer()
    wire.deliver()
    wire.frames.clear()
    wire.dispatcher.on_heartbeat_timer()
    wire.deliver()
    assert wire.said(m.Status) == []
    wire.emit(1, 2)
    wire.deliver()
    assert wire.said(m.Status) == []
    wire.dispatcher.on_heartbeat_timer()
    wire.deliver()
    assert sorted((status.stream, status.last) for status in wire.said(m.Status)) == [(1, 2), (1, 2), (2, 1)]
    wire.frames.clear()
    wire.dispatcher.on_heartbeat_timer()
    wire.deliver()
    assert wire.said(m.Status) == []


def test_a_value_without_a_wakeup_is_sent_at_the_next_heartbeat(wire):
    ready(wire, A)
    wire.emit(1)
    wire.parts.ready_set.ready.clear()  # as when an interrupt has taken it back
    wire.deliver()
    assert wire.values(A) == []
    wire.dispatcher.on_heartbeat_timer()
    wire.deliver()
    assert wire.values(A) == [1]


def test_values_gather_unless_a_stream_wants_low_latency(wire):
    wire.client(A)
    wire.attach(A, 1)
    assert wire.dispatcher.linger() == PROMPT_SECONDS
    for number in (2, 3):
        wire.attach(A, number, latency="low")
        assert wire.dispatcher.linger() == 0.001
    for number, linger in ((1, 0.001), (2, 0.001), (3, PROMPT_SECONDS)):
        wire.tell(A, m.Detach(number, number))
        wire.deliver()
        assert wire.dispatcher.linger() == linger


def test_an_event_that_was_there_before_is_marked(wire):
    wire.emit(1, 2)
    state = wire.agent.state_dict()
    wire.emit(3, 4)
    wire.agent.load_state_dict(state)
    ready(wire, A)
    wire.emit(3, 4, 5)
    wire.deliver()
    (values,) = wire.said(m.Values)
    assert [bool(flag & REPEATED) for flag in values.flags] == [True, True, False]


def test_a_stream_behind_many_changed_ones_keeps_its_values():
    job = pair(manual=True)
    agent, run = job
    streams = [run.stream(f"(e.x + {i} for e in events if e.x < 3)", on="batch") for i in range(20)]
    parts_of(agent).sources.evaluator.max_pending = 32
    for x in range(32):
        agent.emit("batch", x=x)
    agent.close()
    job.deliver()
    assert [stream.values for stream in streams] == [[i, i + 1, i + 2] for i in range(20)]
