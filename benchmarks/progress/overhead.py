"""What estimating costs a loop: passive, with validations inserted, and for one forecast. Like the paper's Table 3."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import torch
from record import cnn, pictures
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.progress import Inserting, Paper, Progress
from looptap.training.progress.ensemble import Observations, forecast

_BLOCKS, _STEPS = 40, 60


def overheads() -> list[str]:
    """Lines of the page."""
    torch.set_num_threads(1)
    passive, inserted, forecasts = _passive(), _inserted(), _forecasts()
    return [
        "\n## What it costs\n",
        "| what | cost | promise |", "| --- | ---: | ---: |",
        f"| a loop of {_STEPS} steps of a small CNN, wrapped in `progress.train`, over the bare loop in the same run "
        f"({_BLOCKS} pairs of blocks, medians) | {passive:+.2%} | 0.5 % |",
        f"| validations inserted into a job of 6 epochs, share of the time | {inserted:.2%} | 3 % (paper: 4.69 %) |",
        f"| one forecast, 10 to 300 validations seen, slowest median | {forecasts * 1000:.1f} ms | 20 ms |",
    ]  # fmt: skip


def _job(data: DataLoader[tuple[torch.Tensor, ...]]) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = cnn()
    return model, torch.optim.SGD(model.parameters(), 0.02)


def _passive() -> float:
    images, targets = pictures(0)
    batches = [(images[i : i + 64], targets[i : i + 64]) for i in range(0, 1024, 64)] * 4
    model, steps = _job(DataLoader(TensorDataset(images, targets)))
    progress = Progress(_STEPS, epochs=10_000, validation=100, rule=Paper(9, 0.0082), on_update=lambda p: p.remaining)

    def block(loader: object) -> float:
        begun = time.perf_counter()
        for image, target in loader:  # type: ignore[attr-defined]
            steps.zero_grad()
            cross_entropy(model(image), target).backward()
            steps.step()
        return time.perf_counter() - begun

    some = batches[:_STEPS]
    ratios = []
    for index in range(_BLOCKS):
        order = [some, None] if index % 2 else [None, some]
        took = {loader is None: block(progress.train(some) if loader is None else loader) for loader in order}
        progress.validated(0.5 / (index + 1) + 0.1)
        ratios.append(took[True] / took[False] - 1)
    return statistics.median(ratios)


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
            begun = time.perf_counter()
            stops = partial(rule.stops_after, y.tolist())
            forecast(Observations(x, y, np.zeros(count)), count, stops, count + 100, rng=rng)
            took.append(time.perf_counter() - begun)
        slowest = max(slowest, statistics.median(took))
    return slowest
