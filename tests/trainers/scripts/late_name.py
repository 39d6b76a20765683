"""A variable that has no value for the first 150 steps."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(step):
    loss = (model(torch.randn(8, 4)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", loss.item(), step, flush=True, file=sys.stdout)


def main():
    step = 0
    for _ in range(2):
        for _ in range(150):
            step += 1
            train(step)
        checked = float(model(torch.ones(4)))
        print("checked", checked)
    print("parameters", [p.tolist() for p in model.parameters()])


main()
