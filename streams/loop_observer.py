"""`LoopObserver`: an exposed object that learns of commands and pauses."""

from __future__ import annotations


class LoopObserver:
    """Base of objects that learn what a client did to their loop, once the agent of that loop exposes them.

    Both methods are called on the loop thread, inside `emit`. What they raise is logged and goes no further.
    """

    def on_command(self) -> None:
        """Note that a command was carried out: speeds may be others from here on."""

    def on_pause(self, seconds: float) -> None:
        """Note that the loop was paused for ``seconds``, which have just ended."""
