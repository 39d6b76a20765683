"""Two optimizers with one GradScaler, which leaves out the step of one of them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in model]
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(8):
    x = torch.randn(8, 4)
    losses_of_both = [(one(x) ** 2).mean() for one in model]
    if step in (4, 6):
        losses_of_both[1] = losses_of_both[1] * float("inf")
    for optimizer, objective in zip(optimizers, losses_of_both, strict=True):
        optimizer.zero_grad()
        scaler.scale(objective).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    print("step", sum(losses_of_both).item(), step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
