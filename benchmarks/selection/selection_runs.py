"""One training with one method: the same loop for all."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from digit_copies import SIDE, Split
from selection_arithmetic import SMOOTHED, smooth
from selection_baselines import BASELINES, BaselineSelection
from selection_tasks import TASKS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from looptap.training.sampling.per_example import CrossEntropy
from looptap.training.sampling.permutation_walk import everything
from looptap.training.selection import METHODS, Selection
from looptap.training.selection.features import pixels_and_class

PLAIN, DEFAULT, ORACLE = "uniform", "norm", "oracle"
COUNTED, DECAYING, TIMED = "counted", "decaying", "timed"
"""Kinds of runs: a constant rate with the switch on, one that falls to 0 at the end, the switch acting on its own."""
_AVERAGED = 0.95  # a step: of the weights that are judged
_FORWARD_COST = 1 / 3  # of an instance that is trained on
_REFRESHED = 10  # times an epoch: how often the oracle learns all losses
_REFERENCE, _REFERENCE_EPOCHS = 1000, 8  # of the model that "rho" compares with
_LOSS_SAMPLE = 800  # training instances whose loss is measured


class Job(NamedTuple):
    """One training; all that a result depends on."""

    task: str
    method: str
    rate: float
    seed: int
    budget: float = 1.0
    """In budgets of uniform sampling: where the run ends."""
    kind: str = COUNTED
    plan: int = 0
    """The epochs that a method is to expect; 0: it is not known when the run will end."""
    floor: float = 0.2
    """The least probability of an instance."""


class Curve(NamedTuple):
    """The evaluations of a training, at equal steps of cost."""

    accuracy: list[float]
    loss: list[float]
    """On a uniform sample of what was learned."""
    cost: list[float]
    """Instances trained on, and a third for each that only went forward."""
    seconds: list[float]
    auc: list[float]
    """Of the stored scores, at the end of each epoch from the second on."""
    kept: float
    """Of the instances that were offered."""
    selected: float
    """Share of the steps."""


class Clock:
    """Seconds, but for those in which it is stopped."""

    def __init__(self) -> None:
        self._paused, self._since = 0.0, 0.0

    def now(self) -> float:
        """Return them."""
        return time.perf_counter() - self._paused

    def stop(self) -> None:
        """Stand still."""
        self._since = time.perf_counter()

    def start(self) -> None:
        """Run on."""
        self._paused += time.perf_counter() - self._since


def plain(size: int, batch: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield an epoch of batches as a loader does."""
    order = torch.randperm(size, generator=generator).tolist()
    for start in range(0, size - batch + 1, batch):
        yield order[start : start + batch]


def alike(size: int, batch: int, seed: int, clock: Clock) -> Iterator[list[int]]:
    """Yield, off the clock, what a `Selection` draws while its switch is off."""
    walk = Selection(size, batch, PLAIN, seed=seed).walk
    while True:
        clock.stop()
        indices = walk.take(batch, everything).indices.tolist()
        clock.start()
        yield indices


class Training:
    """A model, its data, and what was seen of its training."""

    def __init__(self, job: Job) -> None:
        self.job, self.task = job, TASKS[job.task]
        self.split = self.task.split(job.seed)
        self.size = len(self.split.inputs)
        self.clock = Clock()
        self.every = self.size / self.task.evaluations
        self.limit = job.budget * self.task.epochs * self.size
        torch.manual_seed(job.seed)
        self.model = self.task.model()
        make = torch.optim.Adam if self.task.adam else torch.optim.SGD
        self.optimizer = make(self.model.parameters(), job.rate, **{} if self.task.adam else {"momentum": 0.9})
        self.averaged = copy.deepcopy(self.model).requires_grad_(False)
        self._weights = list(self.averaged.parameters()), [one.detach() for one in self.model.parameters()]
        self._generator = torch.Generator().manual_seed(job.seed)
        self.cost = 0.0
        self.curve = Curve([], [], [], [], [], 1.0, 0.0)

    def run(self, target: float = math.inf) -> Curve:
        """Train to the end, or until the test accuracy has been at ``target`` a while."""
        job, chosen = self.job, self.job.method != PLAIN
        if math.isinf(target) and job.kind == COUNTED:  # it makes a target: to the end of the budget is enough
            self.limit = min(self.limit, self.task.epochs * self.size)
        selection = self.sampler() if chosen else None
        inputs, targets = self.split.inputs, self.split.targets
        begun, steps, selected = self.clock.now(), 0, 0
        while self.cost < self.limit:
            batches: Any = selection if chosen else self._plain()
            for indices in batches:
                if job.method == ORACLE and steps % max(1, self.size // self.task.batch // _REFRESHED) == 0:
                    self._reveal(selection)
                where = torch.tensor(indices)
                logits, wanted = self.model(inputs[where]), targets[where]
                if selection is None:
                    loss, trained = cross_entropy(logits, wanted), len(indices)
                elif isinstance(selection, BaselineSelection) and selection.weighs:
                    losses = cross_entropy(logits, wanted, reduction="none")
                    losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
                    weights = selection.weights(indices, losses)
                    kept = weights > 0
                    where, logits, wanted = where[kept], logits[kept], wanted[kept]
                    loss, trained = (losses * weights).mean(), len(where)
                else:
                    loss, trained = self.loss(selection, where, logits, wanted), len(where)
                if selection is not None:
                    selected += selection.selecting
                if job.kind == DECAYING:
                    for group in self.optimizer.param_groups:
                        group["lr"] = job.rate * max(0.0, 1 - self.cost / self.limit)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if selection is not None:
                    selection.observe(where, logits=logits, targets=wanted)
                self._average()
                steps += 1
                self.cost += trained + (len(indices) - trained) * _FORWARD_COST
                if self.cost >= (len(self.curve.cost) + 1) * self.every or self.cost >= self.limit:
                    self._judge(begun)
                    if self.cost >= self.limit or smooth(self.curve.accuracy[-SMOOTHED:])[-1] >= target:
                        break
            else:
                if selection is not None and selection.epoch >= 2:
                    self.curve.auc.append(selection.auc)
                continue
            break
        kept = 1.0 if selection is None else selection.taken / max(1, selection.walk.walked)
        numbers = ([round(value, 4) for value in values] for values in self.curve[:5])
        return Curve(*numbers, round(kept, 4), round(selected / steps, 4))

    def sampler(self) -> Any:
        """Return what draws the batches of the job's method."""
        return _selection(self.job, self)

    def loss(self, selection: Any, where: Tensor, logits: Tensor, wanted: Tensor) -> Any:
        """Return the loss of a step, from which it goes back."""
        return selection.loss(where, logits, wanted)

    def _plain(self) -> Iterator[list[int]]:
        if self.job.kind == TIMED:
            return alike(self.size, self.task.batch, self.job.seed, self.clock)
        return plain(self.size, self.task.batch, self._generator)

    def _average(self) -> None:
        self.clock.stop()
        torch._foreach_lerp_(*self._weights, 1 - _AVERAGED)
        self.clock.start()

    def _judge(self, begun: float) -> None:
        self.clock.stop()
        split, curve = self.split, self.curve
        curve.cost.append(self.cost)
        with torch.no_grad():
            curve.accuracy.append(_accuracy(self.averaged, split))
            sample = slice(None, None, max(1, self.size // _LOSS_SAMPLE))
            curve.loss.append(cross_entropy(self.averaged(split.inputs[sample]), split.targets[sample]).item())
        self.clock.start()
        curve.seconds.append(self.clock.now() - begun)

    def _reveal(self, selection: Any) -> None:
        """Give a selection the present loss and score of each instance for free."""
        with torch.no_grad():
            found = CrossEntropy()(self.model(self.split.inputs), self.split.targets)
        if selection.epoch:
            selection.table.score[:], selection.table.loss[:] = found.scores.numpy(), found.losses.numpy()
            selection.table.recount()


def _selection(job: Job, training: Training) -> BaselineSelection:
    task, method = training.task, DEFAULT if job.method == ORACLE else job.method
    given: dict[str, Any] = {}
    if method in ("autoassist", "screener"):
        given["features"] = _features(training)
    if method == "rho":
        given["reference"] = _reference(training)
    switch = "auto" if job.kind == TIMED else "on"
    given |= {"epochs": job.plan or None, "switch": switch, "floor": job.floor, "seed": job.seed}
    return BaselineSelection(training.size, task.batch, method, **given, clock=training.clock.now)


def _reference(training: Training) -> Any:
    """Return all losses of a model that learned `_REFERENCE` of the instances.

    Its training and its look at the others are counted.
    """
    job, split = training.job, training.split
    order = torch.randperm(training.size, generator=torch.Generator().manual_seed(job.seed))[:_REFERENCE]
    torch.manual_seed(job.seed + 1)
    model = training.task.model()
    optimizer = torch.optim.SGD(model.parameters(), job.rate, momentum=0.9)
    for _ in range(_REFERENCE_EPOCHS):
        for where in order.split(training.task.batch):
            optimizer.zero_grad()
            cross_entropy(model(split.inputs[where]), split.targets[where]).backward()
            optimizer.step()
    training.cost += _REFERENCE * _REFERENCE_EPOCHS + training.size * _FORWARD_COST
    with torch.no_grad():
        return CrossEntropy()(model(split.inputs), split.targets).losses.numpy()


def _features(training: Training) -> Any:
    """Return pixels with the class, or how often a window has each character."""
    inputs = training.split.inputs
    if inputs.is_floating_point():
        return pixels_and_class(inputs, training.split.targets, side=SIDE // 2)
    return nn.functional.one_hot(inputs).float().mean(1).numpy()


def methods() -> list[str]:
    """Return those of looptap, the baselines, and the oracle."""
    return [PLAIN, *(name for name in METHODS if name != PLAIN), *BASELINES, ORACLE]


def _accuracy(model: nn.Module, split: Split) -> float:
    found: Tensor = model(split.test_inputs).argmax(1) == split.test_targets
    return found.float().mean().item()
