"""A poll of sockets and descriptors that touches none which the job has closed.

libzmq ends the process where it finds its descriptors closed, and takes eight bytes from the file of the job that has
got the number of one. So the wait itself is not libzmq's, and between it and libzmq comes a look.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Collection

import zmq

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # neither has a descriptor itself


class DescriptorsLost(Exception):
    """The descriptors of an agent are closed, or libzmq's threads have given up."""


class CarefulPoller:
    """Waits until a socket has a message, or a descriptor is readable."""

    def __init__(self, sockets: Collection[zmq.Socket[bytes]], descriptors: Collection[int]) -> None:
        self._sockets, self._selector = sockets, _Selector()
        for number in (*(int(one.getsockopt(zmq.FD)) for one in sockets), *descriptors):
            self._selector.register(number, selectors.EVENT_READ)

    def poll(self, milliseconds: int, is_intact: Callable[[], bool]) -> set[object]:
        """Return the sockets and descriptors that are ready, after a wait.

        Raises DescriptorsLost if ``is_intact`` says so.
        """
        # The descriptor of a socket says only that it has to be asked, and does not say it twice.
        waits = self._readable(is_intact)
        found = self._selector.select(0 if waits else max(0.0, milliseconds - 0.5) / 1000)  # which rounds up to 1 ms
        return {*(key.fd for key, _ in found), *self._readable(is_intact)}

    def _readable(self, is_intact: Callable[[], bool]) -> list[zmq.Socket[bytes]]:
        if not is_intact():
            raise DescriptorsLost
        return [one for one in self._sockets if int(one.getsockopt(zmq.EVENTS)) & zmq.POLLIN]
