"""Endpoints: never replaces an existing socket, opens no more than was asked for.

| asked for | meaning |
|---|---|
| nothing, ``"ipc"`` | a socket with a random name in the given directory (loopback TCP on Windows) |
| ``"ipc:///path"`` | a socket at that path, if nothing is there |
| ``"tcp"`` | a free port on loopback |
| ``"tcp://host:port"`` | that address of this machine; ``*`` is any free port |
| ``"everywhere:port"`` | all addresses of this machine |
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import re
import socket
import stat
import sys
import time
import zlib
from pathlib import Path

import msgspec
import zmq

from looptap.protocol.errors import BadEndpoint, EndpointBusy
from looptap.protocol.files.connection import make_private, private_dir
from looptap.protocol.process.identity import boot_id

log = logging.getLogger("looptap")

IPC, TCP, EVERYWHERE = "ipc://", "tcp://", "everywhere:"
_ADDRESS = re.compile(r"tcp://(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]/]+)):(?P<port>\d{1,5}|\*)")
_MAX_BIND_ATTEMPTS = 10


class Bound(msgspec.Struct, frozen=True):
    """A bound socket's endpoints, and the file that libzmq leaves behind."""

    endpoints: tuple[str, ...]
    path: Path | None = None
    inode: tuple[int, int] = (0, 0)

    def hide(self, hidden: bool) -> None:
        """Set the socket's file aside, so that no client can connect, or back."""
        if self.path is not None:
            aside = self.path.with_name(f".{self.path.name}")
            with contextlib.suppress(OSError):
                os.rename(*((self.path, aside) if hidden else (aside, self.path)))

    def remove(self) -> None:
        """Remove the socket's file, unless something else has taken its name."""
        if self.path is None:
            return
        self.hide(False)
        with contextlib.suppress(OSError):
            about = self.path.lstat()
            if (about.st_dev, about.st_ino) == self.inode:
                self.path.unlink()


def bind(server: zmq.Socket[bytes], wanted: str | None, directory: Path) -> Bound:
    """Bind ``server`` as ``wanted`` says (see the table above).

    Raises EndpointBusy if something is there already, BadEndpoint for an endpoint that is malformed, too
    long, not of this machine, or all of this machine without the word "everywhere".
    """
    if wanted is None or wanted == "ipc":
        return _bind_tcp(server, "127.0.0.1", "*") if sys.platform == "win32" else _bind_random(server, directory)
    if wanted == "tcp":
        return _bind_tcp(server, "127.0.0.1", "*")
    if wanted.startswith(IPC):
        return _bind_path(server, _path(wanted))
    if wanted.startswith(EVERYWHERE):
        return _bind_everywhere(server, _everywhere(wanted))
    return _bind_tcp(server, *_address(wanted))


def check_form(wanted: object) -> None:
    """Raise BadEndpoint if ``wanted`` is malformed on every machine."""
    if wanted is None or wanted in ("ipc", "tcp"):
        return
    if not isinstance(wanted, str):
        raise BadEndpoint(f"listen={wanted!r:.80} must be a text such as 'tcp'.")
    if wanted.startswith(IPC):
        _path(wanted)
    elif wanted.startswith(EVERYWHERE):
        _everywhere(wanted)
    else:
        _address(wanted)


# ---------------------------------------------------------------- ipc


def _path(wanted: str) -> Path:
    text = wanted.removeprefix(IPC)
    if text.startswith("@"):
        raise BadEndpoint(
            f"{wanted!r} is an abstract socket, open to every user of this machine. "
            "Name a path, or leave the endpoint out."
        )
    if not text.startswith("/"):
        raise BadEndpoint(f"{wanted!r} is not an absolute path. Write 'ipc:///path', or leave the endpoint out.")
    return Path(text)


def _bind_random(server: zmq.Socket[bytes], directory: Path) -> Bound:
    _sweep(directory)
    for _ in range(_MAX_BIND_ATTEMPTS):
        try:
            return _bind_path(server, directory.absolute() / f"{socket_mark()}-{os.urandom(4).hex()}.sock")
        except EndpointBusy:
            continue
    raise EndpointBusy(f"No free name for a socket was found in {directory} in {_MAX_BIND_ATTEMPTS} attempts.")


def _sweep(directory: Path) -> None:
    """Remove this machine's sockets over a minute old without a listener."""
    for path in directory.glob(f"{socket_mark()}-*.sock"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if stat.S_ISSOCK(about.st_mode) and about.st_mtime < time.time() - 60 and _is_deserted(path):
                path.unlink()


def socket_mark() -> str:
    """Return the prefix of this machine's socket names.

    In a shared directory the sockets of other machines look deserted from here.
    """
    return f"{zlib.crc32(f'{socket.gethostname()} {boot_id()}'.encode()):08x}"[:6]


def place_for_sockets(wanted: Path) -> Path:
    """Return ``wanted`` if it can hold private sockets, else the private directory."""
    if sys.platform == "win32" or wanted.stat().st_mode & 0o077:
        return private_dir()
    path = wanted.absolute() / f"{socket_mark()}-{os.urandom(4).hex()}.sock"
    if len(os.fsencode(path)) > zmq.IPC_PATH_MAX_LEN:
        return private_dir()
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(os.fspath(path))
        path.unlink()
    except OSError as error:
        place = private_dir()
        log.warning(
            "looptap: A socket cannot be created in %s (%s), as on some network file systems; this run listens in %s, "
            "which only processes on this machine can reach. To make it reachable from other machines: "
            "Agent(..., listen='tcp://%s:*').",
            wanted,
            error.strerror,
            place,
            socket.gethostname(),
        )
        return place
    return wanted


def rebind(server: zmq.Socket[bytes], bound: Bound) -> Bound:
    """Bind ``server`` again at its path, whose file has vanished; clients stay.

    Raises OSError, EndpointError or UnsafeFile.
    """
    assert bound.path is not None
    make_private(bound.path.parent)
    return _bind_path(server, bound.path)  # to unbind the old one would hang up on its clients


def _is_deserted(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def _bind_path(server: zmq.Socket[bytes], path: Path) -> Bound:
    if len(os.fsencode(path)) > zmq.IPC_PATH_MAX_LEN:
        raise BadEndpoint(
            f"{path} is longer than the {zmq.IPC_PATH_MAX_LEN} bytes that a socket's path may have. "
            "Choose a shorter path, or endpoint 'tcp'."
        )
    _reserve(path)
    try:
        server.bind(f"{IPC}{path}")
        path.chmod(0o600)
    except zmq.ZMQError as error:
        path.unlink(missing_ok=True)
        raise BadEndpoint(f"A socket cannot be created at {path}: {error}. Choose endpoint 'tcp'.") from None
    about = path.lstat()
    return Bound((f"{IPC}{path}",), path, (about.st_dev, about.st_ino))


def _reserve(path: Path) -> None:
    """Reserve the name by an empty file, since libzmq replaces whatever is there."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise EndpointBusy(f"There is {_what_is_at(path)} at {path}. Choose another path.") from None
    except OSError as error:
        raise BadEndpoint(f"A socket cannot be made at {path}: {error.strerror}.") from None


def _what_is_at(path: Path) -> str:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return "something that is not a socket"
    if _is_deserted(path):
        return f"a socket without a listener (remove it: rm {path})"
    return "a socket that another process listens to"


# ---------------------------------------------------------------- tcp


def _address(wanted: str) -> tuple[str, str]:
    match = _ADDRESS.fullmatch(wanted)
    if match is None:
        raise BadEndpoint(
            f"{wanted!r} is not an endpoint. Write 'tcp', 'tcp://host:port', 'ipc:///path' or 'everywhere:port'."
        )
    host, port = match["six"] or match["host"], match["port"]
    with contextlib.suppress(ValueError):  # a name
        _check_not_all(ipaddress.ip_address("0.0.0.0" if host == "*" else host), host, port)
    _check_port(port)
    return host, port


def _check_not_all(address: ipaddress.IPv4Address | ipaddress.IPv6Address, host: str, port: str) -> None:
    if address.is_unspecified:
        raise BadEndpoint(f"{host!r} means all addresses of this machine. If you want that, write 'everywhere:{port}'.")


def _everywhere(wanted: str) -> str:
    port = wanted.removeprefix(EVERYWHERE)
    if port != "*" and not port.isdecimal():
        raise BadEndpoint(f"'everywhere:{port}' has no port. Write 'everywhere:5555'.")
    _check_port(port)
    return port


def _check_port(port: str) -> None:
    if port != "*" and not (len(port) <= 5 and 0 < int(port) < 65536):
        raise BadEndpoint(f"{port} is not a port: ports are 1 to 65535, and '*' is any free one.")


def _bind_tcp(server: zmq.Socket[bytes], host: str, port: str) -> Bound:
    address = _resolve(host, port)
    _check_not_all(address, host, port)
    server.ipv6 = address.version == 6
    return Bound((_bind_address(server, f"[{address}]" if address.version == 6 else f"{address}", port),))


def _bind_everywhere(server: zmq.Socket[bytes], port: str) -> Bound:
    bound = _bind_address(server, "0.0.0.0", port).rpartition(":")[2]
    return Bound((f"{TCP}127.0.0.1:{bound}", f"{TCP}{socket.gethostname()}:{bound}"))


def _resolve(host: str, port: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if host == "*":
        return ipaddress.IPv4Address(0)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BadEndpoint(f"No address is known for the host {host!r}. Write its IP address.") from None
    # libzmq listens to one family, and by default clients ask for IPv4 first
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return ipaddress.ip_address(found[0][4][0])


def address_of(bound: Bound) -> str:
    """Return the argument with which `bind` opens the same endpoints again."""
    first, *others = bound.endpoints
    return f"{EVERYWHERE}{first.rpartition(':')[2]}" if others else first


def _bind_address(server: zmq.Socket[bytes], address: str, port: str) -> str:
    endpoint = f"{TCP}{address}:{port}"
    try:
        server.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (errno.EADDRINUSE, zmq.EADDRINUSE):
            raise EndpointBusy(
                f"Another process listens at {endpoint}. Choose another port, or '*' for any free one."
            ) from None
        if error.errno in (errno.EADDRNOTAVAIL, zmq.EADDRNOTAVAIL, errno.ENODEV):
            raise BadEndpoint(f"{address} is not an address of this machine.") from None
        raise BadEndpoint(f"Nothing can listen at {endpoint}: {error}.") from None
    return server.getsockopt_string(zmq.LAST_ENDPOINT)
