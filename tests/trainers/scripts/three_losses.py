"""Three optimizers that step on the same gradients and zero theirs at once."""

import torch
from torch import nn

torch.manual_seed(0)
trunk, first, second, third = (nn.Linear(4, 4), *(nn.Linear(4, 1) for _ in range(3)))
model = nn.ModuleList([trunk, first, second, third])
optimizer_a = torch.optim.SGD([*trunk.parameters(), *first.parameters()], lr=0.01)
optimizer_b = torch.optim.SGD([*trunk.parameters(), *second.parameters()], lr=0.01)
optimizer_c = torch.optim.SGD([{"params": []}, {"params": third.parameters()}], lr=0.01)


def passes(head, features, extra):
    objective = (head(features) ** 2).mean() + extra
    objective.backward()
    return objective.item()


for step in range(8):
    x = torch.randn(8, 4)
    of_trunk = passes(first, trunk(x), 0)
    detached = trunk(x).detach()
    of_b = passes(second, detached, 1)
    of_c = passes(third, detached, 2)
    if step % 3 == 2:
        optimizer_c.zero_grad()
        dropped, of_c = of_c, passes(third, detached, 3)
    optimizer_a.step()
    optimizer_a.zero_grad()
    optimizer_b.step()
    optimizer_b.zero_grad()
    optimizer_c.step()
    optimizer_c.zero_grad()
    total = of_trunk + of_b + of_c + (dropped if step % 3 == 2 else 0)
    print("step", total, of_trunk, of_trunk + of_b, of_c, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
