"""Carries frames between a run and its client; `looptap.client.transport.zmq_client` does it with sockets."""

from __future__ import annotations

from typing import Protocol

from looptap.protocol.errors import LinkError
from looptap.protocol.messages import RunInfo


class Receiver(Protocol):
    """Receives what a transport brings; every method is called on the transport's own thread."""

    def on_frame(self, frame: bytes) -> None:
        """Take in one frame of the agent."""

    def on_tick(self) -> None:
        """Send and check heartbeats: called once a second while the link is up."""

    def on_lost(self, error: LinkError) -> None:
        """Handle a lost link: frames in flight may be gone; the transport tries to restore it."""

    def on_back(self) -> None:
        """Handle a new link: the agent may not know this client any more."""

    def on_next(self, run: RunInfo) -> None:
        """Handle a new link to another run, the next of the same name."""

    def on_end(self, error: LinkError) -> None:
        """Handle that there will be no link again."""


class Route(Protocol):
    """A way to an agent that is opened for each connection."""

    longest: float
    """Seconds between two attempts, at most, to restore a lost connection."""

    def endpoint(self) -> str:
        """Return where to connect, once and now. Raises NoAnswer if a retry may succeed, else another LinkError."""

    def broken(self) -> LinkError:
        """Return why no link came about over the newest endpoint."""

    def cancel(self) -> None:
        """Make an `endpoint` call of another thread raise. Any thread."""

    def close(self) -> None:
        """Close what was opened."""


class Transport(Protocol):
    """A link to one agent."""

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Return when frames can be sent. Raises a LinkError that says why not, at the latest after ``timeout`` s."""

    def send(self, frame: bytes) -> None:
        """Send one frame. Any thread. Does not block. The frame is lost if the link is down."""

    def close(self, timeout: float = 1.0) -> None:
        """Send what waits and disconnect, within ``timeout`` seconds. Any thread, any number of times."""
