"""A script that writes its learning rate: each step, after each epoch, or never."""

import sys
import time
from pathlib import Path

import torch

when, end = sys.argv[1], Path(sys.argv[2])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(4), torch.randn(1)) for _ in range(24)]
loader = torch.utils.data.DataLoader(data, batch_size=4)
epoch = 0
while not end.exists():
    for x, y in loader:
        if when == "step":
            for group in optimizer.param_groups:
                group["lr"] = 0.001
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)
    epoch += 1
    if when == "epoch":
        optimizer.param_groups[0]["lr"] = 0.002
