"""Loops of one function that are left early, and others after them.

Variables hold the iterators of the ones that were left. Prints each update's loss, and the end of each epoch.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)


def step(x, y):
    optimizer.zero_grad()
    objective = ((model(x) - y) ** 2).mean()
    objective.backward()
    optimizer.step()
    print("step", objective.item(), flush=True)


def handed_on(batches):
    yield from batches


warm_up = handed_on(loader)
for number, (x, y) in enumerate(warm_up):
    if number == 3:
        break
    step(x, y)
print("epoch", flush=True)
for x, y in loader:
    step(x, y)
print("epoch", flush=True)
try:
    failing = iter(loader)
    for number, (x, y) in enumerate(failing):
        if number == 3:
            raise RuntimeError("out of memory")
        step(x, y)
except RuntimeError:
    print("epoch", flush=True)
for _ in range(2):
    for x, y in loader:
        step(x, y)
    print("epoch", flush=True)
