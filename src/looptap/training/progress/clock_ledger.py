"""Book each second of a run to training, validation or neither.

Rates are instances per booked second over a recent window. Whole cycles are averaged, so a burst of prefetched batches
does not look like speed.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats
from looptap.training.progress.speed_change import SpeedChange, deviation

TRAIN, VALIDATION, OTHER = 0, 1, 2
"""The phases to which a second is booked."""
SHORT_WINDOW_SECONDS = 60.0
"""Seconds of the shorter of the two windows over which a rate is taken."""

_SUSPENDED_STEP_FACTOR = 20.0  # times the median step: the process was suspended in a longer gap
_MIN_GAP_SECONDS = 1.0  # shorter gaps do not count as suspended
_MAX_SAMPLES = 2000  # samples that are kept


class LedgerSample(NamedTuple):
    """The ledger at one moment: time booked, and instances and seconds per phase."""

    at: float
    trained: float
    train_time: float
    validated: float
    validation_time: float
    other_time: float


def steady(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that stands where ``clock`` goes back, fails or gives no number.

    >>> times = iter([1.0, float("nan"), 0.5, 2.0])
    >>> clock = steady(lambda: next(times))
    >>> [clock() for _ in range(5)]
    [1.0, 1.0, 1.0, 2.0, 2.0]
    """
    if clock is time.monotonic:
        return clock
    last: float | None = None

    def now() -> float:
        nonlocal last
        with contextlib.suppress(Exception):  # of the host's clock, which must not end its loop
            found = float(clock())
            if math.isfinite(found) and (last is None or found > last):
                last = found
        return last or 0.0

    return now


class Ledger:
    """The ledger of one run; ``clock`` returns monotonic seconds.

    >>> now = iter([0.0, 1.0, 2.0, 3.0])
    >>> ledger = Ledger(lambda: next(now))
    >>> ledger.phase(TRAIN); ledger.count(64); ledger.count(64)
    >>> ledger.seconds[TRAIN], ledger.counts[TRAIN]
    (2.0, 128.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts = [0.0, 0.0]
        """Instances of training and of validation that were handled in this process and before."""
        self.seconds = [0.0, 0.0, 0.0]
        """Seconds booked to training, validation and other, in this process, since training began."""
        self.suspended = 0.0
        """Seconds in which the process was suspended or paused, not booked to a phase."""
        self.now = self._opened = self._clock()
        self.paused = 0.0
        """Seconds of pauses that have ended and are not booked yet."""
        self._phase, self._began = OTHER, False
        self._steps: tuple[deque[float], deque[float]] = (deque(maxlen=101), deque(maxlen=101))
        self._samples: list[LedgerSample] = []
        self._interval = 0.1
        self._turn: SpeedChange | None = None
        self._counted = 0.0  # seconds of training when a batch was counted last
        self._first = 0  # the sample after the first batches, which were slow; after the next ones there are no earlier
        self._steady = False  # whether there are others, or training has paused
        self._sample()

    def phase(self, phase: int) -> None:
        """Book time to ``phase`` from now on."""
        self._book()
        if phase == TRAIN and not self._began:
            self._began, self.seconds[OTHER] = True, 0.0  # the start is not part of the cycles that follow
        self._steady |= self._first > 0 and phase != TRAIN  # no more batches may come at once
        self._phase = phase
        self._sample()

    def leave(self) -> None:
        """Book the time since the last count to neither phase: the loop was left."""
        self._phase = OTHER

    def count(self, instances: float) -> None:
        """Count a batch of the current phase."""
        taken = self._book(counted=True)
        if self._phase != OTHER:
            self.counts[self._phase] += instances
        if self._phase == TRAIN:
            if self._turn is not None:
                self._turn.count(instances, self.seconds[TRAIN] - self._counted)
            self._counted = self.seconds[TRAIN]
            self._leave_out_first()
        if sum(self.seconds) - self._samples[-1].at >= self._interval:
            self._sample()
        if self._phase != OTHER:
            self._steps[self._phase].append(taken)

    def _leave_out_first(self) -> None:
        """Take no rate over the first batches, see `rate`."""
        if self._first > 0:
            del self._samples[: self._first]
            self._first, self._steady = -1, True
        elif not self._first:
            self._sample()
            self._first = len(self._samples) - 1

    @property
    def current(self) -> int:
        """The phase to which time is booked now."""
        return self._phase

    def elapsed(self) -> float:
        """Return the seconds since the ledger was opened."""
        return self._clock() - self._opened

    def resume(self, trained: float, *, begun: bool = False) -> None:
        """Count ``trained`` instances, whose speed is unknown.

        They are those of earlier processes or, if training has ``begun``, the first batches of this one.
        """
        self.counts[TRAIN] = trained
        self._samples.clear()
        self._turn, self._steady, self._first = None, begun, -1 if begun else 0
        self._sample()

    def turned(self, stated: float, unsure: float) -> None:
        """Expect training at ``stated`` times the speed, with log deviation ``unsure``.

        Rates use no time before the change; the stated factor counts less and less. Unknown changes (1.0) between which
        no batch was counted are one.
        """
        if stated == 1.0 and self._turn is not None and not self._turn.counted:
            return
        self._book()
        rate = self.rate(TRAIN, SHORT_WINDOW_SECONDS)
        if rate is not None:
            self._turn = SpeedChange(
                rate * stated, math.hypot(self.unsure(SHORT_WINDOW_SECONDS), unsure), sum(self.seconds)
            )

    def unsure(self, window: float) -> float:
        """Return the log deviation of the training rate; 0 a ``window`` after a change."""
        if (turn := self._reached(window)) is not None:
            return turn.spread
        return deviation(self.seconds[TRAIN]) if sum(self.seconds) < window else 0.0

    def _reached(self, window: float) -> SpeedChange | None:
        return None if self._turn is None or sum(self.seconds) - window >= self._turn.at else self._turn

    def pause(self, seconds: float) -> None:
        """Leave out ``seconds`` that have just passed: the loop was paused."""
        self.paused += seconds

    def training(self) -> tuple[Floats, Floats]:
        """Return instances and seconds of training at moments since a change."""
        since = 0.0 if self._turn is None else self._turn.at
        found = [(one.trained, one.train_time) for one in self._samples if one.at >= since]
        trained, seconds = np.array(found, float).reshape(-1, 2).T
        return trained, seconds

    def most_ahead(self, seconds: float) -> float:
        """Return how much of ``seconds`` after `now` may count as work.

        A step under way counts no longer than a step usually takes: a process that hangs does not come nearer to its
        end.
        """
        steps = self._steps[self._phase] if self._phase != OTHER else ()
        return seconds + steps[len(steps) // 2] if steps else 0.0

    def settle(self) -> None:
        """Book the time up to now."""
        self._book()

    def _book(self, counted: bool = False) -> float:
        """Book the time since the last call; return it without pauses."""
        now = self._clock()
        gap, self.now = now - self.now, now
        if self.paused:
            paused, self.paused = min(gap, self.paused), 0.0
            gap -= paused
            self.suspended += paused
        taken = gap
        if counted and gap > _MIN_GAP_SECONDS and self._phase != OTHER and len(steps := self._steps[self._phase]) >= 5:
            usual = _SUSPENDED_STEP_FACTOR * statistics.median(steps)
            if gap > max(usual, _MIN_GAP_SECONDS):
                self.suspended += gap - usual
                gap = usual
        self.seconds[self._phase] += gap
        return taken

    def _sample(self) -> None:
        self._samples.append(self._now())
        if len(self._samples) > _MAX_SAMPLES:  # thin out the older half
            half = _MAX_SAMPLES // 2
            self._samples[:half] = self._samples[:half:2]
            self._interval = max(self._interval, (sum(self.seconds) - self._samples[0].at) / _MAX_SAMPLES)

    def _now(self) -> LedgerSample:
        return LedgerSample(
            sum(self.seconds), self.counts[0], self.seconds[0], self.counts[1], self.seconds[1], self.seconds[2]
        )

    def rate(self, phase: int, window: float) -> float | None:
        """Return ``phase`` instances per second in the last ``window`` seconds, or None.

        It is None while training has only begun: the first batches start workers, and compile. A window without the
        phase extends back to the last time it ran, but not beyond a change.
        """
        if phase == TRAIN and not self._steady:
            return None
        if phase == TRAIN and (turn := self._reached(window)) is not None:
            return turn.rate
        count, seconds = (1, 2) if phase == TRAIN else (3, 4)
        last = self._now()
        index = bisect_left(self._samples, last.at - window, key=lambda sample: sample.at)
        index = min(max(index - 1, 0), len(self._samples) - 1)
        while True:
            first = self._samples[index]
            handled, taken = last[count] - first[count], last[seconds] - first[seconds]
            if handled > 0:
                return float(handled / max(taken, 1e-9))
            if index == 0:
                return None
            index = max(0, index - max(1, (len(self._samples) - index) // 2))
