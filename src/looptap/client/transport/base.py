"""Interfaces of links that carry frames between a client and an agent."""

from __future__ import annotations

from typing import Protocol

from looptap.protocol.errors import LinkError
from looptap.protocol.messages import RunInfo


class Receiver(Protocol):
    """The receiver of a transport's frames and events. Transport thread."""

    def on_frame(self, frame: bytes | memoryview) -> None:
        """Handle one frame of the agent."""

    def on_tick(self) -> None:
        """Send and check heartbeats: called once a second while the link is up."""

    def on_lost(self, error: LinkError) -> None:
        """Handle a lost link: frames in flight may be gone; the transport reconnects."""

    def on_back(self) -> None:
        """Handle a new link: the agent may not know this client any more."""

    def on_next(self, run: RunInfo) -> None:
        """Handle a new link to another run, the next of the same name."""

    def on_end(self, error: LinkError) -> None:
        """Handle the end: there will be no further link."""


class Route(Protocol):
    """A way to an agent that is opened for each connection."""

    longest: float
    """Maximum seconds between two attempts to reconnect."""

    def endpoint(self) -> str:
        """Return where to connect, once. Raises NoAnswer if a retry helps, or LinkError."""

    def broken(self, error: LinkError) -> LinkError:
        """Return why the newest endpoint led to no link, where the link says ``error``."""

    def cancel(self) -> None:
        """Interrupt an `endpoint` call of another thread, which raises. Any thread."""

    def close(self) -> None:
        """Close what was opened."""


class Transport(Protocol):
    """A link to one agent."""

    def start(self, receiver: Receiver, timeout: float) -> None:
        """Connect; return when frames can be sent. LinkError after ``timeout`` s."""

    def send(self, frame: bytes) -> None:
        """Send one frame, lost if the link is down. Any thread. Does not block."""

    def close(self, timeout: float = 1.0) -> None:
        """Send pending frames and disconnect, within ``timeout`` s. Any thread."""
