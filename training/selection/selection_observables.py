"""The observables of a `Selection`, which a query or a chart reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from looptap.training.noted import Noted
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Floats, Ints, PermutationWalk
from looptap.training.selection.audit import Audit, RatingQuality
from looptap.training.selection.honest_gain import HonestGain
from looptap.training.selection.methods.method import Method
from looptap.training.selection.switch import Switch


class SelectionObservables(Noted):
    """The part of a `Selection` that clients read: current numbers, and arrays of what is known of the instances."""

    epochs: int | None
    method: str
    floor: float

    def __init__(self, size: int, shard: Ints, batch_size: int, seed: Any) -> None:
        self.batch_size, self.shard = batch_size, shard
        self.table = InstanceTable(size)
        """What is known of each instance."""
        self.walk = PermutationWalk(shard, seed)
        """The order in which instances are offered."""
        self.note = ""
        """What is wrong or missing, and why; empty if nothing is."""
        self.epoch = 0
        """Epochs that have ended."""
        self.steps = 0
        """Steps that were observed."""
        self.given = 0
        """Batches of this epoch that were drawn."""
        self.taken = 0
        """Instances that were drawn, in all."""
        self.seconds_spent = 0.0
        """Seconds that selection took, in all."""
        self._gain, self._gate, self._audit = HonestGain(), Switch(), Audit()
        self._method = Method(self.table, self)  # type: ignore[arg-type] # the controls are declared by Selection
        self._selecting, self._inside, self._turn = False, False, 0
        self._end = 0  # instances that are offered by the end of this epoch

    # ------------------------------------------------------------ what it does

    @property
    def selecting(self) -> bool:
        """Whether instances are selected now; else all are drawn alike."""
        return self._selecting

    @property
    def why(self) -> str:
        """Why it selects or does not."""
        return self._gate.why if self._method.switched else f"{self.method!r} always selects"

    @property
    def elapsed(self) -> float | None:
        """The share of the planned instances that were offered, 0 to 1; None: there is no plan."""
        return None if self.epochs is None else min(1.0, self.walk.walked / (self.epochs * len(self.shard)))

    @property
    def kept(self) -> float:
        """The share of the offered instances that is trained on, as of late; 1 while all are."""
        kept = self._gain.kept
        return 1.0 if math.isnan(kept) or not self._selecting else kept

    @property
    def skipped(self) -> int:
        """Instances that were offered and not drawn, in all."""
        return self.walk.walked - self.taken

    @property
    def step_seconds(self) -> float:
        """Seconds of a step without selection; NaN before the first."""
        return self._gate.step_seconds

    @property
    def cost_seconds(self) -> float:
        """Seconds of selection in a step; NaN before the first."""
        return self._gate.cost_seconds

    @property
    def seconds_saved(self) -> float:
        """Seconds that the skipped instances would have taken; NaN before the first step."""
        return self.skipped / self.batch_size * self._gate.step_seconds

    # ------------------------------------------------------------ what it is worth

    @property
    def gain(self) -> float:
        """G: how much more a selected instance teaches than one at random, as measured; NaN while unknown."""
        return self._gain.value

    @property
    def net_gain(self) -> float:
        """The gain that is left after the cost of selection, at the last test of the switch; NaN before it."""
        return self._gate.net

    @property
    def threshold(self) -> float:
        """T: an instance whose loss is above it counts as important. The mean of the newest losses."""
        return self._method.threshold

    @property
    def quality(self) -> RatingQuality:
        """How well instances are rated, on the newest 4,096 that were drawn uniformly."""
        return self._audit.quality(self._method.cut, self._method.threshold)

    @property
    def accuracy(self) -> float:
        """The share of uniformly drawn instances that were judged right; NaN before the first.

        Losses are heavy-tailed, so most instances are trivial: compare `majority`, or read `auc`.
        """
        return self.quality.accuracy

    @property
    def majority(self) -> float:
        """The accuracy of always giving the more frequent answer; NaN before the first."""
        return self.quality.majority

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the accuracies on important and on trivial instances; NaN before the first."""
        return self.quality.balanced_accuracy

    @property
    def auc(self) -> float:
        """The chance that the important one of two instances is rated higher; NaN before the first."""
        return self.quality.auc

    @property
    def lift(self) -> float:
        """How much more frequent important instances are in the upper half of the ratings; NaN before the first."""
        return self.quality.lift

    @property
    def calibration(self) -> list[tuple[float, float, int]]:
        """For tenths of the ratings, their mean, the share that was important, and how many there were."""
        return self._audit.calibration(self._method.threshold)

    # ------------------------------------------------------------ the instances

    @property
    def scores(self) -> Floats:
        """The newest scores of the instances of this rank that have one; losses where only those are known."""
        known = self._method.predicted(self.shard)
        return known[np.isfinite(known)]

    @property
    def ages(self) -> Ints:
        """How many steps ago each instance of this rank that was seen was trained on."""
        last = self.table.last[self.shard]
        return self.steps - last[last >= 0]

    @property
    def acceptance_by_class(self) -> dict[int, float]:
        """The mean probability with which instances of each class would be drawn now."""
        ids = self.shard[self.table.label[self.shard] >= 0]
        if not len(ids):
            return {}
        labels, wanted = self.table.label[ids], self._method.acceptance(ids).probability
        counts, sums = np.bincount(labels), np.bincount(labels, wanted)
        return {label: float(sums[label] / counts[label]) for label in np.flatnonzero(counts).tolist()}

    def easiest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances that are drawn least often."""
        return self.shard[np.argsort(self._method.acceptance(self.shard).probability, kind="stable")[:count]]

    def hardest(self, count: int = 16) -> Ints:
        """Return the ``count`` instances with the highest scores or losses."""
        known = np.nan_to_num(self._method.predicted(self.shard), nan=-np.inf)
        return self.shard[np.argsort(-known, kind="stable")[:count]]

    def __repr__(self) -> str:
        doing = f"keeps {self.kept:.0%}" if self._selecting else "draws all alike"
        return f"<{type(self).__name__}: {self.method!r}, {doing}, epoch {self.epoch}, {self.why}>"
