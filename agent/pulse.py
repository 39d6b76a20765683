"""Whether the loop moves: how many events of each type there were, and since when no new one was seen."""

from __future__ import annotations

import time

from looptap.agent.taps import Taps


class Pulse:
    """What a look finds is as exact as the looks are frequent: one comes with each beat."""

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._counts: dict[str, int] = {}
        self._moved: dict[str, float] = {}  # when a look last found that a type had new events
        self._began = time.monotonic()

    def look(self) -> None:
        """Note which event counts have moved."""
        now = time.monotonic()
        for name, count in self._taps.counts().items():
            if count != self._counts.get(name):
                self._counts[name], self._moved[name] = count, now

    def idle(self) -> float:
        """Look, and tell for how many seconds no new event was seen."""
        self.look()
        return time.monotonic() - max(self._moved.values(), default=self._began)

    def ages(self) -> dict[str, dict[str, float]]:
        """Events of each type so far, and the seconds in which no new one was seen."""
        self.look()
        return {name: {"count": n, "idle": time.monotonic() - self._moved[name]} for name, n in self._counts.items()}
