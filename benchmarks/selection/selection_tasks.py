"""The tasks: data, a model, and how long uniform sampling trains on it."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import digit_copies
import torch
from digit_copies import SIDE, Split
from torch import Tensor, nn

LENGTH, WINDOWS, UNSEEN = 32, 4000, 400
"""Characters of a window, and how many windows are learned and judged."""


class Task(NamedTuple):
    """One problem.

    The seed of a run makes the model, the order and wrong labels, never the images.
    """

    split: Callable[[int], Split]
    model: Callable[[], nn.Module]
    epochs: int
    """The budget of uniform sampling."""
    start: float
    """The rate at which tuning starts."""
    batch: int = 64
    adam: bool = False
    """SGD with momentum 0.9 otherwise."""
    evaluations: int = 4
    """In the time of an epoch."""


def mlp() -> nn.Module:
    """Return two hidden layers of 128."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cnn(width: int = 16) -> nn.Module:
    """Return two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * (SIDE // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def wide_cnn() -> nn.Module:
    """Return the same with 4.5 times as many channels."""
    return cnn(72)


class Transformer(nn.Module):
    """Two layers of causal attention, 48 wide, over characters."""

    def __init__(self) -> None:
        super().__init__()
        kinds = int(characters().max()) + 1
        self.embedding, self.place = nn.Embedding(kinds, 48), nn.Parameter(torch.randn(1, LENGTH, 48) * 0.1)
        layer = nn.TransformerEncoderLayer(48, 2, 96, dropout=0.0, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(48, kinds)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: Tensor) -> Tensor:
        """Return logits of the next characters, shape (batch, kinds, 32)."""
        found: Tensor = self.out(self.layers(self.embedding(text) + self.place, mask=self.mask, is_causal=True))
        return found.transpose(1, 2)


@cache
def characters() -> Tensor:
    """Return the characters of Python's language reference by number."""
    text = "\n".join(value for _, value in sorted(pydoc_data.topics.topics.items()))
    numbers = {one: number for number, one in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[one] for one in text])


@cache
def windows() -> Split:
    """Return windows of characters; the last tenth of the text is the test."""
    text, generator = characters(), torch.Generator().manual_seed(0)
    border = 9 * len(text) // 10
    starts = [torch.randint(0, border - LENGTH - 1, (WINDOWS,), generator=generator),
              torch.randint(border, len(text) - LENGTH - 1, (UNSEEN,), generator=generator)]  # fmt: skip
    found = []
    for where in starts:
        every = text[where[:, None] + torch.arange(LENGTH + 1)]
        found += [every[:, :-1], every[:, 1:]]
    return Split(*found)


def _judged_on(split: Split, many: int) -> Split:
    """Judge on so many images of the test, which is what takes long."""
    return split._replace(test_inputs=split.test_inputs[:many], test_targets=split.test_targets[:many])


TASKS = {
    "easy-heavy": Task(lambda seed: digit_copies.easy_heavy(), mlp, 12, 0.07),
    "imbalanced": Task(lambda seed: digit_copies.imbalanced(), mlp, 12, 0.07),
    "noisy": Task(digit_copies.noisy, mlp, 12, 0.07),
    "balanced": Task(lambda seed: digit_copies.balanced(), mlp, 12, 0.07),
    "cnn": Task(lambda seed: _judged_on(digit_copies.balanced(), 1800), cnn, 12, 0.07, evaluations=3),
    "characters": Task(lambda seed: windows(), Transformer, 6, 0.004, 32, True, 3),
    "wide-cnn": Task(lambda seed: _judged_on(digit_copies.easy_heavy(3), 900), wide_cnn, 12, 0.07, evaluations=2),
}
"""All of them, by name."""
