"""A bell: any thread rings it, one thread sleeps on it in a poll."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import weakref

if sys.platform == "linux":

    class Wakeup:
        """Rung from any thread in a fraction of a microsecond, without waiting and without raising."""

        def __init__(self) -> None:
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # Closed with the object and not before: a late ring must never reach somebody else's descriptor.
            weakref.finalize(self, os.close, self.fd).atexit = False

        def set(self) -> None:
            """Make the descriptor readable."""
            try:  # noqa: SIM105 - contextlib.suppress costs more than the ring
                os.eventfd_write(self.fd, 1)
            except OSError:  # rung 2 ** 64 times, and heard once it is cleared
                pass

        def clear(self) -> bool:
            """Make it silent again; whether it had been rung."""
            try:
                return os.eventfd_read(self.fd) > 0
            except OSError:
                return False

else:

    class Wakeup:
        """Rung from any thread in a few microseconds, without waiting and without raising."""

        def __init__(self) -> None:
            self._listens, self._rings = socket.socketpair()
            self._listens.setblocking(False)
            self._rings.setblocking(False)
            self.fd = self._listens.fileno()

        def ring(self) -> None:
            """Make the descriptor readable."""
            with contextlib.suppress(OSError):  # full: it is ringing already
                self._rings.send(b"\0")

        def clear(self) -> bool:
            """Make it silent again; whether it had been rung."""
            try:
                return bool(self._listens.recv(4096))
            except OSError:
                return False
