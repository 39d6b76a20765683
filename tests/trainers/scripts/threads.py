"""Two threads that train a model each."""

import threading

import torch
from torch import nn

torch.manual_seed(0)
LINES = {}


def train(number, data):
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(0.1 * number)
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in data:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        LINES.setdefault(number, []).append(f"step {loss.item()} {number}")
    LINES[number].append(f"parameters {[p.tolist() for p in model.parameters()]}")


jobs = [threading.Thread(target=train, args=(n, [torch.randn(8, 4) for _ in range(6)])) for n in (1, 2)]
for job in jobs:
    job.start()
for job in jobs:
    job.join()
for number in (1, 2):
    print("\n".join(LINES[number]), flush=True)
