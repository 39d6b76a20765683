"""What the I/O thread asks of whoever answers clients."""

from __future__ import annotations

from typing import Protocol


class RequestHandler(Protocol):
    """What decides what to send; all of it is called on the I/O thread."""

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        """Handle one frame of an authenticated peer; may call `ServerThread.send`."""

    def on_disconnect(self, peer: bytes) -> None:
        """Forget a peer: it broke the rules, or its key was revoked."""

    def flush(self) -> bool:
        """Send one small message's worth of what waits; True if more can be sent."""

    def is_idle(self) -> bool:
        """Have what comes next ring the bell; False if something is there to be flushed already."""

    def on_heartbeat_timer(self) -> None:
        """See whether the loop moves, and send each client a sign of life."""

    def on_shutdown_signal(self) -> None:
        """Do what is due at `ServerThread.alarm`, and set the next one."""

    def linger(self) -> float:
        """Seconds in which values gather after a wake-up."""

    def goodbye(self) -> None:
        """Send what waits, and take leave."""
