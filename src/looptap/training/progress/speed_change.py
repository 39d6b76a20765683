"""The speed after a change: stated, measured since, and uncertainty of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from looptap.training.instances import expected_length, stated_length

# Standard deviations of the logarithm of a speed.
_RATE_NOISE = 0.06  # of a rate measured for `_RATE_NOISE_SECONDS`; it falls with the square root of the time
_RATE_NOISE_SECONDS = 60.0
_STATED_SPEED_NOISE = 0.25  # of a speed-up stated by the loader, as a share of the log growth of the epoch
_MIN_CHANGE = 0.05  # log change of a factor or a length; a smaller one is below the noise of a minute's rate
_COMMAND_SPEED_NOISE = 0.1  # of the speed after another command


def deviation(seconds: float) -> float:
    """Return the log deviation of a rate measured for ``seconds``; at most 1."""
    return min(1.0, _RATE_NOISE * math.sqrt(_RATE_NOISE_SECONDS / max(seconds, 1e-9)))


@dataclass
class SpeedChange:
    """An expected rate since a change, and the instances and seconds counted since.

    ``unsure`` is the standard deviation of its logarithm.

    >>> turn = SpeedChange(100.0, 0.7)
    >>> turn.rate, turn.spread
    (100.0, 0.7)
    >>> turn.count(64.0, 3.0); turn.count(3000.0, 60.0)
    >>> round(turn.rate, 1), round(turn.spread, 2)
    (50.3, 0.06)
    """

    expected: float
    unsure: float
    at: float = 0.0
    counted: float = 0.0
    seconds: float = 0.0
    begun: bool = False

    def count(self, instances: float, seconds: float) -> None:
        """Count trained instances; the first call, which began before, is left out."""
        if self.begun:
            self.counted += instances
            self.seconds += seconds
        self.begun = True

    @property
    def rate(self) -> float:
        """The expected rate, shifting to the measured one; at once if they are far apart."""
        off, share, _ = self._weighed()
        return self.expected * math.exp(share * off)

    @property
    def spread(self) -> float:
        """The standard deviation of the logarithm of `rate`."""
        _, share, noise = self._weighed()
        return math.sqrt(share) * noise if noise else self.unsure

    def _weighed(self) -> tuple[float, float, float]:
        if self.counted <= 0 or self.seconds <= 0:
            return 0.0, 0.0, 0.0
        noise = deviation(self.seconds)
        off = math.log(self.counted / self.seconds / self.expected)
        wide = max(self.unsure**2, off**2 - noise**2)
        return off, wide / (wide + noise**2), noise


class SpeedWatch:
    """Detector of changes to a loader's length or echo factor, and of commands."""

    def __init__(self) -> None:
        self._loader: Any = None
        self._length: float | None = None
        self._factor: float | None = None
        self.commands = self._seen_commands = 0

    def changed(self, loader: Any) -> tuple[float, float] | None:
        """Return the stated change of speed since the last call and its log deviation.

        None if nothing changed. A loader with a `factor` that states its effect (`speed_up`) is believed; one that
        became longer at once may be as fast as before, or that much faster. A length that changes gradually, or that
        the loader states as expected, says nothing about the speed of a batch.
        """
        length = None if stated_length(loader) is not None else expected_length(loader)
        factor, commands = _factor(loader), self.commands
        before = self._loader, self._length, self._factor, self._seen_commands
        self._loader, self._length, self._factor, self._seen_commands = loader, length, factor, commands
        if loader is before[0]:
            longer = _growth(before[2], factor)
            if factor and before[2] and not longer:
                self._factor = before[2]  # little changes add up
            longer = longer or _growth(before[1], length)
            if longer:
                stated = _stated_speed_up(loader, before[2], factor)
                unsure = abs(longer) * (_STATED_SPEED_NOISE if stated else 0.5)
                return stated or math.exp(longer / 2), unsure
        return (1.0, _COMMAND_SPEED_NOISE) if commands != before[3] else None


def _growth(before: float | None, now: float | None) -> float:
    """Return the logarithm of a growth that is more than noise; else 0."""
    longer = math.log(now / before) if now and before else 0.0
    return longer if abs(longer) > _MIN_CHANGE else 0.0


def _factor(loader: Any) -> float | None:
    try:
        found = loader.factor
    except Exception:  # as above; most lack one
        return None
    return float(found) if isinstance(found, int | float) and 0 < found < math.inf else None


def _stated_speed_up(loader: Any, before: float | None, now: float | None) -> float | None:
    """Return the speed-up that the loader states; None if it does not know."""
    try:
        found = loader.speed_up(now) / loader.speed_up(before)
    except Exception:  # as above
        return None
    return float(found) if 0 < found < math.inf else None
