"""Iterators of one loader in turns: each ends when its batches do.

Prints each update's loss, and "epoch" where a pass has had all its batches.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
loader = DataLoader(data, batch_size=4)


def step(batch):
    x, y = batch
    optimizer.zero_grad()
    objective = ((model(x) - y) ** 2).mean()
    objective.backward()
    optimizer.step()
    print("step", objective.item(), flush=True)


def fetch(batches):
    return next(batches)


def critic():
    """Take five updates of one, then one of the other."""
    critics, generators = iter(loader), iter(loader)
    for _ in range(3):
        for _ in range(5):
            step(next(critics))
        step(next(generators))


def fetched():
    critics, generators = iter(loader), iter(loader)
    for _ in range(3):
        for _ in range(5):
            step(fetch(critics))
        step(fetch(generators))


def some(batches, count):
    for _ in range(count):
        step(next(batches))


def passed():
    critics, generators = iter(loader), iter(loader)
    for _ in range(3):
        some(critics, 5)
        some(generators, 1)


def alternating():
    one, two = iter(loader), iter(loader)
    for _ in range(10):
        step(next(one))
        step(next(two))


def late():
    """Begin the second one in the middle of the first."""
    one, two = iter(loader), None
    for number in range(10):
        step(next(one))
        if number > 3:
            two = two or iter(loader)
            step(next(two))


def checked():
    """Check with two batches every five updates."""
    checks, batches = iter(loader), iter(loader)
    for number in range(15):
        step(next(batches))
        if number % 5 == 4:
            with torch.no_grad():
                for _ in range(2):
                    x, _ = next(checks)
                    model(x)


for way in (critic, fetched, passed, alternating, late, checked):
    print("#", way.__name__)
    way()
    print("epoch", way.__name__, flush=True)
for batch in loader:
    step(batch)
print("epoch last", flush=True)
