"""What estimating costs a loop: passive, with validations inserted, and for one forecast. Like the paper's Table 3."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from record import cnn, pictures
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.progress import Inserting, Paper, Progress
from looptap.training.progress.ensemble import Observations, forecast

_STEPS = 60


def overheads() -> list[str]:
    """Lines of the page."""
    torch.set_num_threads(1)
    (small, _, short), (usual, asked, long) = _passive(64, 20), _passive(640, 10)
    inserted, forecasts = _inserted(), _forecasts()
    return [
        "\n## What it costs\n",
        "| what | cost | promise |", "| --- | ---: | ---: |",
        f"| a step of {long * 1000:.1f} ms in `progress.train` over a bare one beside it (medians of steps in turn, "
        f"time of the processor) | {usual:+.2%} | together |",
        f"| estimates, one after each epoch and every five seconds, share of the time | {asked:.2%} | 0.5 % |",
        f"| a step of {short * 1000:.1f} ms in `progress.train` over a bare one | {small:+.2%} | |",
        f"| validations inserted into a job of 6 epochs, share of the time | {inserted:.2%} | 3 % (paper: 4.69 %) |",
        "| one forecast, 10 to 300 validations seen, slowest median, time of the processor | "
        f"{forecasts * 1000:.1f} ms | 20 ms |",
    ]  # fmt: skip


def _job(data: DataLoader[tuple[torch.Tensor, ...]]) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = cnn()
    return model, torch.optim.SGD(model.parameters(), 0.02)


def _passive(batch: int, epochs: int) -> tuple[float, float, float]:
    """What a wrapped step costs over a bare one, the share of the estimates, and the seconds of a step."""
    images, targets = pictures(0)
    images, targets = images.repeat(2, 1, 1, 1), targets.repeat(2)
    batches = [(images[i : i + batch], targets[i : i + batch]) for i in range(0, 2560, batch)] * 16
    model, steps = _job(DataLoader(TensorDataset(images, targets)))
    progress = Progress(_STEPS, epochs=10_000, validation=100, rule=Paper(9, 0.0082), on_update=lambda p: p.remaining)

    def step(loader: Iterator[tuple[torch.Tensor, ...]]) -> float:
        begun = time.thread_time()
        image, target = next(loader)
        steps.zero_grad()
        cross_entropy(model(image), target).backward()
        steps.step()
        return time.thread_time() - begun

    some, took = batches[:_STEPS], ([], [])  # type: ignore[var-annotated]
    for index in range(epochs):
        loaders = iter(some), progress.train(some)
        for number in range(_STEPS):
            for which in (0, 1) if number % 2 else (1, 0):
                took[which].append(step(loaders[which]))
        for _ in loaders[1]:
            pass
        progress.validated(0.5 / (index + 1) + 0.1)
        assert progress.remaining
    bare = statistics.median(took[0])
    return statistics.median(took[1]) / bare - 1, progress.overhead, bare


def _inserted() -> float:
    images, targets = pictures(1)
    data = TensorDataset(images.repeat(8, 1, 1, 1), targets.repeat(8))
    fit, check = DataLoader(data, 64, shuffle=True), DataLoader(TensorDataset(images, targets), 128)
    model, steps = _job(fit)

    def evaluate(loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
        model.eval()
        with torch.no_grad():
            right = torch.cat([model(a).argmax(1) == b for a, b in loader])
        model.train()
        return 1 - float(right.float().mean())

    inserting = Inserting(evaluate, model, check, processors=1)
    progress = Progress(fit, epochs=6, validation=check, rule=Paper(9, 0.0082), insert=inserting)
    for _ in range(6):
        for image, target in progress.train(fit):
            steps.zero_grad()
            cross_entropy(model(image), target).backward()
            steps.step()
        progress.validated(evaluate(progress.validate(check)))  # type: ignore[arg-type]
    return inserting.seconds / progress.elapsed if inserting.first else float("nan")


def _forecasts() -> float:
    rng, slowest = np.random.default_rng(0), 0.0
    for count in (10, 50, 100, 300):
        x = np.arange(1.0, count + 1)
        y = 0.1 + 0.5 * x**-0.5 + 0.01 * rng.standard_normal(count)
        rule, took = Paper(200, 0.0), []
        for _ in range(9):
            begun = time.thread_time()
            stops = partial(rule.stops_after, y.tolist())
            forecast(Observations(x, y, np.zeros(count)), count, stops, count + 100, rng=rng)
            took.append(time.thread_time() - begun)
        slowest = max(slowest, statistics.median(took))
    return slowest
