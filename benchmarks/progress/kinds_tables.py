"""Kinds of training on tables, measured and generated, and on sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from kinds import Batches, Checked, Kind, Stepping, Trained, accuracy, f1, mean_loss, shuffled, supervised
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim import Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau, StepLR

Run = Iterator[Trained | Checked]


@lru_cache
def _measured(*names: str) -> tuple[np.ndarray, ...]:
    """Return tables that come with scikit-learn."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("The tables come with scikit-learn: pip install 'looptap[demo]'", name="sklearn")
    folder = Path(package.origin).parent / "datasets" / "data"
    return tuple(
        np.loadtxt(folder / name, delimiter="," if name.endswith(".csv") else None, skiprows=int(name.endswith(".csv")))
        for name in names
    )


def _normal(columns: Tensor) -> Tensor:
    return (columns - columns.mean(0)) / columns.std(0)


def diabetes(seed: int) -> Run:
    """Regress the progress of diabetes; the rate falls when the error does not."""
    data, target = _measured("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
    order = torch.randperm(len(data))
    x, y = _normal(torch.tensor(data).float())[order], _normal(torch.tensor(target).float())[order].unsqueeze(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
    optimizer = Adam(model.parameters(), 2e-3)
    plateau = ReduceLROnPlateau(optimizer, "min", 0.3, 5)
    check = mean_loss(model, mse_loss, x[330:], y[330:])
    batches = shuffled(x[:330], y[:330], 16)
    return supervised(model, optimizer, batches, mse_loss, check, points=100, plateau=plateau.step)


def cancer(seed: int) -> Run:
    """Classify measured tumours with 15% wrong labels; F1."""
    data = torch.tensor(_measured("breast_cancer.csv")[0]).float()
    data = data[torch.randperm(len(data))]
    x, y = _normal(data[:, :-1]), 1 - data[:, -1:]
    wrong = torch.rand(380, 1) < 0.15
    fit = torch.where(wrong, 1 - y[:380], y[:380])
    model = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = Adam(model.parameters(), 1e-3)
    check = f1(model, x[380:], y[380:])
    return supervised(model, optimizer, shuffled(x[:380], fit, 16), binary_cross_entropy_with_logits, check, points=70)


def _made(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return 20 columns and a nonlinear score of them."""
    x = torch.randn(count, 20, generator=generator)
    score = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3] ** 2 - x[:, 4] * (x[:, 5] > 0)
    return x, score + 0.5 * torch.randn(count, generator=generator)


def rare(seed: int) -> Run:
    """Find the rarest eighth of generated rows; F1, at first 0."""
    x, score = _made(3600, torch.Generator().manual_seed(seed))
    y = (score > score.quantile(0.875)).float().unsqueeze(1)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = RMSprop(model.parameters(), 3e-4)
    check = f1(model, x[2400:], y[2400:])
    batches = shuffled(x[:2400], y[:2400], 64)
    return supervised(model, optimizer, batches, binary_cross_entropy_with_logits, check, points=80)


def log_loss(seed: int) -> Run:
    """Classify generated rows with AdamW and a cosine; log-loss."""
    x, score = _made(3000, torch.Generator().manual_seed(seed))
    y = (score > score.median()).float().unsqueeze(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = AdamW(model.parameters(), 1e-3)
    schedule = Stepping(CosineAnnealingLR(optimizer, 50).step)
    loss = binary_cross_entropy_with_logits
    check = mean_loss(model, loss, x[2000:], y[2000:])
    batches = shuffled(x[:2000], y[:2000], 64)
    return supervised(model, optimizer, batches, loss, check, points=50, schedule=schedule)


def linear(seed: int) -> Run:
    """Fit a linear classifier of ten classes with AdaGrad and a rate that decays."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2600, 40, generator=generator)
    y = (x @ torch.randn(40, 10, generator=generator) + 3 * torch.randn(2600, 10, generator=generator)).argmax(1)
    model = nn.Linear(40, 10)
    optimizer = Adagrad(model.parameters(), 0.02)
    schedule = Stepping(ExponentialLR(optimizer, 0.96).step)
    check = mean_loss(model, cross_entropy, x[2000:], y[2000:])
    batches = shuffled(x[:2000], y[:2000], 64)
    return supervised(model, optimizer, batches, cross_entropy, check, points=100, schedule=schedule)


class _Factors(nn.Module):
    """Taste of 200 users for 150 things, as a product of factors."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(200, 12), nn.Embedding(150, 12)
        for table in (self.users, self.things):
            nn.init.normal_(table.weight, 0.0, 0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return the taste of (n, 2) pairs."""
        return (self.users(pairs[:, 0]) * self.things(pairs[:, 1])).sum(1)


def recommender(seed: int) -> Run:
    """Factorize ratings, with a rate that falls in steps; the error rises later."""
    users, things = torch.randn(200, 4), torch.randn(150, 4)
    pairs = torch.stack([torch.randint(200, (9000,)), torch.randint(150, (9000,))], 1)
    ratings = (users[pairs[:, 0]] * things[pairs[:, 1]]).sum(1) + 0.7 * torch.randn(9000)
    model = _Factors()
    optimizer = Adam(model.parameters(), 3e-3)
    schedule = Stepping(StepLR(optimizer, 20, 0.5).step)
    check = mean_loss(model, mse_loss, pairs[7000:], ratings[7000:])
    batches = shuffled(pairs[:7000], ratings[:7000], 128)
    return supervised(model, optimizer, batches, mse_loss, check, points=60, schedule=schedule)


class _Sum(nn.Module):
    """Add two numbers modulo ``size``: embeddings, and one squared layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(size, 128, bias=False), nn.Linear(size, 128, bias=False)
        self.out = nn.Linear(128, size, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return logits of the sum, for pairs of one-hot numbers (n, 2, size)."""
        found: Tensor = self.out((self.left(pairs[:, 0]) + self.right(pairs[:, 1])) ** 2)
        return found


def grokking(seed: int) -> Run:
    """Learn to add modulo 23: right on what was seen at once, on the rest much later."""
    size = 23
    pairs = torch.cartesian_prod(torch.arange(size), torch.arange(size))[torch.randperm(size * size)]
    x = nn.functional.one_hot(pairs, size).float()
    y = pairs.sum(1) % size
    cut = int(0.7 * len(x))
    model = _Sum(size)
    optimizer = AdamW(model.parameters(), 1e-3, weight_decay=1.0)

    def ten_steps(_: int) -> Batches:
        return ((x[:cut], y[:cut]) for _ in range(10))

    check = accuracy(model, x[cut:], y[cut:])
    return supervised(model, optimizer, ten_steps, cross_entropy, check, points=130)


KINDS = (
    Kind("tabular, regression", "MSE", "log", "reduce on plateau", 0.001, diabetes, known=False),
    Kind("tabular, wrong labels", "F1", "accuracy", "constant", 0.002, cancer),
    Kind("tabular, rare class", "F1", "accuracy", "constant", 0.002, rare),
    Kind("tabular, AdamW", "log-loss", "loss", "cosine", 0.001, log_loss),
    Kind("linear, AdaGrad", "loss", "loss", "exponential", 0.001, linear),
    Kind("recommender", "MSE", "log", "step", 0.002, recommender),
    Kind("grokking", "accuracy", "accuracy", "constant", 0.002, grokking),
)
