"""A server with an echoing handler and its clients: real sockets and real keys."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from looptap.agent.io.server_socket import SendResult
from looptap.agent.io.server_thread import ServerThread
from looptap.protocol.keys import KeyPair, RoleKeys
from looptap.protocol.limits import Limits

WAIT = 60.0
"""Seconds until a test gives up on a condition."""

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)


class Echo:
    """A request handler that records frames and sends them back from ``values``."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.peers: dict[bytes, str] = {}
        self.lost: list[bytes] = []
        self.values: list[bytes] = []
        self.sent: dict[SendResult, int] = dict.fromkeys(SendResult, 0)
        self.flushes = self.beats = 0
        self.pause = 0.02
        self.echoes = True
        self.link: ServerThread

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        self.peers[peer] = role
        self.heard.append((role, frame))
        if self.echoes:
            self.send(peer, frame)

    def on_disconnect(self, peer: bytes) -> None:
        self.peers.pop(peer, None)
        self.lost.append(peer)

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        sent = self.link.send(peer, frame)
        self.sent[sent] += 1
        if sent is SendResult.GONE:
            self.on_disconnect(peer)
        return sent

    def flush(self, seconds: float = 0.0, fresh: bool = True) -> bool:
        self.flushes += 1
        frames, self.values = self.values[:10], self.values[10:]
        for peer in list(self.peers):
            for frame in frames:
                self.send(peer, frame)
        return bool(self.values)

    def is_idle(self) -> bool:
        return not self.values

    def on_heartbeat_timer(self) -> None:
        self.beats += 1

    def mark_scalars(self, now: float) -> float:
        return math.inf

    def linger(self, *, steady: bool = False) -> float:
        return min(self.pause, 0.02) if steady else self.pause

    def goodbye(self) -> None:
        while self.flush():
            pass
        for peer in list(self.peers):
            self.send(peer, b"goodbye")


class Wire:
    """One server and its clients; everything is closed at the end of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.handler, self.keys = Echo(), RoleKeys.fresh("operator")
        self.context = zmq.Context()
        self.link: ServerThread
        self.links: list[ServerThread] = []
        self.clients: list[zmq.Socket[bytes]] = []

    def open(self, endpoint: str | None = None, handler: Any = None, **options: Any) -> ServerThread:
        """Start a server, which becomes ``wire.link``.

        By default it has a handler of its own, ``wire.handler``, for only a server's thread may send on its sockets.
        """
        options = {"keys": self.keys, "limits": Limits(), "directory": self.directory} | options
        self.handler = handler or (Echo() if self.links else self.handler)
        self.link = link = self.handler.link = ServerThread(self.handler, endpoint=endpoint, **options)
        self.links.append(link)
        link.start()
        return link

    def dial(
        self, client: KeyPair | None = None, server: bytes | None = None, endpoint: str = "", **options: Any
    ) -> zmq.Socket[bytes]:
        """Return a client that connects with the right keys, unless others are given."""
        client = client or self.keys.client
        options = {
            "curve_serverkey": server or self.keys.server.public,
            "curve_publickey": client.public,
            "curve_secretkey": client.secret,
        } | options
        return self.raw(endpoint or self.link.endpoints[0], **options)

    def raw(self, endpoint: str, **options: Any) -> zmq.Socket[bytes]:
        """Return a client with exactly these socket options."""
        socket = self.context.socket(zmq.DEALER)
        self.clients.append(socket)
        socket.linger, socket.rcvtimeo, socket.sndtimeo = 0, int(WAIT * 1000), int(WAIT * 1000)
        for name, value in options.items():
            setattr(socket, name, value)
        if endpoint:
            socket.connect(endpoint)
        return socket

    def is_turned_away(self, client: zmq.Socket[bytes], act: Callable[[], object]) -> bool:
        """Return True if ``act``'s connection fails or ends, by libzmq's monitor."""
        with client.get_monitor_socket(FAILED) as monitor:
            act()
            ended = bool(monitor.poll(int(WAIT * 1000)))
            client.disable_monitor()
        return ended

    def is_refused(self, endpoint: str, **options: Any) -> bool:
        """Connect and send with these socket options; return whether that was refused."""
        with self.raw("", **options) as client:

            def act() -> None:
                client.connect(endpoint)
                with contextlib.suppress(zmq.Again):  # turned away already
                    client.send(b"let me in", zmq.NOBLOCK)

            return self.is_turned_away(client, act)

    def close(self) -> None:
        for link in self.links:
            link.stop()
        for client in self.clients:
            client.close(0)
        self.context.term()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a private directory with a short path: a socket's may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="lt-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def wire(directory: Path) -> Iterator[Wire]:
    """Return a `Wire`, which the test opens."""
    before = threading.enumerate()
    with contextlib.closing(Wire(directory)) as made:
        yield made
    assert not [t for t in threading.enumerate() if t.name == "looptap-io" and t not in before]
