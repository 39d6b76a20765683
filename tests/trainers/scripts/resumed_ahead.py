"""An epoch that is resumed at its last batch; a generator fetches one ahead."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def ahead(batches):
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=8)
sum(inputs.sum() for inputs, _ in loader)  # no epoch
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for left_out in (3, 0):
    for inputs, targets in ahead(itertools.islice(loader, left_out, None)):
        step += 1
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", loss.item())
    print("epoch", left_out, step)
print("parameters", [p.tolist() for p in model.parameters()])
