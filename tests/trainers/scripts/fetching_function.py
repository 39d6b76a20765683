"""A loop that fetches with a function, and twice trains on other data in between."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader, other = (DataLoader(TensorDataset(torch.randn(count, 4)), batch_size=4) for count in (40, 12))
batches = iter(loader)


def fetched():
    global batches
    try:
        return next(batches)[0]
    except StopIteration:
        print("epoch", flush=True)
        batches = iter(loader)
        return next(batches)[0]


def update(x):
    objective = (model(x) ** 2).mean()
    optimizer.zero_grad()
    objective.backward()
    optimizer.step()
    print("step", objective.item(), flush=True)


for step in range(30):
    update(fetched())
    if step in (4, 14):
        for (x,) in other:
            update(x)
        print("epoch", flush=True)
print("epoch", flush=True)
