"""What the script deletes is gone at once; its dict of variables stays."""

import weakref

import torch
from torch import nn

torch.manual_seed(0)


def main():
    given = locals()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        free(model, optimizer, step)
    print("parameters", [p.tolist() for p in model.parameters()])
    print("given", sorted(given))


def free(model, optimizer, step):
    x = torch.randn(8, 4)
    hidden = model(x)
    loss = (hidden**2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", loss.item(), step, flush=True)
    gone = [weakref.ref(one) for one in (x, hidden, loss)]
    del x, hidden, loss
    print("gone", [one() is None for one in gone])


main()
