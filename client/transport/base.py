"""What carries frames between a run and its client; `looptap.client.transport.zmq_client` does it with sockets."""

from __future__ import annotations

from typing import Protocol

from looptap.protocol.errors import LinkError
from looptap.protocol.messages import RunInfo


class Receiver(Protocol):
    """Who is told what a transport brings; every method is called on the transport's own thread."""

    def on_frame(self, frame: bytes) -> None:
        """Take in one frame of the agent."""

    def on_tick(self) -> None:
        """Do what is done once a second while the link is up."""

    def on_lost(self, error: LinkError) -> None:
        """Know that the link is down and that frames in flight may be gone; the transport tries to restore it."""

    def on_back(self) -> None:
        """Know that a new link is up; the agent may not know this client any more."""

    def on_next(self, run: RunInfo) -> None:
        """Know that a new link leads to another run, the next of the same name."""

    def on_end(self, error: LinkError) -> None:
        """Know that there will be no link again."""


class Route(Protocol):
    """A way to an agent that has to be opened anew for each connection."""

    longest: float
    """Seconds between two attempts, at most, to restore a lost connection."""

    def endpoint(self) -> str:
        """Where to connect, once and now. Raises NoAnswer if another attempt may succeed, else another LinkError."""

    def broken(self) -> LinkError:
        """Why no link came about over the newest endpoint."""

    def cancel(self) -> None:
        """Have an `endpoint` that another thread waits for raise; from any thread."""

    def close(self) -> None:
        """Close what was opened."""


class Transport(Protocol):
    """A link to one agent."""

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Return when frames can be sent. Raises a LinkError that says why not, at the latest after ``timeout`` s."""

    def send(self, frame: bytes) -> None:
        """Send one frame: from any thread, without waiting. It is lost if the link is down."""

    def close(self, timeout: float = 1.0) -> None:
        """Send what waits and hang up; from any thread, more than once, after at most ``timeout`` seconds."""
