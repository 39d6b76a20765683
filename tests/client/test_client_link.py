"""The client's transport: connecting, and recognizing dead or foreign agents."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import socket
import threading
import weakref
from pathlib import Path

import pytest
import zmq
from relays import Proxy
from waiting import soon

from looptap.agent.io.server_socket import SendResult
from looptap.agent.io.server_thread import ServerThread as AgentLink
from looptap.client.transport.zmq_client import ZmqTransport
from looptap.protocol.errors import (
    LimitReached,
    LinkError,
    NoAnswer,
    NotLooptap,
    RefusedKey,
    RunEnded,
    WrongServer,
)
from looptap.protocol.keys import KeyPair, RoleKeys
from looptap.protocol.limits import Limits

QUICK = Limits(handshake=0.3)


class RecordingReceiver:
    """A receiver that records its calls."""

    def __init__(self):
        self.frames, self.lost, self.ended, self.ticks, self.back = [], [], [], 0, 0

    def on_frame(self, frame):
        self.frames.append(frame)

    def on_tick(self):
        self.ticks += 1

    def on_lost(self, error):
        self.lost.append(error)

    def on_back(self):
        self.back += 1

    def on_end(self, error):
        self.ended.append(error)


class Echo:
    """A request handler that sends frames back as soon as there is room."""

    def __init__(self):
        self.waiting = []

    def receive(self, peer, role, frame):
        self.waiting.append((peer, frame))
        self.flush()

    def on_disconnect(self, peer):
        pass

    def flush(self, seconds=0.0, fresh=True):
        while self.waiting and self.link.send(*self.waiting[0]) is not SendResult.FULL:
            del self.waiting[0]
        if self.waiting:
            self.link.wake()
        return bool(self.waiting)

    def is_idle(self):
        return not self.waiting

    def on_heartbeat_timer(self):
        pass

    def mark_scalars(self, now):
        return math.inf

    def linger(self, *, steady=False):
        return 0.001

    def goodbye(self):
        pass


def client_threads():
    return [thread for thread in threading.enumerate() if thread.name == "looptap-client"]


@pytest.fixture(params=[None, "tcp"], ids=["ipc", "tcp"])
def agent(request):
    keys, handler = RoleKeys.fresh("operator"), Echo()
    link = handler.link = AgentLink(handler, endpoint=request.param, keys=keys, limits=Limits())
    link.start()
    link.keys = keys
    yield link
    link.stop()


def client(agent, server=None, keys=None, **options) -> ZmqTransport:
    keys = keys or agent.keys.client
    return ZmqTransport(agent.endpoints, server or agent.keys.server.public, keys, **options)


@contextlib.contextmanager
def listener(behave):
    """Listen on a TCP port, where ``behave(connection)`` serves."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=behave, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


# ---------------------------------------------------------------- frames


def test_frames_go_both_ways_in_order(agent):
    link, receiver = client(agent), RecordingReceiver()
    link.start(receiver, 5)
    sent = [b"%d" % n for n in range(1000)]
    for frame in sent:
        link.send(frame)
    soon(lambda: len(receiver.frames) == 1000)
    assert receiver.frames == sent
    link.close()


def test_frames_sent_before_the_end_still_leave(agent):
    link, receiver = client(agent), RecordingReceiver()
    link.start(receiver, 5)
    before = agent.frames_in
    link.send(b"farewell")
    link.close()
    soon(lambda: agent.frames_in == before + 1)


def test_closing_ends_the_thread_and_may_be_done_twice(agent):
    link = client(agent)
    link.start(RecordingReceiver(), 5)
    link.close()
    link.close()
    soon(lambda: not client_threads(), detail="the thread of the link ends")


def test_a_failing_receiver_is_counted_and_gets_the_next_frame(agent):
    class Clumsy(RecordingReceiver):
        def on_frame(self, frame):
            super().on_frame(frame)
            raise ValueError("clumsy")

    link, receiver = client(agent), Clumsy()
    link.start(receiver, 5)
    link.send(b"1")
    link.send(b"2")
    soon(lambda: link.failures == 2)
    assert receiver.frames == [b"1", b"2"]
    link.close()


def test_the_receiver_is_called_once_a_second(agent):
    link, receiver = client(agent), RecordingReceiver()
    link.start(receiver, 5)
    soon(lambda: receiver.ticks >= 2)
    link.close()


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_not_use_the_link(agent):
    link = client(agent)
    link.start(RecordingReceiver(), 5)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            link.send(b"from the child")
        except LinkError as error:
            os.write(write, str(error).encode())
        link.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"another process" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    link.close()


def test_a_link_accepts_a_bounded_number_of_frames(agent):
    link = client(agent)  # not started: nothing leaves
    for _ in range(10_000):
        link.send(b"")
    with pytest.raises(LimitReached, match="10,000"):
        link.send(b"")
    link.close()


@pytest.fixture
def raw_server():
    """Return a ROUTER with CURVE that admits every client."""
    context, keys = zmq.Context(), KeyPair.fresh()
    router = context.socket(zmq.ROUTER)
    router.curve_server, router.curve_secretkey, router.linger = True, keys.secret, 0
    router.rcvtimeo = 5000
    port = router.bind_to_random_port("tcp://127.0.0.1")
    yield (
        router,
        ZmqTransport([f"tcp://127.0.0.1:{port}"], keys.public, KeyPair.fresh(), limits=Limits(outbound_message=1000)),
    )
    context.destroy(linger=0)


def test_a_message_of_many_frames_is_counted_and_not_kept(raw_server):
    router, link = raw_server
    receiver = RecordingReceiver()
    link.start(receiver, 5)
    link.send(b"hello")
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, *[b"frame"] * 5000])
    router.send_multipart([peer, b"good"])
    soon(lambda: receiver.frames)
    assert receiver.frames == [b"good"]
    assert link.refused_messages == 1
    link.close()


def test_a_frame_over_the_bound_ends_the_link(raw_server):
    router, link = raw_server
    receiver = RecordingReceiver()
    link.start(receiver, 5)
    link.send(b"hello")
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, bytes(2_000_000)])
    soon(lambda: receiver.lost)
    assert receiver.frames == []
    link.close()


# ---------------------------------------------------------------- six situations, six messages


def refusal(link, timeout=300.0):
    """Return the error of an attempt to connect, after which no thread is left."""
    with pytest.raises(LinkError) as caught:
        link.start(RecordingReceiver(), timeout)
    soon(lambda: not client_threads(), detail="the thread of the link ends")
    return caught.value


def test_a_key_that_is_not_admitted_is_a_refused_key(agent):
    error = refusal(client(agent, keys=KeyPair.fresh()))
    assert type(error) is RefusedKey
    assert "does not accept this key" in str(error)


def test_another_server_key_is_a_wrong_server(agent):
    error = refusal(client(agent, server=KeyPair.fresh().public))
    assert type(error) is WrongServer
    assert "another run took its place" in str(error)


def test_a_closed_port_means_that_the_run_has_ended(agent):
    agent.stop()
    error = refusal(client(agent))
    assert type(error) is RunEnded
    assert agent.endpoints[0] in str(error)


def speak_http(connection):
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.close()


def speak_ssh(connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    with contextlib.suppress(OSError):
        connection.recv(1000)
    connection.close()


@pytest.mark.parametrize("behave", [speak_http, speak_ssh, socket.socket.close])
def test_another_protocol_is_not_looptap(behave):
    with listener(behave) as endpoint:
        error = refusal(ZmqTransport([endpoint], KeyPair.fresh().public, KeyPair.fresh(), limits=QUICK))
    assert type(error) is NotLooptap
    assert "does not speak looptap's protocol" in str(error)


def test_zeromq_without_keys_is_not_looptap():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    error = refusal(ZmqTransport([f"tcp://127.0.0.1:{port}"], KeyPair.fresh().public, KeyPair.fresh()))
    context.destroy(linger=0)
    assert type(error) is NotLooptap


@pytest.mark.parametrize("timeout", [0.1, 0.8])
def test_silence_is_no_answer(timeout):
    held = []
    with listener(held.append) as endpoint:
        error = refusal(ZmqTransport([endpoint], KeyPair.fresh().public, KeyPair.fresh(), limits=QUICK), timeout)
    for connection in held:
        connection.close()
    assert type(error) is NoAnswer
    assert "longer timeout=" in str(error)


def test_a_malformed_endpoint_is_named():
    assert "nonsense://x" in str(refusal(ZmqTransport(["nonsense://x"], KeyPair.fresh().public, KeyPair.fresh())))


def test_an_ordinary_file_in_place_of_a_socket_is_an_ended_run(tmp_path):
    (tmp_path / "socket").touch()
    link = ZmqTransport([f"ipc://{tmp_path}/socket"], KeyPair.fresh().public, KeyPair.fresh())
    assert type(refusal(link)) is RunEnded


def test_the_second_endpoint_is_tried_when_the_first_is_dead(agent, tmp_path):
    endpoints = [f"ipc://{tmp_path}/none", *agent.endpoints]
    link, receiver = ZmqTransport(endpoints, agent.keys.server.public, agent.keys.client), RecordingReceiver()
    link.start(receiver, 5)
    link.send(b"hello")
    soon(lambda: receiver.frames)
    link.close()


# ---------------------------------------------------------------- a link that is lost


def test_a_link_that_is_cut_is_restored():
    keys, handler = RoleKeys.fresh("operator"), Echo()
    agent = handler.link = AgentLink(handler, endpoint="tcp", keys=keys, limits=Limits())
    agent.start()
    with Proxy(agent.endpoints[0]) as proxy:
        link, receiver = ZmqTransport([proxy.endpoint], keys.server.public, keys.client), RecordingReceiver()
        link.start(receiver, 5)
        for cut in range(1, 4):
            proxy.cut()
            soon(lambda cut=cut: receiver.back == cut)
            link.send(b"%d" % cut)
            soon(lambda cut=cut: receiver.frames[-1:] == [b"%d" % cut])
        assert len(receiver.lost) == 3
        assert not receiver.ended
        link.close()
    agent.stop()


@pytest.mark.parametrize("agent", ["tcp"], indirect=True)
def test_a_handshake_that_breaks_off_once_is_no_wrong_server(agent):
    with Proxy(agent.endpoints[0]) as proxy:
        proxy.greet_and_hang_up = 2  # the attempt, and the look at who that was
        link, receiver = (
            ZmqTransport([proxy.endpoint], agent.keys.server.public, agent.keys.client),
            RecordingReceiver(),
        )
        link.start(receiver, 5)
        link.send(b"hello")
        soon(lambda: receiver.frames)
        link.close()


def test_a_lost_link_is_given_up_once_the_run_is_known_to_be_gone(agent):
    link, receiver = client(agent, ended=lambda: "The run is over."), RecordingReceiver()
    link.start(receiver, 5)
    agent.stop()
    soon(lambda: receiver.ended)
    assert (type(receiver.ended[0]), str(receiver.ended[0])) == (RunEnded, "The run is over.")
    soon(lambda: not client_threads(), detail="the thread of the link ends")


def test_a_lost_link_is_tried_for_as_long_as_the_run_may_be_there(agent):
    link, receiver = client(agent), RecordingReceiver()
    link.start(receiver, 5)
    agent.stop()
    soon(lambda: receiver.lost)
    link.close()
    assert not receiver.ended
    soon(lambda: not client_threads(), detail="the thread of the link ends")


def test_a_closed_link_is_not_kept(agent):
    link = client(agent)
    link.start(RecordingReceiver(), 5)
    link.close()
    kept = weakref.ref(link)
    del link
    soon(lambda: gc.collect() is not None and kept() is None)


def test_links_leave_no_descriptors_behind(agent):
    def descriptors():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    refusal(client(agent, keys=KeyPair.fresh()))
    before = descriptors()
    for _ in range(10):
        link = client(agent)
        link.start(RecordingReceiver(), 5)
        link.close()
        refusal(client(agent, keys=KeyPair.fresh()))
    soon(lambda: descriptors() <= before + 2)
