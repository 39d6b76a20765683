"""`LoopObserver`: an exposed object that learns of commands and pauses."""

from __future__ import annotations


class LoopObserver:
    """Base of exposed objects that are notified of commands and pauses.

    Both methods are called on the loop thread, inside `emit`. Their exceptions are logged, not propagated.
    """

    def on_command(self) -> None:
        """Note that a command was executed: speeds may differ from now on."""

    def on_pause(self, seconds: float) -> None:
        """Note that a pause of ``seconds`` has just ended."""
