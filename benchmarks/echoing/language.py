"""Sequences of an invented language, and a small transformer that learns it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TOKENS, LENGTH = 12, 16
FRESH = 60_000
"""The number of sequences; a run takes fewer."""


def sequences(many: int, seed: int) -> Tensor:
    """Return tokens, shape (many, 17): each follows from two, a tenth at random."""
    table = torch.randint(TOKENS, (TOKENS, TOKENS), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(TOKENS, (many, LENGTH + 1), generator=generator)
    for at in range(2, LENGTH + 1):
        any_one = torch.rand(many, generator=generator) < 0.1
        found[:, at] = torch.where(any_one, found[:, at], table[found[:, at - 2], found[:, at - 1]])
    return found


@cache
def corpus() -> Tensor:
    """Return the training data."""
    return sequences(FRESH, 1)


@cache
def unseen() -> Tensor:
    """Return the test data."""
    return sequences(500, 2)


class Transformer(nn.Module):
    """Two layers of causal attention, 32 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(TOKENS, 32), nn.Parameter(torch.randn(1, LENGTH, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, 16, 12) of the token after each of (batch, 16) tokens."""
        found: Tensor = self.out(self.layers(self.embedding(tokens) + self.place, mask=self.mask, is_causal=True))
        return found


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Return the mean cross entropy of the next token, in nats."""
    found: Tensor = cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())
    return found


def score(model: nn.Module) -> float:
    """Return minus the loss on unseen sequences; the language itself has about -0.63."""
    with torch.no_grad():
        return -loss(model, [unseen()]).item()
