"""Trainings by the methods of `Prioritized`, in the selection's loop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).resolve().parents[1] / "selection"))

from selection_runs import DEFAULT, PLAIN, Curve, Job, Training
from selection_stages import Protocol, Results

from looptap.training.prioritized import Prioritized


class Variant(NamedTuple):
    """A method with its settings."""

    method: str
    k: float = 0.01
    r: float = 0.01
    variant: str = "A"


VARIANTS = {
    "PGD-A": Variant("published"), "PGD-S": Variant("published", variant="S"), "repaired": Variant("repaired"),
    "loss, unbiased": Variant("loss"),
}  # fmt: skip
"""What is compared with uniform sampling and the default, by its name in the tables."""
METHODS = (PLAIN, DEFAULT, *VARIANTS)
"""All of them."""


class Step:
    """Goes back as a loss does."""

    def __init__(self, prioritized: Prioritized, where: Tensor, losses: Tensor) -> None:
        self._given = prioritized, where, losses

    def backward(self) -> None:
        """Set the gradients of the step."""
        prioritized, where, losses = self._given
        prioritized.backward(where, losses)


class PrioritizedTraining(Training):
    """A training of which `Prioritized` draws the batches."""

    def sampler(self) -> Any:
        """Return a `Prioritized` with the settings of the job's method."""
        found = VARIANTS[self.job.method]
        return Prioritized(
            self.size, self.model, self.task.batch, found.method, k=found.k, r=found.r, variant=found.variant,
            switch="on", seed=self.job.seed, floor=self.job.floor,
        )  # fmt: skip

    def loss(self, selection: Any, where: Tensor, logits: Tensor, wanted: Tensor) -> Any:
        """Return the step of a batch."""
        losses = cross_entropy(logits, wanted, reduction="none")
        return Step(selection, where, losses.flatten(1).mean(1) if losses.ndim > 1 else losses)


def train(job: Job, target: float) -> Curve:
    """Do a training; uniform sampling and the default are the selection's."""
    return (PrioritizedTraining if job.method in VARIANTS else Training)(job).run(target)


class PrioritizedResults(Results):
    """Curves of all methods; those of the selection's benchmark are only read."""

    def __init__(self, path: Path, protocol: Protocol, shared: Path, processes: int | None = None) -> None:
        super().__init__(path, protocol, train, processes)
        if shared.exists():
            known = Results(shared, protocol).found
            self.shared = {job: curve for job, curve in known.items() if job.method in (PLAIN, DEFAULT)}
        else:
            self.shared = {}
        self.found = self.shared | self.found

    def write(self) -> None:
        """Save what was done here."""
        every = self.found
        self.found = {job: curve for job, curve in every.items() if job not in self.shared}
        super().write()
        self.found = every
