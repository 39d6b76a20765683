"""A training beside a model that an earlier one has left in evaluation mode."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data, held_out = (TensorDataset(torch.randn(count, 4)) for count in (16, 8))
kept = []

for _ in range(2):
    net = nn.Linear(4, 1)
    kept.append((net, torch.optim.SGD(net.parameters(), lr=0.01)))
    for _ in range(3):
        for (x,) in DataLoader(data, batch_size=4):
            net.train()
            kept[-1][1].zero_grad()
            (net(x) ** 2).mean().backward()
            kept[-1][1].step()
        for (x,) in DataLoader(held_out, batch_size=4):
            net.train(False)  # which is no call of eval()
            with torch.no_grad():
                net(x)
print("parameters", [p.tolist() for net, _ in kept for p in net.parameters()])
