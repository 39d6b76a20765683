"""Explains a failed connection: turns socket monitor events into one error."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import zmq

from looptap.protocol.errors import LinkError, NoAnswer, NotLooptap, RefusedKey, RunEnded, VersionMismatch, WrongServer
from looptap.protocol.files.connection import IPC, ConnectionFile
from looptap.protocol.messages import VERSION

# The beginning of every ZMTP 3 connection: signature, version 3.1, mechanism, and the side (RFC 23).
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
_MECHANISM = slice(12, 32)

UNANSWERED = "accepts the connection but does not answer"
"""The reason in `no_answer` for a handshake that does not end."""


def why_not_connected(endpoint: str, seen: Iterable[tuple[int, int]]) -> LinkError | None:
    """Return why the connection to ``endpoint`` failed, or None, by monitor events.

    ``seen`` are (event, value) pairs. May look at the endpoint itself, for up to a second.
    """
    connected = False
    for event, value in seen:
        if event == zmq.EVENT_CONNECTED:
            connected = True
        elif event in _FAILURES:
            return _FAILURES[event](endpoint)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            late = value == errno.EAGAIN  # the handshake took too long
            return no_answer(endpoint, UNANSWERED) if late else _refused_handshake(endpoint)
        elif event == zmq.EVENT_DISCONNECTED and connected:
            return _not_looptap(endpoint)
    return None


def no_answer(endpoint: str, what: str = "does not answer") -> NoAnswer:
    """Return the error for a silent endpoint."""
    return NoAnswer(
        f"{endpoint} {what}. The host may be unreachable, the process stopped or its machine overloaded; try again "
        "with a longer timeout=."
    )


def _not_looptap(endpoint: str) -> NotLooptap:
    return NotLooptap(f"Something listens at {endpoint}, but it does not speak looptap's protocol.")


def _refused_key(endpoint: str) -> RefusedKey:
    return RefusedKey(
        f"The agent at {endpoint} does not accept this key: it was revoked, or the connection file "
        "belongs to another run. Look for a newer file: looptap ls"
    )


def _nothing_there(endpoint: str) -> RunEnded:
    return RunEnded(f"Nothing listens at {endpoint}: the run has ended.")


_FAILURES: dict[int, Callable[[str], LinkError]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: _refused_key,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: _not_looptap,
    zmq.EVENT_CLOSED: _nothing_there,
}


def _refused_handshake(endpoint: str) -> LinkError:
    if not _speaks_curve(endpoint):
        return _not_looptap(endpoint)
    return WrongServer(
        f"The server at {endpoint} does not hold the key of this run: another run took its place. Look for a newer "
        "connection file: looptap ls"
    )


def _speaks_curve(endpoint: str) -> bool:
    """Return True if the endpoint speaks CURVE; on a wrong key it just hangs up."""
    try:
        with dialled(endpoint) as peer:
            peer.sendall(GREETING)
            answer = b""
            while len(answer) < _MECHANISM.stop and (more := peer.recv(64)):
                answer += more
    except (OSError, ValueError):
        return False
    return answer[:1] == b"\xff" and answer[_MECHANISM].rstrip(b"\0") == b"CURVE"


def dialled(endpoint: str) -> socket.socket:
    """Connect to an endpoint; blocks up to 1 s. Raises OSError or ValueError."""
    if endpoint.startswith(IPC):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(1.0)
            peer.connect(endpoint.removeprefix(IPC))
        except BaseException:
            peer.close()
            raise
        return peer
    place = urlsplit(endpoint)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=1.0)


def is_on_this_machine(endpoint: str) -> bool:
    """Return True if only processes of the same machine can connect to it."""
    return endpoint.startswith(IPC) or is_loopback_address(urlsplit(endpoint).hostname or "")


def is_loopback_address(host: str) -> bool:
    """Return True if ``host`` is a loopback address, not a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unreachable_share(file: ConnectionFile, alive: bool | None, refused: bool) -> LinkError:
    """Return why a viewer's key is ``refused``, or why nothing listens for it.

    An ended share is the same error whether its key or its endpoint is gone.
    """
    if refused:
        job = "" if alive else ", or its job has"
        return RefusedKey(f"This share of {file.run.id} has been ended{job}; ask for a new file.")
    if alive is not None:  # a dead one was refused before
        there = f"the process {file.process.pid} of its job is there"
        return RefusedKey(f"This share of {file.run.id} has been ended ({there}); ask for a new file.")
    host, ports = file.process.host, [urlsplit(e).port for e in file.endpoints if not e.startswith(IPC)]
    if not ports:
        return NoAnswer(f"This share lets in only processes on {host}. Ask for one with share(endpoint='tcp').")
    return NoAnswer(
        f"This share listens on {host} alone. If it has not ended, use ssh: "
        f"ssh -N -L {ports[0]}:127.0.0.1:{ports[0]} {host}"
    )


def version_mismatch(theirs: tuple[int, int]) -> VersionMismatch:
    """Return the error for an agent with another protocol version."""
    ours, version = ".".join(map(str, VERSION)), ".".join(map(str, theirs))
    return VersionMismatch(
        f"The agent speaks protocol {version} and this client {ours}; install the same looptap version on both sides."
    )
