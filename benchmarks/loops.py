"""The training loops that the benchmarks slow down; they need torch only."""

from __future__ import annotations

import torch
from torch import nn


class Mlp:
    """A small classifier, batch 64, about a millisecond a step on one core."""

    def __init__(self, width: int = 384) -> None:
        torch.set_num_threads(1)  # the other core is for the reader, in every block
        generator = torch.Generator().manual_seed(1)
        self.model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.model.append(nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.randn(64, 256, generator=generator)
        self.y = torch.randint(0, 10, (64,), generator=generator)

    def step(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


class PurePython:
    """A loop that never releases the GIL by itself: a millisecond of arithmetic."""

    def __init__(self, rounds: int = 20_000) -> None:
        self.rounds = rounds
        self.weight = 0.5

    def step(self) -> float:
        total, weight = 0.0, self.weight
        for number in range(self.rounds):
            total += weight * number - total * 0.5
        self.weight = 0.5 + 1e-9 * total
        return total


class TinyOps:
    """Sixty operations on 8 × 8 tensors; each releases the GIL for a moment."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.weight = torch.eye(8) * 0.5

    def step(self) -> torch.Tensor:
        state = self.weight
        for _ in range(20):
            state = torch.tanh(state @ self.weight + 0.1)
        return state.sum()
