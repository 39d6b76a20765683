"""Wakeups of I/O threads: any thread sets one, a poll of its descriptor ends."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import weakref

from looptap.protocol.process.own_descriptors import OwnDescriptor
from looptap.streams.native.surroundings import fill_standard_descriptors


class SpentWakeup:
    """The wakeup of a thread that has ended: no descriptor, and nothing to wake."""

    fd = -1

    def set(self) -> None:
        """Do nothing."""

    def clear(self) -> bool:
        """Return False: it is never set."""
        return False


class SocketWakeup:
    """A wakeup that any thread sets in a few µs, without blocking or raising."""

    def __init__(self) -> None:
        fill_standard_descriptors()  # before the first descriptor of either half
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
        """Make the descriptor unreadable; return whether it was set."""
        try:
            return bool(self._reader.recv(4096))
        except OSError:
            return False


if sys.platform == "linux":

    class Wakeup:
        """A wakeup that any thread sets in a few µs, without blocking or raising."""

        def __init__(self) -> None:
            fill_standard_descriptors()  # before the first descriptor of either half
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._own = OwnDescriptor(self.fd)
            # Closed with the object and not before: a late call must never reach another owner's descriptor.
            weakref.finalize(self, self._own.close).atexit = False

        def set(self) -> None:
            """Make the descriptor readable."""
            try:
                if self._own.is_there():  # the job may have closed it, and opened a file that got its number
                    os.eventfd_write(self.fd, 1)
            except OSError:  # set 2 ** 64 times, and seen once it is cleared
                pass

        def clear(self) -> bool:
            """Make the descriptor unreadable; return whether it was set."""
            try:
                return os.eventfd_read(self.fd) > 0
            except OSError:
                return False

else:
    Wakeup = SocketWakeup
