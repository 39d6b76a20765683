"""The cost of the stage to a loop at a factor of 1, nothing throttled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from echoed_training import DIGITS, digits_echo, pictures
from time_to_target import Bare

from looptap.training.echoing import AFTER, BATCH, BEFORE

PAIRS, WARM = 240, 20


def costs() -> dict[tuple[str, int], tuple[float, float, float]]:
    """Return cost, bare and echoed seconds per step, by mode and workers.

    They are medians of steps in turn. Without workers all that reading and packing take is in the step, too.
    """
    return {(mode, workers): _cost(mode, workers) for workers in (1, 0) for mode in (BEFORE, AFTER, BATCH)}


def _cost(mode: str, workers: int) -> tuple[float, float, float]:
    data = pictures(mode)
    bare = Bare(data, 0, workers, distorts=mode != AFTER)
    loaders: list[Iterator[Any]] = [iter(bare), iter(digits_echo(data, 0, 1.0, mode, workers=workers))]
    torch.manual_seed(0)
    model = DIGITS.make()
    optimizer = DIGITS.optimizer(model.parameters(), 0.05)
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM + PAIRS):
        for which in (0, 1) if number % 2 else (1, 0):
            begun = time.perf_counter()
            batch = next(loaders[which])
            optimizer.zero_grad()
            DIGITS.loss(model, batch).backward()
            optimizer.step()
            if number >= WARM:
                took[which].append(time.perf_counter() - begun)
    plain, echoed = median(took[0]), median(took[1])
    return echoed / plain - 1.0, plain, echoed
