"""Wakes the I/O thread: any thread sets a wakeup, one thread sleeps on its descriptor in a poll."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import weakref


class SocketWakeup:
    """Set from any thread in a few microseconds, without waiting and without raising."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        for end in self._reader, self._writer:
            end.setblocking(False)
            weakref.finalize(self, end.close).atexit = False
        self.fd = self._reader.fileno()

    def set(self) -> None:
        """Make the descriptor readable."""
        with contextlib.suppress(OSError):  # full: it is set already
            self._writer.send(b"\0")

    def clear(self) -> bool:
        """Make the descriptor silent again; whether it was set."""
        try:
            return bool(self._reader.recv(4096))
        except OSError:
            return False


if sys.platform == "linux":

    class Wakeup:
        """Set from any thread in a fraction of a microsecond, without waiting and without raising."""

        def __init__(self) -> None:
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            # Closed with the object and not before: a late call must never reach another owner's descriptor.
            weakref.finalize(self, os.close, self.fd).atexit = False

        def set(self) -> None:
            """Make the descriptor readable."""
            try:  # noqa: SIM105 - contextlib.suppress costs more than the call
                os.eventfd_write(self.fd, 1)
            except OSError:  # set 2 ** 64 times, and seen once it is cleared
                pass

        def clear(self) -> bool:
            """Make the descriptor silent again; whether it was set."""
            try:
                return os.eventfd_read(self.fd) > 0
            except OSError:
                return False

else:
    Wakeup = SocketWakeup
