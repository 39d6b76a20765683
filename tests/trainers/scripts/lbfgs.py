"""An optimizer that evaluates its closure up to 25 times a step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
x, y = torch.randn(16, 4), torch.randn(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)


def closure():
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    return loss


for step in range(4):
    print("step", optimizer.step(closure).item(), step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
