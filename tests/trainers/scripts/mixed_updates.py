"""Updates with torch's optimizer and without it, and attacks on inputs."""

import torch
from torch import nn

torch.manual_seed(0)
net_d, net_g = nn.Linear(4, 1), nn.Linear(2, 4)
optimizer = torch.optim.SGD(net_d.parameters(), lr=0.1)
with torch.device("meta"):  # to count operations
    counted = nn.Linear(4, 1)
    counted(torch.ones(1, 4)).sum().backward()
for step in range(12):
    delta = torch.zeros(8, 4, requires_grad=True)
    net_d.requires_grad_(False)
    for _ in range(3):
        attack = net_d(1 + delta).mean()
        attack.backward()
        delta.data += delta.grad.sign()
        delta.grad = None
    net_d.requires_grad_(True)
    optimizer.zero_grad()
    for _ in range(2):
        of_d = (net_d(torch.randn(8, 4)) ** 2).mean()
        of_d.backward()
    optimizer.step()
    print("step D", flush=True)
    net_g.zero_grad()
    of_g = (net_g(torch.randn(8, 2)) ** 2).mean()
    of_g.backward()
    with torch.no_grad():
        for p in net_g.parameters():
            p -= 0.1 * p.grad
    print("step G", of_g.item(), flush=True)
print("parameters", [p.tolist() for m in (net_d, net_g) for p in m.parameters()])
