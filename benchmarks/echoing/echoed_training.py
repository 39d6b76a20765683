"""One training to a target: the same loop for every loader."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import digit_files
import language
import torch
from data_sets import Distorted, Listed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from looptap.training.echoing import AFTER, BEFORE, Echo


class Task(NamedTuple):
    """A learning task, done when two evaluations in a row reach ``target``.

    Evaluated is the mean of the weights over the last steps (decay 0.95): single steps jump about, and the first of
    them that happens to be good says little.
    """

    make: Callable[[], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    loss: Callable[[nn.Module, list[Tensor]], Tensor]
    score: Callable[[nn.Module], float]
    target: float
    every: int
    """Steps between two evaluations."""


def _sgd(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate, momentum=0.9)


def _classes(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


DIGITS = Task(digit_files.cnn, _sgd, _classes, digit_files.accuracy, 0.85, 16)
LANGUAGE = Task(language.Transformer, torch.optim.Adam, language.loss, language.score, -0.75, 4)


class Outcome(NamedTuple):
    """One training: until the target, or as far as it was allowed to run."""

    reached: bool
    steps: int
    fresh: int
    seconds: float
    scores: list[tuple[float, float]]
    """The time and the score of each evaluation."""
    up: float
    down: float
    factor: float
    expected: dict[float, float] = {}  # noqa: RUF012 - never changed
    """The speed-up that the loader expects of other factors."""


def batches(data: Dataset[Any], size: int, seed: int, workers: int = 0) -> DataLoader[Any]:
    """Return the data as one long stream, shuffled by epoch: no worker waits."""
    order = RandomSampler(data, num_samples=10_000_000, generator=torch.Generator().manual_seed(seed))  # type: ignore
    return DataLoader(data, size, sampler=order, num_workers=workers)


def pictures(mode: str = BEFORE) -> Dataset[Any]:
    """Return the digits in memory, distorted when read if the echo follows that."""
    images, targets = digit_files.pictures()
    data = Listed(images[: digit_files.TRAIN], targets[: digit_files.TRAIN])
    return Distorted(data, digit_files.distort) if mode == AFTER else data


def digits_echo(
    data: Dataset[Any],
    seed: int,
    factor: Any,
    mode: str = BEFORE,
    *,
    size: int = 64,
    buffer: int = 300,
    workers: int = 0,
) -> Echo:
    """Return an echoed loader of digits, which are distorted where ``mode`` says."""
    return Echo(batches(data, size, seed, workers), factor, mode, buffer=buffer, seed=seed,
                augment_batch=None if mode == AFTER else digit_files.distorted)  # fmt: skip


def language_echo(seed: int, factor: float, mode: str, *, size: int, buffer: int) -> Echo:
    """Return an echoed loader of sequences, each of which is read once."""
    return Echo(batches(Listed(language.corpus()), size, seed), factor, mode, buffer=buffer, seed=seed)


def train(
    task: Task,
    loader: Any,
    rate: float,
    seed: int,
    *,
    steps: int,
    fresh: float = math.inf,
    target: bool = True,
    decay: bool = False,
    later: bool = False,
) -> Outcome:
    """Train until the target, for ``steps`` steps, or for ``fresh`` examples.

    ``decay``: the rate falls to 0 until then. ``later``: all steps are done before the first one at the target is
    looked for.
    """
    torch.manual_seed(seed)
    model = task.make()
    optimizer = task.optimizer(model.parameters(), rate)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    marks: list[Mark] = []
    scores: list[tuple[float, float]] = []
    step, reached, begun = 0, False, time.perf_counter()
    for batch in loader:
        if loader.fresh > fresh:
            break
        if decay:
            for group in optimizer.param_groups:
                group["lr"] = rate * (1.0 - loader.fresh / fresh)
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        averaged.update_parameters(model)
        step += 1
        if target and step % task.every == 0:
            weights = [value.clone() for value in averaged.state_dict().values()] if later else []
            marks.append(Mark(time.perf_counter() - begun, step, loader.fresh, weights))
            if not later:
                scores.append((marks[-1].seconds, task.score(averaged)))
                reached = _there(task, scores)
        if reached or step >= steps:
            break
    end = Mark(time.perf_counter() - begun, step, loader.fresh, [])
    state = loader.up, loader.down, loader.factor
    if not target:
        scores.append((end.seconds, task.score(averaged)))
    for mark in marks if later else ():
        with torch.no_grad():
            for value, kept in zip(averaged.state_dict().values(), mark.weights, strict=True):
                value.copy_(kept)
        scores.append((mark.seconds, task.score(averaged)))
        if reached := _there(task, scores):
            end = mark
            break
    return Outcome(reached, end.step, end.fresh, end.seconds, scores, *state)


class Mark(NamedTuple):
    """The position of a training, and its weights there."""

    seconds: float
    step: int
    fresh: int
    weights: list[Tensor]


def _there(task: Task, scores: list[tuple[float, float]]) -> bool:
    return len(scores) >= 2 and min(score for _, score in scores[-2:]) >= task.target
