"""Measure the pipeline's stages, and find the factor that just feeds the loop."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable

_LATE_SHARE = 0.02
"""A fresh batch is late if the loop waited for more than this share of the time since the one before."""
_REST_SHARE = 0.1
"""A wait above this share of a step is a rest: the next steps are slower, with cold caches."""
_MIN_BATCHES, _MAX_REMEMBERED_BATCHES = 8, 512
"""Batches without a rest needed to estimate their duration, and how many batches back they may lie."""
_STARVING_SHARE = 0.2
"""Above this share of waiting most batches are late, so intervals measure them; below, only slow ones are."""


def middle(values: Iterable[float]) -> float:
    """Return the mean without the lowest and highest tenth; NaN if empty.

    >>> middle([1.0] * 9 + [1000.0])
    1.0
    """
    found = sorted(values)
    cut = len(found) // 10
    found = found[cut : len(found) - cut]
    return sum(found) / len(found) if found else math.nan


class StageMeter:
    """Recent seconds of each stage; ``workers`` read in parallel (0: no overlap)."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._steps: deque[float] = deque(maxlen=64)
        self._mains: deque[float] = deque(maxlen=64)
        self._waits: deque[float] = deque(maxlen=64)
        self._weighed: deque[float] = deque(maxlen=64)
        self._recent: deque[tuple[float, float]] = deque(maxlen=64)
        self._unrested: deque[tuple[int, int, float]] = deque(maxlen=64)
        self._number = self._since = 0
        self._stages: dict[str, deque[float]] = {}
        self._intervals: deque[float] = deque(maxlen=32)
        self._serial: deque[float] = deque(maxlen=32)
        self._scale, self._late = 1.0, False

    def handed(self, step: float, main: float, wait: float) -> None:
        """Record a batch: seconds of use (``step``), assembly (``main``) and ``wait``."""
        self._steps.append(step)
        self._mains.append(main)
        self._waits.append(wait)
        self._weighed.append(step + main + wait)
        self._recent.append((wait, step + main + wait))
        self._number += 1
        self._since = self._since + 1 if wait <= _REST_SHARE * (step + main) else 0
        if self._since:
            self._unrested.append((self._number, self._since, step + main))

    def arrived(self, wait: float, interval: float, seconds: dict[str, float]) -> None:
        """Record a fresh batch: its wait, its interval, and the seconds of its stages."""
        for name, value in seconds.items():
            self._stages.setdefault(name, deque(maxlen=32)).append(value)
        self._serial.append(wait)
        late, self._late = self._late, wait > _LATE_SHARE * interval
        if (
            self.workers and late and self._late and self.starved > _STARVING_SHARE
        ):  # both were used as soon as they were ready
            self._intervals.append(interval)
            if (inside := self._inside()) > 0:
                self._scale += (min(max(interval / inside, 0.2), 5.0) - self._scale) / 16

    def changed(self) -> None:
        """Drop the waits, which belong to another factor."""
        self._waits.clear()
        self._weighed.clear()

    @property
    def count(self) -> int:
        """Number of batches since the factor was changed, up to 64."""
        return len(self._waits)

    @property
    def down(self) -> float:
        """Seconds the consumer takes for a batch, assembly included; NaN if unknown.

        Batches without waiting count if there were some recently: the consumer is slower after a wait, and with a
        factor of `ratio` it does not wait.
        """
        if self.workers:
            first, lately = self._number - _MAX_REMEMBERED_BATCHES, list(self._unrested)
            for least in (2, 1):
                found = [took for number, since, took in lately if since >= least and number > first]
                if len(found) >= _MIN_BATCHES:
                    return middle(found)
        return middle(list(self._steps)) + middle(list(self._mains))

    @property
    def up(self) -> float:
        """Seconds between fresh batches if nothing delays the workers; NaN if unknown."""
        if not self.workers:
            return middle(list(self._serial))
        if self.starved > _STARVING_SHARE and self._intervals:
            return middle(list(self._intervals))
        inside = self._inside() * self._scale
        return inside if inside > 0 else math.nan

    @property
    def ratio(self) -> float:
        """R: `up` / `down`. A factor up to this costs no time; NaN if unknown."""
        down = self.down
        return self.up / down if down > 0 else math.nan

    def speed_up(self, factor: float) -> float:
        """Return the factor of steps per second that this echo factor brings, or NaN."""
        up, down = self.up, self.down
        if not self.workers:
            return (up + down) / (up / factor + down)
        return max(up, down) / max(up / factor, down)

    @property
    def starved(self) -> float:
        """Share of time waiting for data since the factor was changed, 0 to 1."""
        whole = sum(list(self._weighed))
        return min(1.0, sum(list(self._waits)) / whole) if whole > 0 else 0.0

    @property
    def waiting(self) -> float:
        """Share of time waiting for data in the last 64 batches, 0 to 1, or NaN."""
        recent = list(self._recent)
        whole = sum(time for _, time in recent)
        return min(1.0, sum(wait for wait, _ in recent) / whole) if whole > 0 else math.nan

    def stages(self) -> dict[str, float]:
        """Return the seconds per batch of each stage, by name.

        These are "read", "augment" and "collate" in a worker, "batch" and "step" here.
        """
        found = {name: middle(list(values)) for name, values in list(self._stages.items())}
        return found | {"batch": middle(list(self._mains)), "step": middle(list(self._steps))}

    def costs(self, factor: float) -> dict[str, float]:
        """Return the seconds a fresh batch of each stage alone would delay the loop."""
        many = max(self.workers, 1)
        return {
            name: seconds * factor if name in ("batch", "step") else seconds / many
            for name, seconds in self.stages().items()
            if not math.isnan(seconds)
        }

    def _inside(self) -> float:
        """Return the seconds between fresh batches by their time in workers; 0: unknown."""
        return sum(middle(list(values)) for values in list(self._stages.values())) / max(self.workers, 1)


class Auto:
    """Policy that keeps the factor at R, from 1 to ``bound``, to just feed the loop.

    It checks after 2 batches, 4 more, 8 more, and then every ``hold``, and changes the factor if it is off by more
    than ``band``.
    """

    def __init__(self, bound: float, hold: int = 16, band: float = 0.1) -> None:
        self.bound, self.hold, self.band = bound, hold, band
        self._looked, self._wait = 0, min(2, hold)

    def next(self, factor: float, meter: StageMeter, step: int) -> float:
        """Return the factor from batch ``step`` on."""
        if step - self._looked < self._wait or meter.count < self._wait or math.isnan(ratio := meter.ratio):
            return factor
        self._looked, self._wait = step, min(2 * self._wait, self.hold)
        target = round(min(max(ratio, 1.0), self.bound), 2)
        if target == factor or (abs(target - factor) <= self.band * factor and target not in (1.0, self.bound)):
            return factor
        return target


def advice(meter: StageMeter, factor: float, mode: str, augmented: bool) -> tuple[str, str]:
    """Return the slowest stage and what would help; empty texts while unknown.

    >>> meter = StageMeter(0)
    >>> for _ in range(20):
    ...     meter.arrived(0.06, 0.07, {"read": 0.06})
    ...     meter.handed(0.01, 0.0, 0.06)
    >>> advice(meter, 1.0, "batch", False)[0]
    'read'
    """
    costs, ratio = meter.costs(factor), meter.ratio
    if math.isnan(ratio):
        return "", ""
    slowest = max(costs, key=lambda name: costs[name])
    fresh = {name: cost for name, cost in costs.items() if name not in ("batch", "step")}
    dearest = max(fresh, key=lambda name: fresh[name]) if fresh else "read"
    if ratio <= 1.0:
        return slowest, f"The data is there in time (R = {ratio:.2g}): echoing saves nothing here."
    gain = f"R = {ratio:.2g}"
    if not meter.workers:
        return slowest, (
            f"{gain}, and reading and steps take turns: num_workers=1 or more overlaps them, and brings fresh data."
        )
    spare = (os.cpu_count() or 1) - meter.workers
    if spare >= meter.workers:
        workers = f"each of {meter.workers} workers" if meter.workers > 1 else "the one worker"
        idle = f"{spare} processors have" if spare > 1 else "1 processor has"
        return slowest, (
            f"{gain}: {dearest!r} takes {fresh.get(dearest, math.nan) * meter.workers * 1e3:.3g} ms a batch in "
            f"{workers}, and {idle} none: more workers help more, with fresh data."
        )
    if dearest == "augment" and mode == "example_before_augment":
        return slowest, f"{gain}, most of it augmentation, which is repeated for each copy: echo after it."
    if dearest == "collate" and mode != "batch":
        return slowest, f"{gain}, most of it collating: echo batches."
    if dearest == "read" and mode.startswith("batch") and augmented:
        return slowest, f"{gain}, most of it reading: echo examples, before they are augmented."
    return slowest, f"{gain}: a factor up to that costs no time. Faster reading and decoding would help more."
