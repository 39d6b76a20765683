"""Epochs of one batch that is fetched before the model is in its mode."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=8)
val_loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for (batch,) in loader:
        model.train()
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        print("step", loss.item(), flush=True)
    for (batch,) in val_loader:
        model.train(False)
        error = (model(batch) ** 2).mean().item()
print("parameters", [p.tolist() for p in model.parameters()])
