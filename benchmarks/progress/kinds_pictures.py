"""Kinds of training on pictures: scanned digits, drawn shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from kinds import Batches, Checked, Kind, Stepping, Trained, accuracy, mean_loss, shuffled, supervised
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LinearLR, OneCycleLR, StepLR

from looptap.examples.digits import digits

Run = Iterator[Trained | Checked]

_scans = lru_cache(digits)


def _split(validated: int, noise: float = 0.35) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return digits to train on, with some noise, and others to validate."""
    inputs, targets = _scans()
    inputs = inputs + noise * torch.randn_like(inputs)
    order = torch.randperm(len(inputs))
    fit, check = order[validated:], order[:validated]
    return inputs[fit], targets[fit], inputs[check], targets[check]


def _cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 10),
    )  # fmt: skip


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, 10))  # fmt: skip


def cnn_adam(seed: int) -> Run:
    """Train a CNN at a constant rate."""
    x, y, vx, vy = _split(600, 0.15)
    model = _cnn()
    optimizer = Adam(model.parameters(), 1e-3)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, accuracy(model, vx, vy), points=100)


def cnn_cosine(seed: int) -> Run:
    """Train a CNN with SGD and a falling cosine."""
    x, y, vx, vy = _split(500)
    model = _cnn()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = Stepping(CosineAnnealingLR(optimizer, 60).step)
    check = accuracy(model, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, check, points=60, schedule=schedule)


def cnn_one_cycle(seed: int) -> Run:
    """Train a CNN with one cycle; the validated loss rises while the rate does."""
    x, y, vx, vy = _split(500)
    model = _cnn()
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    steps = 50 * -(-len(x) // 64)
    schedule = Stepping(OneCycleLR(optimizer, 0.15, total_steps=steps + 1).step, each_batch=True)
    check = mean_loss(model, cross_entropy, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, check, points=50, schedule=schedule)


def cnn_restarts(seed: int) -> Run:
    """Train a CNN with warm restarts after 10 and 30 epochs."""
    x, y, vx, vy = _split(500)
    model = _cnn()
    optimizer = SGD(model.parameters(), 0.08, momentum=0.9)
    schedule = Stepping(CosineAnnealingWarmRestarts(optimizer, 10, 2).step)
    check = accuracy(model, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, check, points=70, schedule=schedule)


def cnn_noisy_labels(seed: int) -> Run:
    """Train a CNN on labels of which 40% are wrong; validate on right ones."""
    x, y, vx, vy = _split(500)
    wrong = torch.rand(len(y)) < 0.4
    y = torch.where(wrong, torch.randint(10, y.shape), y)
    model = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(384, 96), nn.ReLU(), nn.Linear(96, 10))  # fmt: skip
    optimizer = Adam(model.parameters(), 5e-4)
    check = mean_loss(model, cross_entropy, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, check, points=70)


def mlp_overfit(seed: int) -> Run:
    """Train a wide MLP on 300 pictures: the log-loss soon rises."""
    x, y, vx, vy = _split(900)
    model = _mlp(128)
    optimizer = Adam(model.parameters(), 5e-4)
    check = mean_loss(model, cross_entropy, vx, vy)
    return supervised(model, optimizer, shuffled(x[:300], y[:300], 16), cross_entropy, check, points=80)


def mlp_steps(seed: int) -> Run:
    """Train an MLP with a rate that is divided by 5 each 30 epochs."""
    x, y, vx, vy = _split(400, 0.2)
    model = _mlp(64)
    optimizer = SGD(model.parameters(), 0.03, momentum=0.9)
    schedule = Stepping(StepLR(optimizer, 30, 0.2).step)
    check = accuracy(model, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 32), cross_entropy, check, points=90, schedule=schedule)


def random_labels(seed: int) -> Run:
    """Train on labels that mean nothing: it never improves on chance."""
    x, y, vx, vy = _split(500)
    y, vy = torch.randint(10, y.shape), torch.randint(10, vy.shape)
    model = _cnn()
    optimizer = Adam(model.parameters(), 1e-3)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, accuracy(model, vx, vy), points=60)


def dead(seed: int) -> Run:
    """Train a network whose units are all dead: it says the same for ever."""
    x, y, vx, vy = _split(500)
    model = _mlp(48)
    with torch.no_grad():
        model[3].bias.fill_(-100.0)
        model[5].requires_grad_(False)
    optimizer = SGD(model.parameters(), 0.05)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, accuracy(model, vx, vy), points=60)


def diverging(seed: int) -> Run:
    """Train with a rate that grows until the loss explodes."""
    x, y, vx, vy = _split(500)
    model = _cnn()
    optimizer = SGD(model.parameters(), 0.02, momentum=0.9)
    schedule = Stepping(torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.2).step)
    check = mean_loss(model, cross_entropy, vx, vy)
    return supervised(model, optimizer, shuffled(x, y, 64), cross_entropy, check, points=60, schedule=schedule)


def fine_tuned(seed: int) -> Run:
    """Fine-tune a CNN that knows five digits for the other five, with a falling rate."""
    x, y, vx, vy = _split(800, 0.2)
    model = _cnn()
    early = y < 5
    before = Adam(model.parameters(), 2e-3)
    for epoch in range(12):
        for inputs, targets in shuffled(x[early], y[early], 64)(epoch):
            before.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            before.step()
    optimizer = AdamW(model.parameters(), 2e-3)
    schedule = Stepping(LinearLR(optimizer, 1.0, 0.02, 30).step)
    check = accuracy(model, vx[vy >= 5], vy[vy >= 5])
    late = shuffled(x[~early], y[~early], 16)
    return supervised(model, optimizer, late, cross_entropy, check, points=30, schedule=schedule)


def autoencoder(seed: int) -> Run:
    """Train an autoencoder, which improves slowly to the end."""
    x, _, vx, _ = _split(500)
    x, vx = x.flatten(1), vx.flatten(1)
    model = nn.Sequential(
        nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 8), nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 64)
    )
    optimizer = Adam(model.parameters(), 3e-4)
    check = mean_loss(model, mse_loss, vx, vx)
    return supervised(model, optimizer, shuffled(x, x, 32), mse_loss, check, points=60)


def growing_batch(seed: int) -> Run:
    """Train an MLP with a batch that doubles each twelve epochs."""
    x, y, vx, vy = _split(500)
    model = _mlp(96)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.5)

    def epoch(point: int) -> Batches:
        return shuffled(x, y, 16 * 2 ** min(4, point // 12))(point)

    return supervised(model, optimizer, epoch, cross_entropy, mean_loss(model, cross_entropy, vx, vy), points=72)


def _shapes(count: int) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of discs and boxes, 16 x 16, and where the discs are."""
    row = torch.arange(16.0)
    place, size = torch.rand(count, 2, 2) * 12 + 2, torch.rand(count, 2) * 3 + 1.5
    dy, dx = (row.view(1, 16, 1) - place[:, 0, 0].view(-1, 1, 1)), (row.view(1, 1, 16) - place[:, 0, 1].view(-1, 1, 1))
    disc = dy**2 + dx**2 < size[:, 0].view(-1, 1, 1) ** 2
    by, bx = (row.view(1, 16, 1) - place[:, 1, 0].view(-1, 1, 1)), (row.view(1, 1, 16) - place[:, 1, 1].view(-1, 1, 1))
    box = (by.abs() < size[:, 1].view(-1, 1, 1)) & (bx.abs() < size[:, 1].view(-1, 1, 1))
    pictures = (disc | box).float() + 0.3 * torch.randn(count, 16, 16)
    return pictures.unsqueeze(1), disc.float().unsqueeze(1)


def segmentation(seed: int) -> Run:
    """Find the pixels of discs; the rate falls when the overlap does not improve."""
    x, y = _shapes(448)
    vx, vy = _shapes(160)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(),
                          nn.Conv2d(8, 1, 5, padding=2))  # fmt: skip
    optimizer = Adam(model.parameters(), 5e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.3, 4)

    def overlap() -> Checked:
        found, true = model(vx) > 0, vy > 0.5
        return Checked(((found & true).sum() / (found | true).sum().clamp(min=1)).item(), len(vx))

    epoch = shuffled(x, y, 32)
    return supervised(
        model, optimizer, epoch, binary_cross_entropy_with_logits, overlap, points=70, plateau=plateau.step
    )


KINDS = (
    Kind("CNN, Adam", "accuracy", "accuracy", "constant", 0.002, cnn_adam),
    Kind("CNN, SGD", "accuracy", "accuracy", "cosine", 0.002, cnn_cosine),
    Kind("CNN, one cycle", "log-loss", "loss", "one-cycle", 0.001, cnn_one_cycle),
    Kind("CNN, restarts", "accuracy", "accuracy", "warm restarts", 0.002, cnn_restarts),
    Kind("label noise", "log-loss", "loss", "constant", 0.002, cnn_noisy_labels),
    Kind("over-fitting", "log-loss", "loss", "constant", 0.001, mlp_overfit),
    Kind("MLP, steps", "accuracy", "accuracy", "step", 0.002, mlp_steps),
    Kind("random labels", "accuracy", "accuracy", "constant", 0.005, random_labels),
    Kind("dead network", "accuracy", "accuracy", "constant", 0.001, dead),
    Kind("diverging", "log-loss", "loss", "exponential", 0.001, diverging),
    Kind("fine-tuning, CNN", "accuracy", "accuracy", "linear", 0.002, fine_tuned),
    Kind("autoencoder", "MSE", "log", "constant", 0.0002, autoencoder),
    Kind("growing batch", "loss", "loss", "constant", 0.001, growing_batch),
    Kind("segmentation", "IoU", "accuracy", "reduce on plateau", 0.002, segmentation, known=False),
)
