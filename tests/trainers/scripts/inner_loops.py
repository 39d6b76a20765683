"""Backward passes through several graphs before a step."""

import copy

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)


def made():
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def error(outputs, inputs):
    return ((outputs - inputs.sum(1, keepdim=True)) ** 2).mean()


def batch():
    return torch.randn(8, 2)


model = made()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(12):  # the passes of the inner loops reach tensors of their own
    optimizer.zero_grad()
    total = 0.0
    for _ in range(2):
        fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
        for _ in range(2):
            inputs = batch()
            error(functional_call(model, fast, inputs), inputs).backward()
            fast = {name: (p.detach() - 0.1 * p.grad).requires_grad_() for name, p in fast.items()}
        moved = {name: p + (fast[name] - p).detach() for name, p in model.named_parameters()}
        inputs = batch()
        query = error(functional_call(model, moved, inputs), inputs)
        query.backward()
        total += query.item()
    optimizer.step()
    print("step", total, flush=True)

beside = made()
for _ in range(12):  # a model that is trained by hand, between the pass and the step of the other
    inputs = batch()
    optimizer.zero_grad()
    objective = error(model(inputs), inputs)
    objective.backward()
    (100 * error(beside(inputs), inputs)).backward()
    with torch.no_grad():
        for p in beside.parameters():
            p -= 0.0001 * p.grad
            p.grad = None
    optimizer.step()
    print("step", objective.item(), flush=True)

for _ in range(4):  # gradients of a copy, which has an optimizer of its own
    learner = copy.deepcopy(model)
    inner = torch.optim.SGD(learner.parameters(), lr=0.1)
    for _ in range(2):
        inputs = batch()
        inner.zero_grad()
        objective = error(learner(inputs), inputs)
        objective.backward()
        inner.step()
        print("step", objective.item(), flush=True)
    inputs = batch()
    inner.zero_grad()
    error(learner(inputs), inputs).backward()
    for p, of_copy in zip(model.parameters(), learner.parameters(), strict=True):
        p.grad = of_copy.grad
    optimizer.step()
    print("meta", flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
