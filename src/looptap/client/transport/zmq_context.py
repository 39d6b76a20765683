"""The one ZeroMQ context of a process, shared by all its links.

It exists while there is a link, and ends with the last one, once its messages are sent or its linger is over. A forked
child has one of its own, and leaves its parent's alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import zmq

from looptap.protocol.process.headroom import require_headroom

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
IO_THREADS = 2
"""Threads of libzmq that encrypt and decrypt: a link with large arrays does not delay all others."""
MAX_SOCKETS = 16_384
"""The bound on sockets; a link has three."""


class _Shared:
    """The context, and the number of links that use it."""

    def __init__(self) -> None:
        self._lock, self._context, self._links = threading.Lock(), None, 0
        self._parents: list[Context | None] = []  # never deleted: that would close what the parent uses

    _context: Context | None

    @contextmanager
    def context(self) -> Iterator[Context]:
        with self._lock:
            if self._context is None:
                require_headroom()
                self._context = zmq.Context(IO_THREADS)
                self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
            self._links += 1
            context = self._context
        try:
            yield context
        finally:
            with self._lock:
                self._links -= 1
                last = not self._links
                if last:
                    self._context = None
            if last:
                context.destroy(linger=0)

    def forked(self) -> None:
        """Reset in a forked child; another thread of the parent may have held the lock."""
        self._parents.append(self._context)
        self._lock, self._context, self._links = threading.Lock(), None, 0


_shared = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.forked)
shared_context = _shared.context
