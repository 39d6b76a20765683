"""Releases the addresses of the parent's links in a forked child.

In the child there is no I/O thread, neither ours nor libzmq's; a send would vanish and a close would hang.
The child keeps what it inherited, unused, and puts /dev/null in place of its copies of the sockets: a worker
that outlives its parent must not keep the parent's port taken or its clients connected.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import weakref
from typing import Protocol


class Abandonable(Protocol):
    """An object that a forked child inherits and must not use."""

    def abandon(self) -> None:
        """Become inert; leave the parent's resources alone."""


_links: weakref.WeakSet[Abandonable] = weakref.WeakSet()
_kept: list[object] = []


def remember(link: Abandonable) -> None:
    """Make ``link`` inert in every child that is forked from now on."""
    _links.add(link)


def forget(things: object) -> None:
    """Keep ``things`` alive until the process ends, so that no destructor runs."""
    _kept.append(things)


def release(endpoints: tuple[str, ...]) -> None:
    """Replace this process's sockets at ``endpoints`` by /dev/null."""
    wanted = {_address(endpoint) for endpoint in endpoints}
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    timeout = socket.getdefaulttimeout()
    # Wrapping a descriptor would set the default timeout on it, and so on the parent's, which shares it.
    socket.setdefaulttimeout(None)
    try:
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _bound_to(int(name)) in wanted:
                    os.dup2(null, int(name), inheritable=False)
    finally:
        socket.setdefaulttimeout(timeout)
        os.close(null)


def _address(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    return rest if scheme == "ipc" else rest.rpartition(":")[2]


def _bound_to(descriptor: int) -> str:
    """Return the path or the port that a socket is bound to."""
    wrapped = socket.socket(fileno=descriptor)
    try:
        address = wrapped.getsockname()
        if wrapped.family in (socket.AF_INET, socket.AF_INET6):
            return str(address[1])
        return address if isinstance(address, str) else ""
    finally:
        wrapped.detach()


def _after_fork() -> None:
    for link in list(_links):
        with contextlib.suppress(Exception):
            link.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
