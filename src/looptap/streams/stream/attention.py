"""How soon the readers of a stream need its values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

PROMPT_SECONDS, WATCHED_SECONDS, UNSEEN_SECONDS = 0.03, 0.05, 0.5
"""Seconds for which values may gather where a thread, a task or a callback waits for them, where they are read now and
then (a chart), and where nothing reads them."""
MEMORY_SECONDS = 2.0
"""Seconds for which a stream that was read counts as being read."""


class Attention:
    """What reads a stream, which tells how long its values may gather."""

    __slots__ = ("hurry", "looked_at", "waited_at", "waiting")

    def __init__(self) -> None:
        self.hurry: Callable[[float], None] = _nothing
        """Called with the seconds that a reader can wait, on its thread, without a lock."""
        self.waiting = 0
        """The threads that wait for an item; changed under the lock of the feed."""
        self.looked_at = self.waited_at = -math.inf
        """The monotonic times of the last look and wait."""

    def look(self) -> None:
        """Note that the items are being read. Call it without a lock."""
        self.looked_at = time.monotonic()
        self.hurry(WATCHED_SECONDS)

    def wait(self) -> None:
        """Note that something begins to wait for an item. Call it without a lock."""
        self.waited_at = time.monotonic()
        self.hurry(PROMPT_SECONDS)

    def patience(self, awaited: bool) -> float:
        """Return the seconds for which items may gather; ``awaited``: a callback waits."""
        since = time.monotonic() - MEMORY_SECONDS
        if awaited or self.waiting or self.waited_at > since:
            return PROMPT_SECONDS
        return WATCHED_SECONDS if self.looked_at > since else UNSEEN_SECONDS


def _nothing(seconds: float) -> None:
    """Do nothing."""
