"""Mixed precision on the CPU: a GradScaler that leaves out the steps with a NaN."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    x = torch.randn(8, 4)
    if step in (0, 3):
        x = x * float("nan")
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(x).float() ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("skipped" if step in (0, 3) else "step", loss.item(), step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
