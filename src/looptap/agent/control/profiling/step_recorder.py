"""`StepRecorder`: records some steps of the loop, for one command at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from looptap.streams.events import Event

MAX_STEPS = 100
"""Steps of one recording."""
Done: TypeAlias = Callable[[Any, str], None]
"""A function that gets what was recorded as plain data, and the problem if there was one."""


class StepRecorder(Protocol):
    """Records steps; calls its `Done` once, on a thread of its own."""

    def start(self, done: Done) -> None:
        """Start at an event. Raises ControlError, and then nothing is recorded."""

    def here(self) -> bool:
        """Return True if this thread may go on with the recording."""

    def step(self, event: Event) -> bool:
        """Count a step; return True once no further event is needed. Raises ControlError."""

    def abandon(self) -> None:
        """Stop, and leave nothing behind: the run ends. ``done`` is not called."""

    def after_fork(self) -> None:
        """Stop an inherited recording in a forked child."""
