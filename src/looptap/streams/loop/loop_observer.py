"""`LoopObserver`: an exposed object that learns of commands, pauses and runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LoopObserver:
    """Base of exposed objects that are notified of commands and pauses.

    `on_command` and `on_pause` are called on the loop thread, inside `emit`; the others on threads of the agent. Their
    exceptions are logged, not propagated.
    """

    def on_command(self) -> None:
        """Note that a command was executed: speeds may differ from now on."""

    def on_pause(self, seconds: float) -> None:
        """Note that a pause of ``seconds`` has just ended."""

    def facts_to_keep(self) -> Any:
        """Return plain data for the file of the run, small; None: nothing."""

    def on_earlier_runs(self, kept: Sequence[Any]) -> None:
        """Note what `facts_to_keep` returned in earlier runs like this, the oldest first.

        They had the same name and config. The data comes from files: anyone who writes there may have made it.
        """
