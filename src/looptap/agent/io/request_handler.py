"""The interface between the I/O thread and the part that answers clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class RequestHandler(Protocol):
    """The part that answers clients; all methods are called on the I/O thread."""

    give_way: Callable[[], None]
    """Called within long work: it lets other threads have the GIL now and then."""

    def receive(self, peer: bytes, role: str, frame: bytes) -> None:
        """Handle one frame of an authenticated peer; may call `ServerThread.send`."""

    def on_disconnect(self, peer: bytes) -> None:
        """Forget a peer: it broke the rules, or its key was revoked."""

    def flush(self, seconds: float = 0.0, fresh: bool = True) -> bool:
        """Send a small message of pending values, or such messages for ``seconds``.

        Without ``fresh`` only those of the values that the last call has seen. Returns True if more can be sent.
        """

    def is_idle(self) -> bool:
        """Let the next value send a wakeup; False if something is pending already."""

    def on_heartbeat_timer(self) -> bool:
        """Check whether the loop moves, send each client a heartbeat, and flush.

        Returns True if more can be sent.
        """

    def mark_scalars(self, now: float) -> float:
        """Mark events whose numbers are to be kept; return when to call this again."""

    def on_alarm(self) -> None:
        """Do the work of `ServerThread.alarm`, and set the next one."""

    def linger(self, *, steady: bool = False) -> float:
        """Return the seconds for which values gather after a wakeup.

        With ``steady`` those after a flush that has sent some: it may be longer, and less when it is asked again.
        """

    def goodbye(self) -> None:
        """Send pending values and replies, then a goodbye."""
