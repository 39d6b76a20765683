"""Accumulated losses that all count, though their gradients look dropped."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def passes(factor=1.0, extra=0.0):
    objective = (model(torch.randn(8, 4).to(model[0].weight.dtype)) ** 2).mean() * factor + extra
    objective.backward()
    value = objective.item()
    if step > 4:
        objective *= 2
    return value


for step in range(8):
    value = passes(factor=0.0, extra=1.5) + passes() + passes()
    optimizer.step()
    optimizer.zero_grad()
    print("step", value, step, flush=True)

model = model.bfloat16()
copies = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=0.01)
for step in range(4):
    value = passes() + passes()
    for copy, p in zip(copies, model.parameters(), strict=True):
        copy.grad = p.grad.float() if copy.grad is None else copy.grad.copy_(p.grad)
    optimizer.step()
    print("step", value, step, flush=True)
    optimizer.zero_grad(set_to_none=False)
    model.zero_grad()
    for copy, p in zip(copies, model.parameters(), strict=True):
        p.data.copy_(copy.data)
print("parameters", [p.tolist() for p in model.parameters()])
