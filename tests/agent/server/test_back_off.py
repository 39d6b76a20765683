"""Clients that cannot be written to are retried rarely, which bounds their cost."""

from __future__ import annotations

import time

import pytest

from looptap.agent.io.server_socket import SendResult
from looptap.agent.server import subscription
from looptap.agent.server.subscription import (
    RETRY_DELAY_SECONDS,
    VIEWER_RETRY_DELAY_SECONDS,
    VIEWER_STALL_TIMEOUT_SECONDS,
    ClientSession,
)
from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.testing import pair, parts_of


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(subscription, "time", found)
    monkeypatch.setattr("looptap.agent.server.exporter.time", found)
    return found


def test_a_client_without_room_is_tried_again_after_a_while_and_a_viewer_ever_later(clock):
    operator, viewer = ClientSession(b"o", OPERATOR, "o"), ClientSession(b"v", VIEWER, "v")
    pauses = []
    for _ in range(12):
        operator.back_off()
        viewer.back_off()
        assert operator.full_until == pytest.approx(clock.now + RETRY_DELAY_SECONDS)
        pauses.append(viewer.full_until - clock.now)
        for client in (operator, viewer):
            assert client.is_stalled(client.full_until - 1e-6, 1 << 30)
            assert not client.is_stalled(client.full_until, 1 << 30)
    assert pauses[:3] == pytest.approx(
        [VIEWER_RETRY_DELAY_SECONDS, 2 * VIEWER_RETRY_DELAY_SECONDS, 4 * VIEWER_RETRY_DELAY_SECONDS]
    )
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(VIEWER_STALL_TIMEOUT_SECONDS)
    viewer.refusals = 0
    viewer.back_off()
    assert viewer.full_until == pytest.approx(clock.now + VIEWER_RETRY_DELAY_SECONDS)


def test_a_client_that_confirms_nothing_is_sent_no_more_values():
    client = ClientSession(b"o", OPERATOR, "o", sent_bytes=100, got_bytes=1)
    assert not client.is_stalled(0.0, 100)
    client.got_bytes = 0
    assert client.is_stalled(0.0, 100)
    client.got_bytes = 50
    assert not client.is_stalled(0.0, 100)
    client.unsent_replies.append(b"answer")
    assert client.is_stalled(0.0, 100)
    client.unsent_replies.clear()
    client.disconnected = True
    assert client.is_stalled(0.0, 100)


def test_without_room_nothing_is_tried_until_the_pause_is_over_and_nothing_is_lost(clock):
    agent, run = pair("slow")
    stream = run.stream("step", on="batch")
    agent.emit("batch", step=0)
    assert stream.values == [0]
    real, tries = parts_of(agent).dispatcher.send, []

    def full(peer, frame):
        tries.append(clock.now)
        return SendResult.FULL

    parts_of(agent).dispatcher.send = full
    for step in range(1, 50):  # each event rings, and has the I/O thread look
        agent.emit("batch", step=step)
    assert len(tries) == 1, f"tried {len(tries)} times while there was no room"
    clock.now += RETRY_DELAY_SECONDS / 2
    parts_of(agent).dispatcher.flush()
    assert len(tries) == 1
    clock.now += RETRY_DELAY_SECONDS
    parts_of(agent).dispatcher.flush()
    assert len(tries) == 2
    (client,) = parts_of(agent).dispatcher.clients.values()
    assert client.refusals == 2
    parts_of(agent).dispatcher.send = real
    parts_of(agent).dispatcher.flush()
    assert stream.values == [0]
    clock.now += RETRY_DELAY_SECONDS
    agent.emit("batch", step=50)
    agent.emit("epoch")
    assert stream.values == list(range(51))
    assert (stream.dropped, client.refusals) == (0, 0)
    agent.close()
