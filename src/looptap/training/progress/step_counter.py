"""Counts the steps and instances of training, with few readings of the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from looptap.training.progress.loader_size import Sizes

_MAX_UNTIMED_STEPS = 31  # steps at most between two readings of the clock; odd, so that alternating batches are seen


class StepCounter:
    """The instances of training steps, some of which are counted together.

    A step of a millisecond then costs little. Steps are counted together for ``group_seconds``; with ``exact`` the size
    of each batch counts, not only that of some. With ``each_step`` every check is due.
    """

    def __init__(
        self, sizes: Sizes, clock: Callable[[], float], *, exact: bool, each_step: bool, group_seconds: float
    ) -> None:
        self.sizes, self.group_seconds = sizes, group_seconds
        self.due = -math.inf
        """When the steps are to be counted next, by the clock."""
        self.size = sizes.mean
        """Instances of the newest batch whose size is known."""
        self.sized = 0
        """Steps whose batch sizes are known."""
        self._clock, self._exact, self._each_step = clock, exact, each_step
        self._pending = 0.0  # instances trained but not counted yet
        self._counted = 0  # the steps at the last count
        self._odd = False
        self._chunk, self._mark = 1, (0.0, 0)  # steps until the next check; time and steps of the last one

    def begin(self, steps: int) -> None:
        """Begin an epoch after ``steps`` steps."""
        self._odd, self._chunk, self._mark = False, 1, (self._clock(), steps)

    def check(self, batch: Any, steps: int, in_epoch: int) -> tuple[int, bool]:
        """Take the newest batch into account.

        Returns the number of steps until the next check, and whether steps are to be counted now.
        """
        self._exact |= self._odd  # that was not the last batch of an epoch
        self._odd = self.see(batch, steps, in_epoch)
        now, (then, before) = self._clock(), self._mark
        few = self.group_seconds * (steps - before) / max(now - then, 1e-9)
        self._chunk = min(_MAX_UNTIMED_STEPS, 2 * self._chunk, max(1, int(few)))
        due = self._each_step or now >= self.due
        if due:
            self._mark = now, steps
        return (1 if self._exact else self._chunk), due

    def see(self, batch: Any, steps: int, in_epoch: int) -> bool:
        """Take ``batch`` and the steps since the last call into account.

        Returns True if the batch has another size than those before.
        """
        size, unseen = self.sizes.of(batch), steps - self.sized
        odd = in_epoch > 1 and size != self.size  # the last of an epoch may be smaller than its first
        self._pending += size + (unseen - 1) * (self.size if odd else size)
        self.sized, self.size = steps, size
        return odd

    def add(self, instances: float, steps: int) -> None:
        """Take a step on ``instances`` instances into account, the ``steps``-th."""
        self._pending += instances
        self.sized, self.size = steps, instances

    def flush(self, steps: int) -> float:
        """Return the instances that were trained since the last call."""
        if steps > self.sized:
            self._pending += (steps - self.sized) * self.size
            self.sized = steps
        instances, self._pending = self._pending, 0.0
        if instances:
            self.sizes.seen(instances, steps - self._counted)
            self._counted = steps
        return instances

    def resume(self, steps: int, size: float) -> None:
        """Continue after the steps of an earlier process, with its mean size."""
        self._counted = self.sized = steps
        self.sizes.known(size)
        self.size = self.sizes.mean
