"""Batches fetched one ahead, in training and validation, as Accelerate does."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def ahead(loader):
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
training, validation = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    values = []
    for inputs, targets in ahead(training):
        model.train()
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
        print("step", loss.item())
    print("epoch", epoch, sum(values) / len(values))
    model.eval()
    with torch.no_grad():
        tested = sum(((model(inputs) - targets) ** 2).mean() for inputs, targets in ahead(validation))
print("parameters", [float(p.sum()) for p in model.parameters()])
