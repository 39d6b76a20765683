"""The observables of an `Echo`, which a query or a chart reads."""

from __future__ import annotations

import math

from looptap.training.echoing.auto_factor import StageMeter
from looptap.training.echoing.diagnosis import advice
from looptap.training.noted import Noted


class EchoObservables(Noted):
    """The part of an `Echo` that clients read: current numbers and texts."""

    _meter: StageMeter
    factor: float
    auto: bool
    mode: str

    def __init__(self) -> None:
        self.steps = 0
        """Batches handed over, in all epochs."""
        self.epoch = 0
        """The number of the epoch under way; between epochs, of those that have begun."""
        self.fresh = 0
        """Examples that were read."""
        self.seen = 0
        """Examples that were handed over, echoes included."""
        self.duplicates = 0
        """Examples of the newest batch that are echoes of others in it."""
        self.dropped = 0
        """Examples read or promised but not handed over: `end="drop"`, an incomplete last batch."""

    @property
    def ratio(self) -> float:
        """R: `up` / `down`. A factor up to that costs no time; NaN if unknown."""
        return self._meter.ratio

    @property
    def up(self) -> float:
        """Seconds between fresh batches if nothing delays the workers; NaN if unknown."""
        return self._meter.up

    @property
    def down(self) -> float:
        """Seconds the loop takes for a batch, including assembly; NaN if unknown."""
        return self._meter.down

    def speed_up(self, factor: float) -> float:
        """Return the expected speed-up of this factor over 1; NaN while unknown.

        With workers it is the factor, at most R.
        """
        return self._meter.speed_up(factor)

    @property
    def starved(self) -> float:
        """Share of time waiting for data in the last 64 batches, 0 to 1, or NaN."""
        return self._meter.waiting

    @property
    def stages(self) -> dict[str, float]:
        """Seconds per batch of each stage, by name.

        "read", "augment" and "collate" run in a worker, "batch" and "step" in the loop.
        """
        return self._meter.stages()

    @property
    def bottleneck(self) -> str:
        """The stage that slows the loop down; empty if unknown."""
        return self._advised()[0]

    @property
    def advice(self) -> str:
        """A sentence on what would help most; empty if unknown."""
        return self._advised()[1]

    def __repr__(self) -> str:
        ratio = self.ratio
        held = ", held by auto" if self.auto else ""
        known = "R is not known yet" if math.isnan(ratio) else f"R = {ratio:.3g}"
        return f"<{type(self).__name__}: factor {self.factor:g}{held}, mode {self.mode!r}, {known}>"

    def _advised(self) -> tuple[str, str]:
        return advice(self._meter, self.factor, self.mode, self._augments())

    def _augments(self) -> bool:
        raise NotImplementedError
