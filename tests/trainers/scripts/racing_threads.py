"""Two threads that train one model after the other."""

import threading

import torch
from torch import nn

torch.manual_seed(0)
LINES = {}


def train(number):
    generator = torch.Generator().manual_seed(number)
    for _ in range(150):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.1 * number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(torch.randn(8, 4, generator=generator)) ** 2).mean()
            loss.backward()
            optimizer.step()
            LINES.setdefault(number, []).append(f"step {loss.item()} {number}")


jobs = [threading.Thread(target=train, args=(number,)) for number in (1, 2)]
for job in jobs:
    job.start()
for job in jobs:
    job.join()
for number in (1, 2):
    print("\n".join(LINES[number]), flush=True)
