"""Measure the pipeline's stages, and find the factor that just feeds the loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from looptap.training.echoing.worker_stages import Effort

_LATE_SHARE = 0.02
"""A fresh batch is late if the loop waited for more than this share of the time since the one before."""
_REST_SHARE = 0.1
"""A wait above this share of a step is a rest: the next steps are slower, with cold caches."""
_MIN_BATCHES, _MAX_REMEMBERED_BATCHES = 8, 512
"""Batches without a rest needed to estimate their duration, and how many batches back they may lie."""
_SHIFTED_BATCHES, _SHIFT_RATIO, _SHIFT_MARGIN_RATIO = 10, 1.6, 1.2
"""So many values in a row, of a median so many times off and each beyond the margin, are a change, not noise."""
_MAX_LOOKS = 48
"""How many checks of R `Auto` remembers; it takes the median of the later half."""
_PROBED_BATCHES, _PROBE_RATIO = 96, 0.85
"""After so many batches without a wait, a factor this much lower is tried where no worker says how long it takes."""
_COMPARED_BATCHES, _COMPARED_RATIO, _OVERLAPS_COUNT = 4, 0.2, 2
"""Waits at factors this far apart are compared, and so often in a row that shows a reader that reads ahead."""
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


class Recent(deque[float]):
    """The newest values; those before a change for good are forgotten at once."""

    def put(self, value: float) -> bool:
        """Add a value; return whether it showed that the values have changed."""
        self.append(value)
        if len(self) < 3 * _SHIFTED_BATCHES or len(self) % 2:
            return False
        found = list(self)
        last, before = found[-_SHIFTED_BATCHES:], median(found[:-_SHIFTED_BATCHES])
        apart = min(last) > before * _SHIFT_MARGIN_RATIO or max(last) < before / _SHIFT_MARGIN_RATIO
        if not apart or before / _SHIFT_RATIO < median(last) < before * _SHIFT_RATIO:
            return False
        self.clear()
        self.extend(last)
        return True


class StageMeter:
    """Recent seconds of each stage; ``workers`` read in parallel (0: no overlap)."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._steps: deque[float] = deque(maxlen=128)
        self._mains: deque[float] = deque(maxlen=128)
        self._waits: deque[float] = deque(maxlen=256)
        self._weighed: deque[float] = deque(maxlen=256)
        self._recent: deque[tuple[float, float]] = deque(maxlen=64)
        self._unrested: deque[tuple[int, int, float]] = deque(maxlen=128)
        self._number = self._since = 0
        self._stages: dict[str, Recent] = {}
        self._intervals = Recent(maxlen=64)
        self._serial = Recent(maxlen=64)
        self._efforts: deque[Effort] = deque(maxlen=64)
        self._scale, self._late = 1.0, False
        self._batches = self._arrivals = self._overlaps = 0
        self._earlier: tuple[float, float] | None = None
        self._paired: deque[tuple[float, float]] = deque(maxlen=128)
        """Of late fresh batches the interval, and what it would be by the times of the workers."""
        self.shifts = 0
        """How often the reader was seen to have become faster or slower."""

    def handed(self, step: float, main: float, wait: float) -> None:
        """Record a batch: seconds of use (``step``), assembly (``main``) and ``wait``."""
        self._steps.append(step)
        self._mains.append(main)
        self._waits.append(wait)
        self._weighed.append(step + main + wait)
        self._recent.append((wait, step + main + wait))
        self._number += 1
        self._batches += 1
        self._since = self._since + 1 if wait <= _REST_SHARE * (step + main) else 0
        if self._since:
            self._unrested.append((self._number, self._since, step + main))

    def arrived(self, wait: float, interval: float, seconds: dict[str, float], effort: Effort | None = None) -> None:
        """Record a fresh batch: its wait and interval, and what its reading took."""
        if effort is not None:
            self._efforts.append(effort)
        self._arrivals += 1
        for name, value in seconds.items():
            self.shifts += self._stages.setdefault(name, Recent(maxlen=128)).put(value)
        shifted = self._serial.put(wait)
        self.shifts += shifted and not self.workers
        late, self._late = self._late, wait > _LATE_SHARE * interval
        if (
            self.workers and late and self._late and self.starved > _STARVING_SHARE
        ):  # both were used as soon as they were ready
            self.shifts += self._intervals.put(interval)
            if seconds:
                self._paired.append((interval, sum(seconds.values()) / self.workers))
            if (inside := self._inside()) > 0:
                self._scale += (min(max(interval / inside, 0.2), 5.0) - self._scale) / 16

    def changed(self) -> None:
        """Drop the waits, which belong to another factor."""
        if not self.workers and len(self._serial) >= _COMPARED_BATCHES:
            self._compare(middle(self._serial), self._batches / self._arrivals)
        self._batches = self._arrivals = 0
        self._waits.clear()
        self._weighed.clear()

    def _compare(self, wait: float, echoes: float) -> None:
        """Find out whether a reader without known workers reads ahead.

        Then a fresh batch is waited for less, the more echoes the loop uses meanwhile.
        """
        earlier, self._earlier = self._earlier, (wait, echoes)
        self._serial.clear()
        if earlier is None or abs(more := echoes - earlier[1]) < _COMPARED_RATIO * echoes:
            return
        gone = min(abs(more) * self.down, max(wait, earlier[0]))
        self._overlaps = self._overlaps + 1 if (earlier[0] - wait) * math.copysign(1.0, more) > gone / 2 else 0
        if self._overlaps >= _OVERLAPS_COUNT:
            self.workers = 1

    @property
    def count(self) -> int:
        """Number of batches since the factor was changed, up to 256."""
        return len(self._waits)

    @property
    def times_stages(self) -> bool:
        """Whether workers report their times, so that a reader that is too fast shows."""
        return bool(self._stages) or not self.workers

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

    @property
    def mean_ratio(self) -> float:
        """R by plain means, which decide what is read in the long run; NaN if unknown."""
        used = sum(self._weighed) - sum(self._waits)
        inside = sum(sum(values) / len(values) for values in self._stages.values() if values) / max(self.workers, 1)
        if not used or not inside:
            return self.ratio
        apart = (
            [sum(part) for part in zip(*self._paired, strict=True)] if len(self._paired) >= _MIN_BATCHES else [1.0, 1.0]
        )
        return inside * min(max(apart[0] / apart[1], 0.2), 5.0) / (used / len(self._waits))

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

    @property
    def effort(self) -> Effort | None:
        """The shares of the readers' time for fresh batches, 0 to 1; None if unknown."""
        every = list(self._efforts)
        whole = sum(map(sum, every))
        return Effort(*(sum(part) / whole for part in zip(*every, strict=True))) if whole > 0 else None

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

    It checks R after 2 batches, 4 more, 8 more, and then every ``hold``, by the share of waiting where the loop
    starves, else by the times of the workers. If the median of the checks is off by more than ``band`` it changes the
    factor, later on by half of that. When the reader has changed, it begins again.
    """

    def __init__(self, bound: float, hold: int = 16, band: float = 0.08) -> None:
        self.bound, self.hold, self.band = bound, hold, band
        self._looked, self._wait, self._shifts = 0, min(2, hold), 0
        self._ratios: deque[float] = deque(maxlen=_MAX_LOOKS)

    def next(self, factor: float, meter: StageMeter, step: int) -> float:
        """Return the factor from batch ``step`` on."""
        shifted, self._shifts = meter.shifts != self._shifts, meter.shifts
        if shifted:
            meter.changed()
            self._ratios.clear()
        elif step - self._looked < self._wait or meter.count < min(self._wait, _MIN_BATCHES):
            return factor
        if math.isnan(ratio := self._ratio(factor, meter)):
            return factor
        if self._wait < self.hold:
            self._ratios.clear()
        self._looked, self._wait = step, min(2 * self._wait, self.hold)
        self._ratios.append(ratio)
        target = round(min(max(median(list(self._ratios)[len(self._ratios) // 2 :]), 1.0), self.bound), 2)
        if target == factor or (abs(target - factor) <= self.band * factor and target not in (1.0, self.bound)):
            return factor
        if len(self._ratios) > _MIN_BATCHES and target not in (1.0, self.bound):
            return round(math.sqrt(target * factor), 2)
        return target

    def _ratio(self, factor: float, meter: StageMeter) -> float:
        """Return R as it shows at this factor; NaN if unknown."""
        ratio, starved = meter.ratio, meter.starved
        if not meter.workers or meter.count < self.hold:
            return ratio
        needed = factor / max(1.0 - starved, 1.0 / self.bound)
        if starved > self.band:
            return needed
        if not meter.times_stages:  # a loader that is not known: less is tried, and shows whether it is too little
            patient = meter.count >= _PROBED_BATCHES and starved < _LATE_SHARE
            self._ratios.extend([factor * _PROBE_RATIO] * (_MAX_LOOKS * patient))
            return factor * _PROBE_RATIO if patient else factor
        return min(meter.mean_ratio, needed)
