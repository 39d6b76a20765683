"""Two trainings one after the other, of models that both stay."""

from collections import OrderedDict

import torch
from torch import nn

torch.manual_seed(0)
kept = []


def train(width):
    net = nn.Sequential(OrderedDict(body=nn.Linear(4, width), head=nn.Linear(width, 1)))
    kept.append(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        lr, mean, values = step / 4, step / 8, step
        optimizer.zero_grad()
        objective = (net(torch.randn(8, 4)) ** 2).mean()
        objective.backward()
        optimizer.step()
        print("step", objective.item(), lr, mean, values, flush=True)


train(8)
train(9)
print("parameters", [p.tolist() for net in kept for p in net.parameters()])
