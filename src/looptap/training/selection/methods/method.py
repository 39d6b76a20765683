"""`Method`: decides the probabilities of instances and their loss weights."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from looptap.training.sampling.instance_table import InstanceTable
from looptap.training.sampling.permutation_walk import Acceptance, Accepted, Floats, Ints, PermutationWalk
from looptap.training.saved_state import require_state
from looptap.training.selection.features.features import Features

Numbers: TypeAlias = npt.NDArray[np.floating[Any]]


class Settings(Protocol):
    """The settings that a user may change while a method runs."""

    floor: float
    """The least probability of an instance, 0 to 1."""
    cap: float
    """The highest loss that counts, in mean losses."""
    exponent: float
    """The share of the bias of selection that weights take away, 0 to 1."""
    learning_rate: float
    """That of an assistant."""
    seed: list[int]
    """Of the random numbers of a method."""
    batch_size: int
    """How many instances are trained on in a step."""
    shard: Ints
    """The instances of this rank."""
    switch: str
    """Where the switch stands: one of `SWITCH_POSITIONS`."""
    features: Features | None
    """What an assistant sees of the instances; None: nothing was given."""

    @property
    def elapsed(self) -> float | None:
        """The share of the plan that is done, 0 to 1; None without a plan."""


class Method:
    """Base class of methods, which draws everything alike, with weight 1.

    All methods share one `InstanceTable`, so a method that is chosen in mid-run begins with what is known.
    """

    name: ClassVar[str] = "uniform"
    switched: ClassVar[bool] = False
    """Whether the switch decides when it acts; else it always does, as published."""
    draws: ClassVar[bool] = False
    """Whether it draws some instances more often than others."""
    predicts: ClassVar[bool] = False
    """Whether what it predicts of an instance changes between the draw of that and the step on it."""

    def __init__(self, table: InstanceTable, settings: Settings) -> None:
        self.table, self.settings = table, settings

    def __getstate__(self) -> dict[str, Any]:
        """Copy it without its settings, which are those of the object that has the copy."""
        return {name: value for name, value in vars(self).items() if name != "settings"}

    @property
    def learns(self) -> bool:
        """Whether it needs the losses of every step; else the switch spares some."""
        return self.draws and not self.switched

    @classmethod
    def require(cls, settings: Settings) -> None:
        """Raise ControlError if something is missing that this method needs."""

    @property
    def batch_count(self) -> int:
        """The instances of a batch that it draws."""
        return self.settings.batch_size

    @property
    def why(self) -> str:
        """Why it draws, or why not, where the switch does not say so."""
        return f"{self.name!r} always selects" if self.draws else "all are drawn alike"

    def acts(self, on: bool) -> bool:
        """Return whether it draws now, by what the switch says."""
        return self.draws and (on or not self.switched)

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""

    def resume(self) -> None:
        """Begin to draw, after steps on instances that were drawn alike."""

    def draw(self, walk: PermutationWalk, count: int) -> Accepted:
        """Return the next batch of ``count`` instances."""
        return walk.take(count, self.acceptance)

    def acceptance(self, indices: Ints) -> Acceptance:
        """Return the probability with which each of ``indices`` is drawn."""
        return Acceptance(np.ones(len(indices), np.float32), 1.0)

    def correction(self, indices: Ints, probability: Floats) -> Floats | None:
        """Return the weights of losses, up to a factor.

        They are drawn with ``probability``. None: all weigh alike.
        """
        return None

    def weights(self, indices: Ints, probability: Floats) -> Floats | None:
        """Return the weights of losses that were drawn with ``probability``.

        None: all weigh 1.
        """
        return self.correction(indices, probability)

    def predicted(self, indices: Ints) -> Floats:
        """Return the predicted importance of each of ``indices``; NaN if unknown."""
        return self.table.loss[indices]

    def importance(self, indices: Ints) -> Numbers:
        """Return the number by which each of ``indices`` is drawn; NaN if unknown."""
        return self.predicted(indices)

    @property
    def threshold(self) -> float:
        """T, the loss above which an instance is important."""
        return self.table.mean_loss

    @property
    def cut(self) -> float:
        """The prediction above which an instance is judged important."""
        return self.table.mean_loss

    @property
    def gamma(self) -> float:
        """The share of the draws that an assistant decides; NaN without one."""
        return float("nan")

    def observe(self, indices: Ints, losses: Floats, scores: Floats | None) -> None:
        """Learn from a step, before the table does."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the table."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Raises ValueError if a part is missing."""
        require_state(state, self.state_dict(), f"the method {self.name!r}")
