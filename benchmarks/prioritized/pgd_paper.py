"""The paper's figures: logistic regression, a CNN, priorities of an MLP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import as_completed
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pgd_runs  # noqa: F401  # finds the selection's benchmark
import torch
from rich.progress import Progress
from selection_arithmetic import crossing
from selection_tasks import TASKS
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from worker_pool import worker_pool

from looptap.training.prioritized import ExactPriorities, Prioritized

POINTS, DIMENSIONS = 10_000, 1_000
"""Of the paper's synthetic data."""
LOGISTIC, CNN = "logistic", "cnn"
"""Problems."""
SGD, PGD_A, PGD_S = "uniform", "A", "S"
"""What is compared."""
SHARES = (0.001, 0.01, 0.1)
"""Values of k and r."""
RATES = tuple(2.0**power for power in range(-7, 3))
"""One grid for all."""
GRID_SEEDS, RATE_SEEDS, FINAL_SEEDS = (0, 1, 2), (100, 101), tuple(range(8))
"""Of the sweeps, of the choice of rates, and of what is reported of the best ones."""
CNN_RATES, CNN_SHARES = tuple(2.0**power for power in range(-7, -1)), (0.01, 0.1)
"""For the CNN of Fig. 8b, without momentum; r is 1%, and k each of the shares."""
BUDGET, CNN_BUDGET, EVALUATIONS = 10, 6, 4
"""Gradients for each point, and how often the loss is measured in the time of so many as there are points."""
LOSS_SAMPLE = 1200
"""Images on which the loss of the CNN is measured."""
AGES = (1, 3, 10)
"""Epochs after which the priorities of an MLP are looked at."""


class Run(NamedTuple):
    """A training."""

    method: str
    k: float
    r: float
    rate: float
    seed: int
    problem: str = LOGISTIC


class Losses(NamedTuple):
    """The loss, by the gradients that were computed for each point."""

    cost: list[float]
    loss: list[float]


@cache
def synthetic() -> tuple[Tensor, Tensor]:
    """Return points of a logistic model."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(POINTS, DIMENSIONS, generator=generator)
    logits = 4 * x @ torch.randn(DIMENSIONS, generator=generator) / DIMENSIONS**0.5
    return x, (torch.rand(POINTS, generator=generator) < logits.sigmoid()).float()


class Problem(NamedTuple):
    """Data, a new model, and what is minimized."""

    x: Tensor
    y: Tensor
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of single examples."""
    criterion: str
    """Its name for `Prioritized`."""
    seen: slice
    """The examples on which the loss is measured."""


def problem_of(run: Run) -> Problem:
    """Return the problem of a run: a logistic regression from 0, or a CNN on images."""
    torch.manual_seed(run.seed)
    if run.problem == CNN:
        split = TASKS["easy-heavy"].split(0)

        def of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(outputs, targets, reduction="none")

        images = slice(0, LOSS_SAMPLE)
        return Problem(split.inputs, split.targets, TASKS["cnn"].model(), of_classes, "cross_entropy", images)
    model = nn.Linear(DIMENSIONS, 1)
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()

    def of_two(outputs: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")

    return Problem(*synthetic(), model, of_two, "bce", slice(None))


def trained(run: Run, budget: float = BUDGET) -> Losses:
    """Train; initial passes are counted."""
    x, y, model, loss, criterion, seen = problem_of(run)
    points = len(x)
    optimizer = torch.optim.SGD(model.parameters(), run.rate)
    method = "uniform" if run.method == SGD else "published"
    variant = PGD_A if run.method == SGD else run.method
    batch = max(1, round((run.k + run.r) * points))
    prioritized = Prioritized(
        points, model, batch, method, k=run.k, r=run.r, variant=variant, loss=criterion, switch="on", seed=run.seed
    )
    found = Losses([], [])
    while True:
        for indices in prioritized:
            where = torch.tensor(indices)
            losses = loss(model(x[where]), y[where])
            optimizer.zero_grad()
            prioritized.backward(where, losses)
            optimizer.step()
            prioritized.observe(where)
            if prioritized.gradient_work >= (len(found.cost) + 1) * points / EVALUATIONS:
                found.cost.append(prioritized.gradient_work / points)
                with torch.no_grad():
                    mean_loss = loss(model(x[seen]), y[seen]).mean().item()
                found.loss.append(round(min(mean_loss, 1e6), 4))
                if found.cost[-1] >= budget or not mean_loss < 100:
                    prioritized.close()
                    return found


def priorities_after(epochs: int) -> dict[str, Any]:
    """Return how priorities are distributed over the images of an MLP."""
    task = TASKS["easy-heavy"]
    split = task.split(0)
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), task.start, momentum=0.9)
    for _ in range(epochs):
        for where in torch.randperm(len(split.inputs)).split(task.batch):
            optimizer.zero_grad()
            cross_entropy(model(split.inputs[where]), split.targets[where]).backward()
            optimizer.step()
    optimizer.zero_grad()
    cross_entropy(model(split.inputs), split.targets).backward()
    gbar = [one.grad.clone() for one in model.parameters()]
    exact = ExactPriorities(model, nn.CrossEntropyLoss(reduction="none"))
    found = exact(split.inputs, split.targets, gbar).priorities.double()
    descending = found.sort(descending=True).values
    positive = descending.clamp(min=0).cumsum(0)
    places = [max(0, round(share * len(found)) - 1) for share in (0.01, 0.05, 0.1)]
    points = torch.linspace(0, len(found) - 1, 200).long()
    return {
        "top": [round(float(positive[place] / positive[-1]), 4) for place in places],
        "negative": round(float((found < 0).double().mean()), 4),
        "sorted": [float(f"{value:.4g}") for value in (descending[points] / found.mean()).tolist()],
    }


class Paper:
    """What was measured, in a JSON file; what is there is not done again."""

    def __init__(self, path: Path, *, quick: bool = False, processes: int | None = None) -> None:
        self.path, self.quick, self.processes = path, quick, processes
        known = json.loads(path.read_text()) if path.exists() else {"runs": [], "priorities": {}}
        self.runs = {Run(*run): Losses(*losses) for run, losses in known["runs"]}
        self.priorities: dict[str, Any] = known["priorities"]
        self.rates = RATES[3:9:2] if quick else RATES
        self.cnn_rates = CNN_RATES[1::3] if quick else CNN_RATES
        self.shares = SHARES[1:] if quick else SHARES
        self.grid_seeds, self.rate_seeds = (GRID_SEEDS[:1], RATE_SEEDS[:1]) if quick else (GRID_SEEDS, RATE_SEEDS)
        self.final_seeds = FINAL_SEEDS[:2] if quick else FINAL_SEEDS

    def run(self) -> None:
        """Do what is missing."""
        for epochs in AGES[:1] if self.quick else AGES:
            if str(epochs) not in self.priorities:
                self.priorities[str(epochs)] = priorities_after(epochs)
        methods = (SGD, PGD_A, PGD_S)
        first = [(method, rate, seed) for method in methods for rate in self.rates for seed in self.rate_seeds]
        self._done((Run(method, 0.01, 0.01, rate, seed) for method, rate, seed in first), "logistic: rates")
        last = [(method, self.best(method), seed) for method in methods for seed in self.final_seeds]
        self._done((Run(method, 0.01, 0.01, rate, seed) for method, rate, seed in last), "logistic: judged seeds")
        grid = product(methods[1:], self.shares, self.shares, [self.best(PGD_A)], self.grid_seeds)
        self._done((Run(*one) for one in grid), "logistic: k and r")
        tuned = product(methods[:2], CNN_SHARES, [0.01], self.cnn_rates, self.rate_seeds, [CNN])
        self._done((Run(*one) for one in tuned), "CNN: rates", CNN_BUDGET)
        judged = [
            Run(method, k, 0.01, self.best(method, k, CNN), seed, CNN)
            for method in methods[:2] for k in CNN_SHARES for seed in self.grid_seeds
        ]  # fmt: skip
        self._done(judged, "CNN: k", CNN_BUDGET)

    def best(self, method: str, k: float = 0.01, problem: str = LOGISTIC) -> float:
        """Return the rate of the lowest mean loss at the end, at r = 1%."""
        rates = self.rates if problem == LOGISTIC else self.cnn_rates
        return min(rates, key=lambda rate: self.final(method, k, 0.01, rate, self.rate_seeds, problem))

    def final(
        self, method: str, k: float, r: float, rate: float, seeds: Iterable[int], problem: str = LOGISTIC
    ) -> float:
        """Return the mean loss at the end."""
        return mean(self.runs[Run(method, k, r, rate, seed, problem)].loss[-1] for seed in seeds)

    def sweep(self, method: str, k: float, r: float) -> list[Losses]:
        """Return the curves at k and r with the best rate of PGD-A, as far as known."""
        every = (Run(method, k, r, self.best(PGD_A), seed) for seed in self.grid_seeds)
        return [self.runs[run] for run in every if run in self.runs]

    def target(self, share: float) -> float:
        """Return the loss of SGD with its best rate at a share of the budget."""
        curves = [self.runs[Run(SGD, 0.01, 0.01, self.best(SGD), seed)] for seed in self.rate_seeds]
        return mean(curve.loss[round(share * len(curve.loss)) - 1] for curve in curves)

    def needed(self, method: str, rate: float, seed: int, target: float) -> float:
        """Return the gradients for each point up to a loss."""
        curve = self.runs[Run(method, 0.01, 0.01, rate, seed)]
        return crossing(curve.cost, [-loss for loss in curve.loss], -target)

    def _done(self, runs: Iterable[Run], what: str, most: float = BUDGET) -> None:
        missing = [run for run in dict.fromkeys(runs) if run not in self.runs]
        if not missing:
            return
        budget = 3.0 if self.quick else float(most)
        with Progress() as progress, worker_pool(self.processes) as pool:
            bar = progress.add_task(what, total=len(missing))
            running = {pool.submit(trained, run, budget): run for run in missing}
            for future in as_completed(running):
                self.runs[running[future]] = future.result()
                progress.advance(bar)
        rows = [json.dumps([run, losses]) for run, losses in sorted(self.runs.items())]
        part = self.path.with_suffix(".part")
        part.write_text(f'{{"priorities": {json.dumps(self.priorities)},\n"runs": [\n' + ",\n".join(rows) + "\n]}\n")
        part.replace(self.path)
