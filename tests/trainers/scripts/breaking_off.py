"""Two epochs whose validations break off, over loaders of several kinds."""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield (torch.ones(4),)


torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4))
loader, val_loader = DataLoader(data, batch_size=4, shuffle=True), DataLoader(TensorDataset(torch.randn(24, 4)))
endless = iter(DataLoader(Endless(), batch_size=2))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def breaks(at):
    for number, (batch,) in enumerate(at):
        with torch.no_grad():
            error = (model(batch) ** 2).mean().item()
        if number == 1:
            break
    return error


@torch.no_grad()
def slices(at):
    total = 0.0
    for (batch,) in islice(at, 2):
        total += (model(batch) ** 2).mean().item()
    return total


@torch.no_grad()
def continues():
    return sum((model(next(endless)[0]) ** 2).mean().item() for _ in range(2))


count = 0
for epoch in range(2):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        print("step", loss.item(), flush=True)
        count += 1
        if count % 5 == 0:
            breaks(val_loader)
            model.eval()
            breaks(loader)
            model.train()
            slices(val_loader)
            continues()
            slices(DataLoader(data, batch_size=8))
            print("test", count, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
