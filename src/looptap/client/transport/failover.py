"""Failover to the next run of the same name, by one link after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from looptap.client.transport.base import Receiver, Transport
from looptap.protocol.errors import LinkError, RunEnded
from looptap.protocol.messages import RunInfo

_ATTACH_TIMEOUT_SECONDS = 5.0  # seconds for its agent to let us in

Find = Callable[[RunInfo], tuple[Transport, RunInfo] | None]
"""The link to the run that comes after one, not started yet; None while there is none."""


class FailoverTransport:
    """A transport that outlives its run; every ``pause`` s it looks for the next one.

    To the receiver an end is a loss (`RunEnded`), followed by `on_next` when the link to the next run is up.
    """

    def __init__(self, first: Transport, run: RunInfo, find: Find, pause: float) -> None:
        self._link, self._run, self._find, self._pause = first, run, find, pause
        self._closed = threading.Event()

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Connect to the first run. Raises the LinkError that says why not."""
        self._receiver = receiver
        self._link.start(_FailoverReceiver(receiver, self), timeout)

    def send(self, frame: bytes) -> None:
        """Send one frame to the present run."""
        self._link.send(frame)

    def close(self, timeout: float = 1.0) -> None:
        """Disconnect, and stop looking for further runs."""
        self._closed.set()
        self._link.close(timeout)

    def _ended(self, error: LinkError) -> None:
        if self._closed.is_set():
            return
        waiting = f"{error} Waiting for the next run named {self._run.name!r}."
        self._receiver.on_lost(RunEnded(waiting))
        threading.Thread(target=self._search, name="looptap-follow", daemon=True).start()

    def _search(self) -> None:
        while not self._closed.wait(self._pause):
            try:
                if (found := self._find(self._run)) is None:
                    continue
                self._link, run = found
                if self._closed.is_set():  # by a thread that did not see this link
                    self._link.close(0.0)
                    return
                self._link.start(_FailoverReceiver(self._receiver, self), _ATTACH_TIMEOUT_SECONDS)
            except (LinkError, OSError):  # it may be starting, or ending; the next look will tell
                continue
            self._run = run
            self._receiver.on_next(run)
            return


class _FailoverReceiver:
    """A link's receiver that passes everything on but the end."""

    def __init__(self, receiver: Receiver, following: FailoverTransport) -> None:
        self.on_frame, self.on_tick = receiver.on_frame, receiver.on_tick
        self.on_lost, self.on_back, self.on_next = receiver.on_lost, receiver.on_back, receiver.on_next
        self.on_end = following._ended
