"""A training in a thread that ends with an evaluation without a DataLoader."""

import threading

import torch
from torch import nn

torch.manual_seed(0)


def train():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(torch.randn(8, 4)) ** 2).mean()
            loss.backward()
            optimizer.step()
            print("step", loss.item(), flush=True)
        model.eval()
        with torch.no_grad():
            print("test", (model(torch.randn(8, 4)) ** 2).mean().item(), flush=True)


job = threading.Thread(target=train)
job.start()
job.join()
