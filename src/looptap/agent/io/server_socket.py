"""The CURVE socket for clients of one role, and its endpoints."""

from __future__ import annotations

import atexit
import enum
from pathlib import Path

import zmq
import zmq.utils.garbage

from looptap.agent.io.authenticator import DOMAIN
from looptap.agent.io.endpoints import Bound, address_of, bind, rebind
from looptap.protocol.errors import LinkError
from looptap.protocol.files.connection import private_dir
from looptap.protocol.keys import OPERATOR, KeyPair
from looptap.protocol.limits import Limits
from looptap.protocol.process.headroom import require_headroom
from looptap.protocol.process.own_descriptors import keep_for_ever

CURVE_OVERHEAD_BYTES = 33
"""Bytes that encryption adds to a frame (RFC 26)."""
ZERO_COPY_MIN_BYTES = 262_144
"""Bytes from which on libzmq reads a frame where it is: to tell when it has done so costs as much as a small copy."""
TRACKED_FRAME_MIN_BYTES, MAX_VIEWER_BYTES = 16_384, 1_048_576
"""Bytes of a frame from which on those that libzmq holds for a viewer are counted, and how many it may hold before the
next: what a hostile one says to have taken in is not to be believed."""
_MAX_TRACKED_PEERS = 64  # of which frames are counted, before those are forgotten that have none
SOCKET_MARK_BYTES = 4
"""Bytes before a peer's own name by which the sockets of an agent tell their peers apart."""


class SendResult(enum.Enum):
    """The result of sending a frame."""

    OK = "handed over to libzmq"
    FULL = "refused: as many messages as may wait for this peer do"
    GONE = "refused: this peer is not connected"


class ServerSocket:
    """A CURVE ROUTER socket with the secret of ``server``. After `open`, I/O thread."""

    def __init__(self, number: int, role: str, server: KeyPair, limits: Limits) -> None:
        self.role, self.server, self._limits = role, server, limits
        self.mark = number.to_bytes(SOCKET_MARK_BYTES, "big")
        self.bound = Bound(())
        self.router: zmq.Socket[bytes] | None = None
        self.peer, self.frames = b"", 0
        """The sender of the message being received, and the number of its frames so far."""
        self._held: dict[bytes, list[tuple[zmq.MessageTracker, int]]] = {}

    def open(self, context: zmq.Context[zmq.Socket[bytes]], wanted: str | None, directory: Path | None) -> None:
        """Listen. Raises EndpointBusy or BadEndpoint, after `close`."""
        self.router = context.socket(zmq.ROUTER)
        secure(self.router, self.server, self._limits)
        self.bound = bind(self.router, wanted, directory or private_dir())

    def let_go(self) -> str:
        """Leave the socket as it is, for ever; return where to listen in its place."""
        router, self.router = self.router, None
        keep_for_ever(router, self._held)
        self._held = {}
        self.bound.remove()
        return address_of(self.bound)

    def renew(self) -> None:
        """Listen again at a path that has vanished."""
        if self.router is not None:
            self.bound = rebind(self.router, self.bound)

    def send(self, peer: bytes, frame: bytes) -> SendResult:
        """Send ``frame`` to ``peer``, by its own name. Does not block. Never raises."""
        router = self.router
        if router is None:
            return SendResult.GONE
        tracked = self.role != OPERATOR and len(frame) >= TRACKED_FRAME_MIN_BYTES
        if tracked and (self._holds(peer) >= MAX_VIEWER_BYTES or not _lends()):
            return SendResult.FULL
        try:
            router.send(peer, zmq.NOBLOCK | zmq.SNDMORE)
            if tracked:
                tracker = router.send(frame, zmq.NOBLOCK, copy=False, track=True)
                self._held[peer].append((tracker, len(frame)))
            else:
                router.send(frame, zmq.NOBLOCK, copy=len(frame) < ZERO_COPY_MIN_BYTES or not _lends())
        except zmq.Again:
            return SendResult.FULL
        except zmq.ZMQError:
            return SendResult.GONE
        return SendResult.OK

    def _holds(self, peer: bytes) -> int:
        """Return the bytes of large frames that libzmq still holds for a viewer."""
        if len(self._held) > _MAX_TRACKED_PEERS:
            self._held = {p: held for p, held in self._held.items() if any(not tracker.done for tracker, _ in held)}
        held = self._held[peer] = [one for one in self._held.get(peer, ()) if not one[0].done]
        return sum(size for _, size in held)

    def close(self, linger: float = 0.0) -> None:
        """Close the socket; pending messages have ``linger`` seconds to leave."""
        router, self.router = self.router, None  # what listens is gone at once, linger or not
        if router is not None:
            router.close(max(0, int(linger * 1000)))
        self.bound.remove()


def _lends() -> bool:
    """Return whether libzmq can be lent a frame.

    The first one starts a thread and a context of pyzmq.
    """
    try:
        if not zmq.utils.garbage.gc.is_alive():
            require_headroom()
    except LinkError:
        return False
    return not _lends_no_more


def stop_lending() -> None:
    """Stop lending frames, and wait for none of them at exit."""
    lender = zmq.utils.garbage.gc
    if lender.is_alive():
        atexit.unregister(lender._atexit)
        keep_for_ever(lender)
        _lends_no_more.append(True)


_lends_no_more: list[bool] = []
"""Not empty once the descriptors of what frees lent frames are lost."""


def secure(router: zmq.Socket[bytes], server: KeyPair, limits: Limits) -> None:
    """Make ``router`` demand keys and keep the limits; call before binding."""
    router.curve_server = True
    router.curve_secretkey = server.secret
    router.zap_domain = DOMAIN
    router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, a missing authenticator admits everybody
    router.router_mandatory = True  # a message that cannot be sent is reported, not dropped
    router.linger = 0
    router.maxmsgsize = limits.inbound_frame + CURVE_OVERHEAD_BYTES  # libzmq compares what is on the wire
    router.sndhwm = router.rcvhwm = limits.high_water_mark
    router.backlog = limits.backlog
    router.handshake_ivl = int(limits.handshake * 1000)
    # No heartbeats of its own: where a peer dies while its frames wait to be read, libzmq's next one ends the process
    # (an assertion in its engine). Clients send theirs, with the time after which they count as dead.
