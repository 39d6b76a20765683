"""Evaluations of three batches from one iterator, which is renewed as it ends."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(27 * 4, 4)), batch_size=4)
validation = DataLoader(TensorDataset(torch.randn(7 * 4, 4)), batch_size=4)
kept = iter(validation)
for step, (x,) in enumerate(loader):
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", loss.item(), flush=True)
    if step % 3 == 2:
        model.eval()
        total = 0.0
        for _ in range(3):
            try:
                (x,) = next(kept)
            except StopIteration:
                kept = iter(validation)
                (x,) = next(kept)
            with torch.no_grad():
                total += (model(x) ** 2).mean().item()
        val_loss = total / 3
        print("validated", val_loss, flush=True)
        model.train()
