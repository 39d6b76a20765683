"""`Published` and `Repaired`: prioritized gradient descent (PGD)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import numpy as np

from looptap.streams.errors import ControlError
from looptap.training.prioritized.methods.priority_trends import PriorityTrends
from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Accepted, Bools, Floats, Ints, PermutationWalk
from looptap.training.selection.methods.method import Method, Numbers, Settings
from looptap.training.selection.switch import OFF, ON

_SHORT_DECAY_FACTOR = 0.8  # of the average gradient of "repaired", a step
_MAX_LOSS_FACTOR = 1.2  # of the least mean loss so far: above it a round counts as bad
_MAX_BAD_ROUNDS_NUMBER = 3  # in a row, after which prioritization stops
AGGRESSIVE, SELECTIVE = "A", "S"
VARIANTS = (AGGRESSIVE, SELECTIVE)
"""PGD-A steps by the gradients of all that are computed, PGD-S by those of the top alone."""


class PrioritySettings(Settings, Protocol):
    """The settings of methods that use priorities."""

    k: float
    """Top ratio: the share of the examples that is computed for a high priority, in a step."""
    r: float
    """Renewal ratio: the share that is computed in turn."""
    lam: float
    """Lambda: how much of a trend is kept where a priority is measured again."""
    variant: str
    """One of `VARIANTS`."""
    model: Any
    """The model; None: not given."""

    @property
    def sharding(self) -> str:
        """Why no rank has whole gradients of the model; "": each has."""

    trends: PriorityTrends
    """What is known of the priorities."""


class Published(Method):
    """PGD as published: steps on examples of high priority, and on some in turn.

    A priority is ``p = gbar . g``, the examples' gradient along gbar. Of N examples, a step computes the next r N of a
    fixed random order (S) and the k N of highest estimated priority among the others (T); then ``gbar = (1 - r - k) *
    gbar + G``, with G the sum of their gradients, and the step is along ``G / ((r + k) N)``; in variant "S" along the
    mean over T alone. Two passes over the data without a step come first: for gbar, then for all priorities. Where
    they ended, S and T of a step are disjoint, and both see the same weights.

    Not published: it stops to prioritize if the mean loss of S over a round was 20% above the least so far three times
    in a row, unless the switch is on.
    """

    name: ClassVar[str] = "published"
    draws: ClassVar[bool] = True
    needs_priorities: ClassVar[bool] = True
    initial_passes: ClassVar[int] = 2
    settings: PrioritySettings

    def __init__(self, table: InstanceTable, settings: PrioritySettings) -> None:
        super().__init__(table, settings)
        self._shard = np.unique(settings.shard)
        self._order = np.random.default_rng([*settings.seed, 6]).permutation(self._shard)
        self.step = 0
        """Steps of this method so far, without those of the initial passes."""
        self._pointer = 0  # in the order: how much of it was drawn in turn, over all rounds
        self._drawn_first = self._done_first = 0  # of the initial passes, drawn and computed
        self._round = [0.0, 0]  # the sum and number of the losses of S
        self._least, self._bad = math.inf, 0
        known = settings.trends.priority[self._shard]
        if (known == known).all():  # another method has measured them: the initial passes would tell nothing new
            self._drawn_first = self._done_first = self.initial_passes * len(self._shard)
            self.step = int(settings.trends.at[self._shard].max()) + 1

    @classmethod
    def require(cls, settings: Any) -> None:
        """Raise ControlError without a model, whose whole gradients are needed."""
        if settings.model is None:
            raise ControlError(
                f"the method {cls.name!r} needs the model, for priorities: Prioritized(data, model, ...). 'norm' and "
                "'loss' do without."
            )
        if settings.sharding:
            raise ControlError(f"the method {cls.name!r} needs the whole gradients on each rank: {settings.sharding}")

    # ------------------------------------------------------------ what is drawn

    @property
    def batch_count(self) -> int:
        """The examples of a step, (r + k) N."""
        return min(sum(self._counts()), len(self._shard))

    def _counts(self) -> tuple[int, int]:
        n = len(self._shard)
        return max(1, round(self.settings.r * n)), max(1, round(self.settings.k * n))

    def acts(self, on: bool) -> bool:
        """Return False if the switch is off, or if the loss diverged and it is not on."""
        position = self.settings.switch
        return position == ON or (position != OFF and not self.diverged)

    @property
    def why(self) -> str:
        """Why it prioritizes, or why not."""
        if not self.acts(on=True):
            return "the loss of three rounds was too high" if self.diverged else "turned off by hand"
        if self.initial_pass < 2:
            return f"{self.name!r} makes initial pass {self.initial_pass + 1} of 2, without a step"
        return f"{self.name!r} always prioritizes"

    def draw(self, walk: PermutationWalk, count: int) -> Accepted:
        """Return S and T of the next step, or the next part of an initial pass."""
        first = self.initial_passes * len(self._shard) - self._drawn_first
        if first > 0:
            place = self._drawn_first % len(self._shard)
            ids = self._order[place : place + count]
            self._drawn_first += len(ids)
            renewed = np.ones(len(ids), np.bool_)
        else:
            ids, renewed = self._renewed_and_top(count)
        walk.walked += len(ids)
        return Accepted(ids, np.ones(len(ids), np.float32), renewed)

    def _renewed_and_top(self, count: int) -> tuple[Ints, Bools]:
        n, (renewals, _) = len(self._shard), self._counts()
        others = np.roll(self._order, -(self._pointer % n))
        renewals = min(renewals, count)
        estimated = self.settings.trends.estimate(others[renewals:], self.step)
        known = int(np.count_nonzero(estimated == estimated))
        short = max(0, count - renewals - known)  # as long as too few are known, the next ones in turn
        renewals += short
        estimated = estimated[short:]
        top = np.argsort(-np.nan_to_num(estimated, nan=-np.inf), kind="stable")[: count - renewals]
        ids = np.concatenate([others[:renewals], others[renewals:][top]])
        self._pointer += renewals
        renewed = np.zeros(len(ids), np.bool_)
        renewed[:renewals] = True
        return ids, renewed

    # ------------------------------------------------------------ in the step

    @property
    def initial_pass(self) -> int:
        """0: in the pass for gbar, 1: in that for the priorities, 2: past them."""
        first = self._done_first // len(self._shard)
        return 2 if first >= self.initial_passes else first

    @property
    def separate(self) -> bool:
        """Whether the step is along the gradients of T alone."""
        return self.settings.variant == SELECTIVE

    @property
    def from_renewed(self) -> bool:
        """Whether gbar is an average of the gradients of S alone."""
        return False

    def average_decay(self, count: int) -> float:
        """Return how much of gbar a step on ``count`` examples keeps."""
        if self.initial_pass == 0:
            done = self._done_first
            return done / (done + count)
        return 1.0 - min(1.0, count / len(self._shard))

    def computed(self, count: int) -> None:
        """Count a step on ``count`` examples."""
        if self.initial_pass < 2:
            self._done_first += count
        else:
            self.step += 1

    # ------------------------------------------------------------ the guard

    @property
    def diverged(self) -> bool:
        """Whether the loss was too high for three rounds."""
        return self._bad >= _MAX_BAD_ROUNDS_NUMBER

    def forgive(self) -> None:
        """Begin to prioritize again, with the losses of the coming rounds."""
        self._round, self._least, self._bad = [0.0, 0], math.inf, 0

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Add the losses of S; a round over all examples is an evaluation."""
        if self.initial_pass < 2 or not self.step:
            return
        renewed = losses[self.table.uniform[indices]]
        self._round = [self._round[0] + float(renewed.sum()), self._round[1] + len(renewed)]
        if self._round[1] >= len(self._shard):
            mean = self._round[0] / self._round[1]
            self._round = [0.0, 0]
            self._bad = self._bad + 1 if mean > _MAX_LOSS_FACTOR * self._least else 0
            self._least = min(self._least, mean)

    def predicted(self, indices: Ints) -> Floats:
        """Return NaN: priorities do not predict losses."""
        return np.full(len(indices), np.nan, np.float32)

    def importance(self, indices: Ints) -> Numbers:
        """Return the estimated priorities of ``indices``."""
        return self.settings.trends.estimate(indices, self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table or in the trends."""
        return {
            "step": self.step,
            "pointer": self._pointer,
            "drawn_first": self._drawn_first,
            "done_first": self._done_first,
            "round": list(self._round),
            "least": self._least,
            "bad": self._bad,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state)
        self.step, self._pointer = state["step"], state["pointer"]
        self._drawn_first, self._done_first = state["drawn_first"], state["done_first"]
        self._round, self._least, self._bad = list(state["round"]), state["least"], state["bad"]


class Repaired(Published):
    """PGD whose gbar is a short average over S alone, and without initial passes.

    gbar forgets in some five steps the directions already descended, and examples of high priority do not feed it. S
    and T are as in `Published`, with examples in turn in place of T until priorities are known.
    """

    name: ClassVar[str] = "repaired"
    initial_passes: ClassVar[int] = 0

    @property
    def separate(self) -> bool:
        """False: the step is along the mean over S and T."""
        return False

    @property
    def from_renewed(self) -> bool:
        """True."""
        return True

    def average_decay(self, count: int) -> float:
        """Return how much of gbar a step keeps."""
        return _SHORT_DECAY_FACTOR
