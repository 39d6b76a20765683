"""ZAP authenticator: admits a client by its CURVE key at each handshake (RFC 27).

libzmq asks over ``inproc://zeromq.zap.01``; with ``ZAP_ENFORCE_DOMAIN`` no client is admitted without an answer.
The I/O thread answers between its other work, so there is no second thread that could die.
Any error in a request is a refusal. The connection's ``User-Id`` becomes the client's public key,
so that its role is looked up for every message and a revoked key loses it at once.
"""

from __future__ import annotations

import math
from time import monotonic

import zmq
from zmq.utils import z85

ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"looptap"
_VERSION = b"1.0"
_MAX_REQUESTS_PER_TURN = 64


class Authenticator:
    """A table of public keys that decides the handshakes of one context."""

    def __init__(self) -> None:
        self._roles: dict[bytes, tuple[str, float]] = {}  # with the monotonic time until which each holds
        self.socket: zmq.Socket[bytes] | None = None
        self.admitted = self.refused = 0

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        """Listen for handshakes; return the socket to poll. Call before binding."""
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)
        return self.socket

    def close(self) -> None:
        """Stop answering: from now on every handshake is refused."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def let_go(self) -> zmq.Socket[bytes] | None:
        """Return the socket, not to be used any more."""
        found, self.socket = self.socket, None
        return found

    def admit(self, public_key: bytes, role: str, until: float = math.inf) -> None:
        """Admit the owner of ``public_key`` (Z85) as ``role``. Any thread.

        The key is refused after ``until``, in monotonic seconds.
        """
        self._roles[public_key] = role, until

    def revoke(self, public_key: bytes) -> None:
        """Revoke the role of ``public_key``, for open connections too. Any thread."""
        self._roles.pop(public_key, None)

    def role(self, user_id: str) -> str | None:
        """Return the role of the connection with that ``User-Id``, or None."""
        return self._role(user_id.encode("utf-8", "replace"))

    def _role(self, key: bytes) -> str | None:
        role, until = self._roles.get(key, (None, 0.0))
        return role if monotonic() < until else None

    def answer(self) -> None:
        """Answer a bounded number of pending handshakes. Never raises."""
        if self.socket is None:
            return
        for _ in range(_MAX_REQUESTS_PER_TURN):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
                self.socket.send_multipart(self._reply(request), zmq.NOBLOCK)
            except zmq.ZMQError:  # nothing waits, or who asked has gone
                return

    def _reply(self, request: list[bytes]) -> list[bytes]:
        number = request[1] if len(request) > 1 else b""
        key = _key(request)
        if key is None or self._role(key) is None:
            self.refused += 1
            return [_VERSION, number, b"400", b"this key is not admitted", b"", b""]
        self.admitted += 1
        return [_VERSION, number, b"200", b"OK", key, b""]


def _key(request: list[bytes]) -> bytes | None:
    """Return the public key (Z85) of a well-formed CURVE request, else None."""
    if len(request) != 7:
        return None
    version, _number, domain, _address, _identity, mechanism, key = request
    if (version, domain, mechanism, len(key)) != (_VERSION, DOMAIN, b"CURVE", 32):
        return None
    return z85.encode(key)
