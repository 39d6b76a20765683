"""Trainings that fail between two backward passes, and one after them."""

import torch
from torch import nn

torch.manual_seed(0)


def train(fails_at=None):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(4):
        for part in range(2):
            if (step, part) == (fails_at, 1):
                raise RuntimeError("out of memory")
            objective = (net(torch.randn(8, 4)) ** 2).mean() / 2
            objective.backward()
            print("part", objective.item(), flush=True)
        optimizer.step()
        print("step", step, flush=True)
        optimizer.zero_grad()


for fails_at in (2, 0, None):
    try:
        train(fails_at)
    except RuntimeError:
        print("failed", flush=True)
