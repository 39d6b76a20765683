"""Gradients that a script drops between two backward passes without an optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
model[0].bias.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def passes():
    objective = (model(torch.randn(8, 4)) ** 2).mean()
    objective.backward()
    return objective.item()


def to_none():
    for p in model.parameters():
        p.grad = None


def in_place():
    torch._foreach_zero_([p.grad for p in model.parameters() if p.grad is not None])


DROPS = [lambda: None, model.zero_grad, to_none, lambda: model.zero_grad(set_to_none=False), in_place]
for step in range(10):
    first = passes()
    DROPS[step % 5]()
    value = passes() + (0 if step % 5 else first)
    optimizer.step()
    to_none()
    print("step", value, step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
