"""Variables that are named like looptap's observables and like words of queries."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, lr, values, e = {"train": 1.5, "val": 2.5}, 0.25, 2, 3.5
for step in range(6):
    loss = (model(torch.randn(8, 4)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    losses["val"] = max = 10 * step
    print("step", loss.item(), norm, flush=True)
    if step > 1:
        min = -step
