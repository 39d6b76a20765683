"""The models whose priorities are timed, with a batch of 64 and a loss for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

BATCH = 64
CLASSES = 10
VOCABULARY, TOKENS, WIDTH, HEADS, BLOCKS = 64, 64, 128, 4, 2


class Case(NamedTuple):
    """A model and a batch of it."""

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Callable[[Any, Any], Any]


class Block(nn.Module):
    """A block of a transformer, of plain layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(n, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.second(x))


def mlp() -> Case:
    """Return an MLP of digits, 784-512-512-10."""
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    return Case(nn.Sequential(*layers), torch.randn(BATCH, 784), classes(BATCH), nn.CrossEntropyLoss(reduction="none"))


def cnn() -> Case:
    """Return a CNN of images of 32 x 32, with 32 and 64 channels."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )
    return Case(model, torch.randn(BATCH, 3, 32, 32), classes(BATCH), nn.CrossEntropyLoss(reduction="none"))


def transformer() -> Case:
    """Return a causal transformer of 2 blocks, width 128, over 64 tokens."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(BLOCKS)), nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, VOCABULARY),
    )  # fmt: skip
    inputs, targets = (torch.randint(VOCABULARY, (BATCH, TOKENS)) for _ in range(2))
    return Case(model, inputs, targets, per_token)


def per_token(outputs: Any, targets: Any) -> Any:
    losses = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(1)


def classes(n: int) -> Any:
    return torch.randint(CLASSES, (n,))


CASES = {"MLP": mlp, "CNN": cnn, "transformer": transformer}
