"""The cost of estimating to a loop, like the paper's Table 3."""

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
from looptap.training.progress.forecast.curve_ensemble import forecast
from looptap.training.progress.forecast.observations import Observations

_EPOCH = 2  # seconds, about


def overheads() -> list[str]:
    """Return lines of the page."""
    torch.set_num_threads(1)
    (small, asked, short), (usual, _, long) = _passive(64, 1200), _passive(640, 200)
    inserted, forecasts = _inserted(), _forecasts()
    return [
        "\n## What it costs\n",
        "| what | cost | promise |", "| --- | ---: | ---: |",
        *(f"| steps of {each * 1000:.1f} ms in `progress.train`, a validation every {_EPOCH} seconds, an estimate "
          f"after each and every five seconds: additional processor time | {share:.2%} "
          "| 0.5% |" for share, each in ((usual, long), (small, short))),
        f"| of which one step of {short * 1000:.1f} ms | {asked * 1e6:.1f} µs | |",
        f"| validations inserted into a job of 6 epochs, share of the time | {inserted:.2%} | 3% (paper: 4.69%) |",
        "| one prediction after 10 to 300 validations, slowest median, processor time | "
        f"{forecasts * 1000:.1f} ms | 20 ms |",
    ]  # fmt: skip


def _job(data: DataLoader[tuple[torch.Tensor, ...]]) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = cnn()
    return model, torch.optim.SGD(model.parameters(), 0.02)


def _passive(batch: int, count: int, epochs: int = 8) -> tuple[float, float, float]:
    """Return the share of a `Progress` in a loop, and its and a bare step's seconds.

    Bare epochs and wrapped ones take turns; what is between two steps is timed by itself, since the steps scatter by
    more than that. Its caches are as cold as a step leaves them.
    """
    images, targets = pictures(0)
    images, targets = images.repeat(2, 1, 1, 1), targets.repeat(2)
    some = [(images[i : i + batch], targets[i : i + batch]) for i in range(0, 2560, batch)]
    some = (some * (count // len(some) + 1))[:count]
    model, steps = _job(DataLoader(TensorDataset(images, targets)))
    progress = Progress(count, epochs=10_000, validation=100, rule=Paper(9, 0.0082), on_update=lambda p: p.remaining)
    between: tuple[list[float], list[float]] = ([], [])
    asking, whole = 0.0, []
    for index in range(epochs):
        for which, loader in enumerate((iter(some), progress.train(some))):
            while True:
                begun = time.thread_time()
                image, target = next(loader, (None, None))
                between[which].append(time.thread_time() - begun)
                if image is None:
                    break
                steps.zero_grad()
                cross_entropy(model(image), target).backward()
                steps.step()
                if not which:
                    whole.append(time.thread_time() - begun)
        begun = time.thread_time()
        progress.validated(0.5 / (index + 1) + 0.1)
        assert progress.remaining
        asking += time.thread_time() - begun
    extra = sum(between[1]) - sum(between[0])
    return (extra + asking) / sum(whole), extra / len(whole), statistics.mean(whole)


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
