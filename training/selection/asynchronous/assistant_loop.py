"""`assist`: the loop of an assistant: make batches, else learn (Algorithm 2)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from looptap.training.sampling.permutation_walk import Accepted, Floats, Ints, PermutationWalk
from looptap.training.selection.features.features import Features
from looptap.training.selection.methods.autoassist import AutoAssist

MAX_BATCHES_AHEAD, MAX_PENDING_LOSSES = 8, 32
"""c, the batches of the BossQueue, and the steps of the AssistantQueue."""
IDLE_SECONDS = 0.05
"""How long an assistant waits for losses before it looks at the BossQueue again."""


class Made(NamedTuple):
    """A batch that an assistant made."""

    accepted: Accepted
    prediction: Floats
    offered: int
    """How many instances were offered to it for that."""


class AssistantQueues(Protocol):
    """The assistant's end of the two queues."""

    @property
    def closed(self) -> bool:
        """True once the loop does not need the assistant any more."""

    @property
    def wants_batch(self) -> bool:
        """True if the BossQueue is shorter than c."""

    def put_batch(self, made: Made) -> None:
        """Append to the BossQueue."""

    def next_losses(self) -> tuple[Ints, Floats] | None:
        """Take from the AssistantQueue; None if there was nothing for `IDLE_SECONDS`."""


class AssistantSettings:
    """The settings of an assistant, which must not keep a selection alive."""

    floor, cap, exponent = 0.0, 1.0, 1.0
    elapsed = None
    batch_size = 1
    reference: Floats | None = None

    def __init__(self, features: Features, rate: Floats) -> None:
        self.shard, self.seed = np.empty(0, np.int64), [0]
        self.features: Features | None = features
        self._rate = rate  # an array of one element that both sides see

    @property
    def learning_rate(self) -> float:
        """The learning rate of the assistant, as last set by the loop."""
        return float(self._rate[0])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._rate[0] = value


@np.errstate(all="ignore")  # what is not finite ends it with a reason
def assist(queues: AssistantQueues, method: AutoAssist, walk: PermutationWalk, batch_size: int) -> None:
    """Make batches and learn, until the queues are closed."""
    while not queues.closed:
        if queues.wants_batch:
            before = walk.walked
            found = walk.take(batch_size, method.acceptance)
            queues.put_batch(Made(found, method.predicted(found.indices), walk.walked - before))
        elif (seen := queues.next_losses()) is not None:
            method.observe(*seen, None)
