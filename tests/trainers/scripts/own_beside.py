"""A training with torch's optimizer, others with an own one, and torch's again."""

import torch
from torch import nn


class Plain:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = [*parameters], rate

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= self.rate * parameter.grad

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


def fit(model, optimizer, steps, micro=1):
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            loss = (model(torch.randn(8, 4)) ** 2).mean() / micro
            loss.backward()
        optimizer.step()
        print("step", loss.item() * micro, flush=True)


torch.manual_seed(0)
first, second = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
unused = torch.optim.Adam(second.parameters())
for _ in range(12):
    loss = (first(torch.randn(8, 4)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("torch", loss.item(), flush=True)
del unused
fit(second, Plain(second.parameters(), 0.1), 20)
weights = torch.zeros(4, requires_grad=True)
for _ in range(80):
    value = ((weights - 1) ** 2).sum()
    value.backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad
        weights.grad = None
    print("raw", value.item(), flush=True)
own = Plain(first.parameters(), 0.1)
for _ in range(20):
    again = (first(torch.randn(8, 4)) ** 2).mean()
    again.backward()
    own.step()
    own.zero_grad()
    print("again", again.item(), flush=True)
third = nn.Linear(4, 1)
optimizer = torch.optim.SGD(third.parameters(), lr=0.1)
for _ in range(4):
    final = (third(torch.randn(8, 4)) ** 2).mean()
    final.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("final", final.item(), flush=True)
print("parameters", [p.tolist() for m in (first, second) for p in m.parameters()])
