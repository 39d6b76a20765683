"""Trainings in a thread each, of which the first one fails within an epoch."""

import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def train(fails_at=None):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for number, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)):
            objective = (model(x) ** 2).mean()
            objective.backward()
            if number == fails_at:
                print("epoch", flush=True)
                return
            optimizer.step()
            optimizer.zero_grad()
            print("step", objective.item(), flush=True)
        print("epoch", flush=True)


for fails_at in (3, None):
    job = threading.Thread(target=train, args=(fails_at,))
    job.start()
    job.join()
