"""What a kind of training is: a generator of its steps and validations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Trained(NamedTuple):
    """A training step on so many ``instances`` at a learning ``rate``."""

    instances: int
    rate: float


class Checked(NamedTuple):
    """A validation of so many ``instances``, and its result."""

    value: float
    instances: int


class Kind(NamedTuple):
    """A kind of training: what it is called and reports, and its run from a seed.

    ``reports`` names the validated metric, ``metric`` is its kind for `Progress`; ``run`` yields each step and each
    validation until the last. ``known`` is False where the schedule depends on what is validated.
    """

    name: str
    reports: str
    metric: str
    schedule: str
    min_delta: float
    run: Callable[[int], Iterator[Trained | Checked]]
    known: bool = True


Batches = Iterable[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


class Stepping(NamedTuple):
    """A schedule of the learning rate: its step, and whether it is due at each batch."""

    step: Callable[[], None]
    each_batch: bool = False


def supervised(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], Batches],
    loss: Loss,
    check: Callable[[], Checked],
    *,
    points: int,
    schedule: Stepping | None = None,
    plateau: Callable[[float], object] | None = None,
) -> Iterator[Trained | Checked]:
    """Train on ``batches`` of each point, then ``check``; ``plateau`` sees that."""
    for point in range(points):
        model.train()
        for inputs, targets in batches(point):
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
            yield Trained(len(inputs), rate_of(optimizer))
            if schedule is not None and schedule.each_batch:
                schedule.step()
        if schedule is not None and not schedule.each_batch:
            schedule.step()
        model.eval()
        with torch.no_grad():
            found = check()
        if plateau is not None:
            plateau(found.value)
        yield found


def rate_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])


def shuffled(inputs: Tensor, targets: Tensor, batch: int) -> Callable[[int], Batches]:
    """Return a function that yields the batches of an epoch in a new order."""

    def epoch(_: int) -> Batches:
        for chosen in torch.randperm(len(inputs)).split(batch):
            yield inputs[chosen], targets[chosen]

    return epoch


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], Checked]:
    """Return a check of the share of right classes."""
    return lambda: Checked((model(inputs).argmax(1) == targets).double().mean().item(), len(inputs))


def mean_loss(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Callable[[], Checked]:
    """Return a check of the mean loss."""
    return lambda: Checked(loss(model(inputs), targets).item(), len(inputs))


def f1(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], Checked]:
    """Return a check of the F1 of one logit, for (n, 1) targets; 0 without a hit."""

    def check() -> Checked:
        found, true = model(inputs) > 0, targets > 0.5
        right = (found & true).sum().item()
        return Checked(2 * right / max(1, found.sum().item() + true.sum().item()), len(inputs))

    return check
