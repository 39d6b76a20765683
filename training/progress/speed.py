"""The speed by two published methods: a window of ten seconds, and one unit."""

from __future__ import annotations

from collections import deque

from looptap.training.progress.clock_ledger import TRAIN, VALIDATION

WINDOW_SECONDS = 10.0
"""K, the seconds that the window of the paper looks back."""


class SpeedWindow:
    """Instances per second in the last ten of a phase; other phases keep their value.

    The timer of a phase starts when its first batch, which does not count, has left the pipeline. ``skip`` batches are
    left out at each start, since workers have prefetched that many. Source: Dong & Luo 2024, IV-A.
    """

    def __init__(self, skip: int = 1) -> None:
        self.skip = skip
        self.speeds: list[float | None] = [None, None]
        self._phase, self._left, self._start = TRAIN, skip, 0.0
        self._done: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def phase(self, phase: int) -> None:
        """Begin a phase."""
        if phase in (TRAIN, VALIDATION) and phase != self._phase:
            self._phase, self._left = phase, self.skip
            self._done.clear()
            self._sum = 0.0

    def count(self, now: float, instances: float) -> None:
        """Count a batch that ended at ``now``."""
        if self._left > 0:
            self._left -= 1
            self._start = now
            return
        done = self._done
        done.append((now, instances))
        self._sum += instances
        while done and done[0][0] <= now - WINDOW_SECONDS:
            self._start, gone = done.popleft()
            self._sum -= gone
        taken = now - max(self._start, now - WINDOW_SECONDS)
        if taken > 0:
            self.speeds[self._phase] = self._sum / taken


def units(trained: float, validated: float, seconds: float) -> float:
    """Return work per second; validating an instance is a third of training it."""
    return (trained + validated / 3) / seconds
