"""Losses that ``backward`` gets a gradient with: a critic ascends on one."""

import torch
from torch import autograd, nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
one, mone = torch.tensor(1.0), torch.tensor(-1.0)
for _ in range(4):
    critic.zero_grad()
    real, fake = torch.randn(8, 2) + 1, torch.randn(8, 2)
    on_real = critic(real).mean()
    on_real.backward(gradient=mone)
    on_fake = critic(fake).mean()
    on_fake.backward(one)
    between = ((real + fake) / 2).requires_grad_(True)
    slope = autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    autograd.backward([penalty, critic(real).mean() * 0], [torch.tensor(10.0), None])
    optimizer.step()
    print("step", (on_fake - on_real + 10 * penalty).item(), flush=True)
print("parameters", [p.tolist() for p in critic.parameters()])
