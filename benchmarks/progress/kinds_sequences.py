"""Kinds of training on sequences: text, waves, sums."""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Iterator
from functools import lru_cache

import torch
from kinds import Batches, Checked, Kind, Stepping, Trained, accuracy, mean_loss, shuffled, supervised
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import LambdaLR, LinearLR, OneCycleLR, StepLR

Run = Iterator[Trained | Checked]
_LETTERS = 96


@lru_cache
def _text() -> Tensor:
    """Return the help texts of Python as codes of letters."""
    text = "".join(str(part) for _, part in sorted(pydoc_data.topics.topics.items()))
    return torch.tensor([min(max(ord(letter) - 31, 0), _LETTERS - 1) for letter in text])


def _parts(text: Tensor, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Return random parts of a text, and the same one letter on."""
    at = torch.randint(len(text) - length - 1, (count, 1)) + torch.arange(length + 1)
    found = text[at]
    return found[:, :-1], found[:, 1:]


def _letters(found: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(found.flatten(0, 1), targets.flatten())


def _perplexity(model: nn.Module, inputs: Tensor, targets: Tensor) -> Checked:
    return Checked(math.exp(min(60.0, _letters(model(inputs), targets).item())), len(inputs))


class _Transformer(nn.Module):
    """A causal character-level transformer, or a classifier of whole sequences."""

    def __init__(self, letters: int, width: int, length: int, classes: int = 0) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(letters, width), nn.Parameter(torch.randn(1, length, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out, self.causal = nn.Linear(width, classes or letters), not classes

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, of each next letter or of the class."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        found = self.layers(self.embedding(tokens) + self.place[:, :length], mask=mask)
        logits: Tensor = self.out(found if self.causal else found.mean(1))
        return logits


class _Recurrent(nn.Module):
    """An LSTM or GRU that says something at each place, or at the last alone."""

    def __init__(self, inputs: nn.Module, cell: nn.RNNBase, outputs: int, *, last: bool = False) -> None:
        super().__init__()
        self.inputs, self.cell, self.out, self.last = inputs, cell, nn.Linear(cell.hidden_size, outputs), last

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the output at each place, or at the last."""
        found = self.cell(self.inputs(tokens))[0]
        logits: Tensor = self.out(found[:, -1] if self.last else found)
        return logits


def _parts_of(text: Tensor, steps: int, batch: int, length: int) -> Batches:
    return (_parts(text, batch, length) for _ in range(steps))


def transformer(seed: int) -> Run:
    """Train a character-level transformer with warm-up and cosine; perplexity."""
    text, cut, steps = _text(), 400_000, 45 * 14
    model = _Transformer(_LETTERS, 32, 48)
    optimizer = AdamW(model.parameters(), 3e-3)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps)))

    schedule = Stepping(LambdaLR(optimizer, factor).step, each_batch=True)
    inputs, targets = _parts(text[cut:], 64, 48)
    return supervised(
        model, optimizer, lambda _: _parts_of(text[:cut], 14, 16, 48), _letters,
        lambda: _perplexity(model, inputs, targets), points=45, schedule=schedule,
    )  # fmt: skip


def fine_tuned(seed: int) -> Run:
    """Fine-tune a character-level transformer for one topic, with a linear decay."""
    text = _text()
    model = _Transformer(_LETTERS, 32, 32)
    before = AdamW(model.parameters(), 3e-3)
    for inputs, targets in _parts_of(text[:400_000], 250, 16, 32):
        before.zero_grad()
        _letters(model(inputs), targets).backward()
        before.step()
    topic = text[440_000:452_000]
    optimizer = AdamW(model.parameters(), 2e-3)
    schedule = Stepping(LinearLR(optimizer, 1.0, 0.02, 40).step)
    checked = _parts(topic[9000:], 64, 32)
    return supervised(
        model, optimizer, lambda _: _parts_of(topic[:9000], 12, 16, 32), _letters,
        lambda: _perplexity(model, *checked), points=40, schedule=schedule,
    )  # fmt: skip


def lstm(seed: int) -> Run:
    """Train an LSTM of letters at a constant rate; loss."""
    text = _text()
    model = _Recurrent(nn.Embedding(_LETTERS, 24), nn.LSTM(24, 48, batch_first=True), _LETTERS)
    optimizer = Adam(model.parameters(), 4e-3)
    inputs, targets = _parts(text[400_000:], 48, 32)
    check = mean_loss(model, _letters, inputs, targets)
    fit = text[:20_000]
    return supervised(model, optimizer, lambda _: _parts_of(fit, 20, 12, 32), _letters, check, points=70)


def curriculum(seed: int) -> Run:
    """Train a GRU on parts of a text that grow to 88 letters: steps get longer."""
    text = _text()
    model = _Recurrent(nn.Embedding(_LETTERS, 24), nn.GRU(24, 40, batch_first=True), _LETTERS)
    optimizer = Adam(model.parameters(), 3e-3)
    inputs, targets = _parts(text[400_000:], 32, 64)

    def longer(point: int) -> Batches:
        return _parts_of(text[:400_000], 12, 12, 8 + 2 * min(40, point))

    return supervised(model, optimizer, longer, _letters, lambda: _perplexity(model, inputs, targets), points=45)


def waves(seed: int) -> Run:
    """Forecast sums of waves with a GRU, with a rate that falls in steps."""
    time, phase = torch.arange(33.0) * 0.25, torch.rand(900, 3, 1) * 6.3
    speed = 0.4 + torch.rand(900, 3, 1) * 2
    series = torch.sin(speed * time + phase).sum(1) / 2 + 0.1 * torch.randn(900, 33)
    x, y = series[:, :-1].unsqueeze(2), series[:, 1:].unsqueeze(2)
    model = _Recurrent(nn.Identity(), nn.GRU(1, 24, batch_first=True), 1)
    optimizer = RMSprop(model.parameters(), 3e-3)
    schedule = Stepping(StepLR(optimizer, 25, 0.3).step)
    check = mean_loss(model, mse_loss, x[600:], y[600:])
    return supervised(model, optimizer, shuffled(x[:600], y[:600], 32), mse_loss, check, points=70, schedule=schedule)


def adding(seed: int) -> Run:
    """Add the two marked numbers of a sequence: a long plateau, then a fall."""

    def made(count: int) -> tuple[Tensor, Tensor]:
        values, marks = torch.rand(count, 20), torch.zeros(count, 20)
        at = torch.rand(count, 20).argsort(1)[:, :2]
        marks.scatter_(1, at, 1.0)
        return torch.stack([values, marks], 2), (values * marks).sum(1, keepdim=True)

    model = _Recurrent(nn.Identity(), nn.GRU(2, 24, batch_first=True), 1, last=True)
    optimizer = Adam(model.parameters(), 2e-3)
    inputs, targets = made(300)
    check = mean_loss(model, mse_loss, inputs, targets)
    return supervised(model, optimizer, lambda _: (made(32) for _ in range(12)), mse_loss, check, points=70)


def bucketed(seed: int) -> Run:
    """Classify sequences of 4 to 32 tokens in batches of 384 tokens."""
    buckets = []
    for length in (4, 8, 12, 16, 24, 32):
        tokens = torch.randint(12, (180, length))
        groups = torch.stack([((tokens % 3) == k).sum(1) for k in range(3)], 1).float()
        buckets.append((tokens, (groups + 0.01 * torch.rand(groups.shape)).argmax(1)))
    model = _Recurrent(nn.Embedding(12, 12), nn.GRU(12, 24, batch_first=True), 3, last=True)
    optimizer = Adam(model.parameters(), 2e-3)

    def epoch(_: int) -> Batches:
        batches = [(tokens[:120][chosen], targets[:120][chosen]) for tokens, targets in buckets
                   for chosen in torch.randperm(120).split(384 // tokens.shape[1])]  # fmt: skip
        return (batches[at] for at in torch.randperm(len(batches)).tolist())

    def check() -> Checked:
        right = sum((model(tokens[120:]).argmax(1) == targets[120:]).sum().item() for tokens, targets in buckets)
        return Checked(right / (60 * len(buckets)), 60 * len(buckets))

    return supervised(model, optimizer, epoch, cross_entropy, check, points=45)


def commonest(seed: int) -> Run:
    """Find the commonest of four groups of tokens with a transformer, in one cycle."""
    tokens = torch.randint(20, (1100, 20))
    groups = torch.stack([((tokens % 4) == k).sum(1) for k in range(4)], 1).float()
    targets = (groups + 0.01 * torch.rand(groups.shape)).argmax(1)
    model = _Transformer(20, 24, 20, classes=4)
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    schedule = Stepping(OneCycleLR(optimizer, 0.1, total_steps=40 * 11 + 1).step, each_batch=True)
    check = accuracy(model, tokens[700:], targets[700:])
    batches = shuffled(tokens[:700], targets[:700], 64)
    return supervised(model, optimizer, batches, cross_entropy, check, points=40, schedule=schedule)


KINDS = (
    Kind("transformer, letters", "perplexity", "log", "warm-up and cosine", 0.02, transformer),
    Kind("fine-tuning, letters", "perplexity", "log", "linear", 0.01, fine_tuned),
    Kind("LSTM, letters", "loss", "loss", "constant", 0.002, lstm),
    Kind("curriculum, GRU", "perplexity", "log", "constant", 0.02, curriculum),
    Kind("GRU, waves", "MSE", "log", "step", 0.0005, waves),
    Kind("GRU, adding", "MSE", "log", "constant", 0.0005, adding),
    Kind("buckets of lengths", "accuracy", "accuracy", "constant", 0.002, bucketed),
    Kind("transformer, classes", "accuracy", "accuracy", "one-cycle", 0.002, commonest),
)
