"""A trainer class with its numbers in attributes, and weights updated by hand."""

from dataclasses import dataclass

import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 8), nn.Linear(8, 1)


@dataclass
class Progress:
    updates: int = 0


class Trainer:
    def __init__(self, rate):
        self.net = nn.Sequential(body, nn.ReLU(), head)
        self.rate, self.progress = rate, Progress()

    def objective(self, batch):
        penalty = sum((p**2).sum() for p in self.net.parameters())
        return (self.net(batch) ** 2).mean() + 0.01 * penalty, {"penalty": penalty.item()}

    def update(self):
        self.net.zero_grad()
        value, parts = self.objective(torch.randn(8, 4))
        value.backward()
        for parameter in self.net.parameters():
            parameter.data -= self.rate * parameter.grad
        self.progress.updates += 1
        print("step", value.item(), len(parts), flush=True)


trainer = Trainer(0.1)
for _ in range(12):
    trainer.update()
print("parameters", [p.tolist() for p in trainer.net.parameters()])
