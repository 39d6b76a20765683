"""A model that is called by its methods, and a variable of another function."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])

    def values(self, given):
        for block in self.blocks:
            given = block(given)
        return given


def test():
    test_loss = (model.values(torch.ones(2, 4)) ** 2).mean().item()
    return test_loss


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    loss = (model.values(torch.randn(8, 4)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", loss.item(), flush=True)
    test()
print("parameters", [p.tolist() for p in model.parameters()])
