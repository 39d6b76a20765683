"""Records learning curves of small torch models: 14 jobs, several seeds.

python benchmarks/progress/record.py [SECONDS]    writes curves.json beside this file, where it is not yet complete, and
begins no run after so many seconds
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

import torch
from simulated import DELTA, PATIENCE
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from looptap.examples.digits import digits
from looptap.training.progress import Paper

FILE = Path(__file__).with_name("curves.json")
EPOCHS = 100
"""The largest number of epochs; early stopping ends most runs before."""
RULE = Paper(PATIENCE, DELTA)
OPTIMIZERS = {"SGD": (torch.optim.SGD, 0.02), "Adam": (torch.optim.Adam, 4e-4), "RMSprop": (torch.optim.RMSprop, 2e-4),
              "AdaGrad": (torch.optim.Adagrad, 4e-3)}  # fmt: skip
SCHEDULES = ("constant", "exponential", "step")
DEVELOPMENT, HELD_OUT = (*range(15), *range(20, 27)), tuple(range(30, 54))
"""The seeds on which the method was tuned, and those reported."""


class Bidirectional(nn.Module):
    """An LSTM that reads a sequence of tokens in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(20, 16), nn.LSTM(16, 24, bidirectional=True, batch_first=True)
        self.out = nn.Linear(48, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of four classes for (batch, length) tokens."""
        found: Tensor = self.out(self.lstm(self.embedding(tokens))[0].mean(1))
        return found


class Transformer(nn.Module):
    """Two layers of attention over a sequence of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(20, 32), nn.Parameter(torch.randn(1, 24, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of four classes for (batch, length) tokens."""
        found: Tensor = self.out(self.layers(self.embedding(tokens) + self.place).mean(1))
        return found


def cnn() -> nn.Module:
    """Return a small convolutional net for pictures of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 10),
    )  # fmt: skip


def pictures(seed: int) -> tuple[Tensor, Tensor]:
    """Return digits for even seeds, else ten noisy patterns: (n, 1, 8, 8), classes."""
    if seed % 2 == 0:
        return digits()
    rng = torch.Generator().manual_seed(100 + seed)
    patterns = torch.randn(10, 1, 8, 8, generator=rng)
    target = torch.randint(10, (2400,), generator=rng)
    shifts = torch.randint(3, (2400,), generator=rng)
    made = torch.stack([patterns[t].roll(int(s), 2) for t, s in zip(target, shifts, strict=True)])
    return made + 1.1 * torch.randn(made.shape, generator=rng), target


def sequences(seed: int) -> tuple[Tensor, Tensor]:
    """Return sequences of 24 tokens, and the commonest of four groups as class."""
    rng = torch.Generator().manual_seed(200 + seed)
    tokens = torch.randint(20, (3000, 24), generator=rng)
    groups = torch.stack([((tokens % 4) == k).sum(1) for k in range(4)], 1).float()
    return tokens, (groups + 0.01 * torch.rand(groups.shape, generator=rng)).argmax(1)


def jobs() -> Iterator[tuple[str, str]]:
    """Yield the combinations: optimizer and schedule, or model."""
    for optimizer in OPTIMIZERS:
        for schedule in SCHEDULES:
            yield optimizer, schedule
    yield "transformer, AdamW", "constant"
    yield "LSTM, RMSprop", "exponential"


def train(optimizer: str, schedule: str, seed: int) -> dict[str, object]:
    """Train until early stopping; return validation errors and the first rate."""
    torch.manual_seed(seed)
    tokens = optimizer.startswith(("transformer", "LSTM"))
    inputs, targets = sequences(seed) if tokens else pictures(seed)
    model: nn.Module
    if tokens:
        model = Transformer() if optimizer.startswith("t") else Bidirectional()
        chosen = torch.optim.AdamW if optimizer.startswith("t") else torch.optim.RMSprop
        steps = chosen(model.parameters(), lr=3e-4 if optimizer.startswith("t") else 5e-4)
    else:
        model = cnn()
        kind, rate = OPTIMIZERS[optimizer]
        steps = kind(model.parameters(), lr=rate * math.exp(torch.randn(()).item() * 0.3))
    cut = 2 * len(inputs) // 3
    order = torch.randperm(len(inputs))
    fit, check = order[:cut], order[cut:]
    plan: torch.optim.lr_scheduler.LRScheduler | None = None
    if schedule == "exponential":
        plan = torch.optim.lr_scheduler.ExponentialLR(steps, 0.95)
    if schedule == "step":
        plan = torch.optim.lr_scheduler.StepLR(steps, 15, 0.3)
    errors: list[float] = []
    first = float(steps.param_groups[0]["lr"])
    for _ in range(EPOCHS):
        model.train()
        for batch in fit[torch.randperm(len(fit))].split(64):
            steps.zero_grad()
            data = inputs[batch]
            cross_entropy(model(data if tokens else data + 0.3 * torch.randn_like(data)), targets[batch]).backward()
            steps.step()
        model.eval()
        with torch.no_grad():
            errors.append(round((model(inputs[check]).argmax(1) != targets[check]).float().mean().item(), 5))
        if RULE.stops(errors):
            break
        if plan is not None:
            plan.step()
    return {"optimizer": optimizer, "schedule": schedule, "seed": seed, "errors": errors, "rate": first}


def rates(schedule: str, first: float) -> list[float]:
    """Return the learning rate before each validation of a run to the last epoch."""
    falls = {"constant": (1.0, 1), "exponential": (0.95, 1), "step": (0.3, 15)}
    factor, every = falls[schedule]
    return [first * factor ** (epoch // every) for epoch in range(EPOCHS)]


def main() -> None:
    """Record what is missing, two runs at a time."""
    begun, most = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else math.inf
    torch.set_num_threads(1)
    done = json.loads(FILE.read_text()) if FILE.exists() else []
    have = {(run["optimizer"], run["schedule"], run["seed"]) for run in done}
    missing = ((*job, seed) for seed in (*DEVELOPMENT, *HELD_OUT) for job in jobs() if (*job, seed) not in have)
    with Pool(2, torch.set_num_threads, (1,)) as pool:
        running: list[AsyncResult[dict[str, object]]] = []
        while True:
            while len(running) < 2 and time.monotonic() - begun < most and (job := next(missing, None)):
                running.append(pool.apply_async(train, job))
            if not running:
                return
            done.append(running.pop(0).get())
            FILE.write_text("[\n" + ",\n".join(json.dumps(run) for run in done) + "\n]\n")


if __name__ == "__main__":
    main()
