"""A loop without an optimizer: the update is written by hand."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)


def train(source):
    model.train()
    for batch, (data, targets) in enumerate(source):
        model.zero_grad()
        loss = ((model(data) - targets) ** 2).mean()
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.05)
        print("step", loss.item(), batch, flush=True)


train([(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(6)])
print("parameters", [p.tolist() for p in model.parameters()])
