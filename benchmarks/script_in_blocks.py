"""A training script without looptap: as many steps as each line says.

Its arguments are the width of the model and, for one that takes its batches from a DataLoader, "loader". It answers
each line with the seconds of a step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from loops import Mlp
from torch.utils.data import DataLoader, TensorDataset

BATCHES_COUNT = 100
"""Batches of an epoch."""


def endless(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def main() -> None:
    torch.manual_seed(1)
    loop = Mlp(int(sys.argv[1]))
    batches = None
    if "loader" in sys.argv:
        data = TensorDataset(torch.randn(64 * BATCHES_COUNT, 256), torch.randint(0, 10, (64 * BATCHES_COUNT,)))
        batches = endless(DataLoader(data, 64, shuffle=True))
    for line in sys.stdin:
        steps, start = int(line), time.perf_counter()
        for _ in range(steps):
            if batches is not None:
                loop.x, loop.y = next(batches)
            loss = loop.step()
        print((time.perf_counter() - start) / steps, loss.item(), flush=True)


main()
