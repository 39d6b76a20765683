"""The interface between the I/O thread and the part that answers clients."""

from __future__ import annotations

from typing import Protocol


class RequestHandler(Protocol):
    """The part that answers clients; all methods are called on the I/O thread."""

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        """Handle one frame of an authenticated peer; may call `ServerThread.send`."""

    def on_disconnect(self, peer: bytes) -> None:
        """Forget a peer: it broke the rules, or its key was revoked."""

    def flush(self) -> bool:
        """Send one small message of pending values; True if more can be sent."""

    def is_idle(self) -> bool:
        """Let the next value send a wakeup; False if something is pending already."""

    def on_heartbeat_timer(self) -> None:
        """Check whether the loop moves, and send each client a heartbeat."""

    def mark_scalars(self, now: float) -> float:
        """Mark events whose numbers are to be kept; return when to call this again."""

    def on_alarm(self) -> None:
        """Do what is due at `ServerThread.alarm`, and set the next one."""

    def linger(self) -> float:
        """Return the seconds in which values gather after a wakeup."""

    def goodbye(self) -> None:
        """Send what is pending, then a goodbye."""
