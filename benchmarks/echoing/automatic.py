"""Is `auto` steady, and does it follow a reader that changes?"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from echoed_training import DIGITS
from torch.utils.data import DataLoader, Dataset

from looptap.training.echoing import AFTER, Echo

LOADS = (0, 4)
"""Processes that compute beside the job."""
SETTLED_STEPS, BAND_SHARE = 200, 0.2
CHANGED_STEPS = 250
"""The reader changes after so many steps, and back after twice as many."""


class Paced(Dataset[Any]):
    """Pictures that come after a wait, which may be changed while workers read."""

    def __init__(self, count: int = 100_000, cached: bool = False) -> None:
        self.wait = torch.zeros(1).share_memory_()
        self.count, self.cached = count, cached
        self.read = torch.zeros(count, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not (self.cached and self.read[index]):
            time.sleep(self.wait.item())
            self.read[index] = True
        return torch.zeros(1, 24, 24), index % 10


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy until the block ends."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def loop(data: Paced, factor: float | str, steps: int, waits: dict[int, float]) -> Iterator[tuple[float, Any]]:
    """Train on the data; yield the seconds since the first batch, and the echo."""
    loader = DataLoader(data, 16, num_workers=2)
    echo = Echo(loader, factor, AFTER, buffer=128)
    model = DIGITS.make()
    optimizer = DIGITS.optimizer(model.parameters(), 0.01)
    begun = 0.0
    while echo.steps < steps:
        for batch in echo:
            begun = begun or time.perf_counter()
            data.wait[0] = waits.get(echo.steps, data.wait.item())
            optimizer.zero_grad()
            DIGITS.loss(model, batch).backward()
            optimizer.step()
            yield time.perf_counter() - begun, echo
            if echo.steps >= steps:
                break


def measured(seconds: float) -> dict[str, Any]:
    """Measure steadiness, changes of the reader, and the filling of a cache."""
    wait, found = 0.0, dict[str, Any]()
    data = Paced()
    for _, echo in loop(data, 4.0, 60, {}):
        down = echo.down
    wait = 4 * down * 2 / 16  # R = 4 with two workers, on an idle machine
    found["steady"] = {}
    for busy in LOADS:
        with load(busy):
            data = Paced()
            data.wait[0] = wait
            factors = [echo.factor for _, echo in loop(data, "auto", 600, {})]
        late = factors[SETTLED_STEPS:]
        usual = median(late)
        inside = sum(abs(factor - usual) <= BAND_SHARE * usual for factor in late) / len(late)
        found["steady"][busy] = {
            "factors": factors,
            "median": usual,
            "inside": inside,
            "least": min(late),
            "most": max(late),
        }
        print(f"load {busy}: e = {usual:.2f} ({min(late):.2f}–{max(late):.2f}), {inside:.0%} within 20%", flush=True)
    changes = {CHANGED_STEPS: 3 * wait / 2, 2 * CHANGED_STEPS: wait / 2}
    data = Paced()
    data.wait[0] = wait / 2
    found["changes"] = [
        (round(at, 3), echo.factor, echo.ratio) for at, echo in loop(data, "auto", 3 * CHANGED_STEPS, changes)
    ]
    found["filling"] = {}
    for factor in (1.0, "auto", 1.0, "auto"):
        data = Paced(1600, cached=True)
        data.wait[0] = wait
        filled, steps = 0.0, 0
        for at, echo in loop(data, factor, 10**9, {}):
            filled, steps = at, echo.steps
            if bool(data.read.all()):
                break
        found["filling"].setdefault(str(factor), []).append({"seconds": filled, "steps": steps})
        print(f"cache filled with {factor}: {filled:.1f} s, {steps} steps", flush=True)
    return found | {"load": os.getloadavg()[0]}
