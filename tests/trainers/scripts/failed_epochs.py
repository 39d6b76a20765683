"""Trainings with a loader each that fail within an epoch, and one after."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kept = []


def train(fails_at=None):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
    for _ in range(2):
        for number, (x,) in enumerate(loader):
            optimizer.zero_grad()
            objective = (net(x) ** 2).mean()
            if number == fails_at:
                raise RuntimeError("out of memory")
            objective.backward()
            optimizer.step()
            print("step", objective.item(), flush=True)
        print("epoch", flush=True)


for fails_at in (4, 3, None):
    try:
        train(fails_at)
    except RuntimeError as error:
        kept.append(error)  # with its loader, as a notebook keeps the last one
        print("failed", flush=True)
