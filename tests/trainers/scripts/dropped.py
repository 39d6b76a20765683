"""Gradients that a script drops before the step, in two ways."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wrapper = torch.optim.SGD(model.parameters(), lr=0.1)  # as SAM is one


def passes(data):
    objective = (model(data) ** 2).mean()
    objective.backward()
    return objective.item()


for step in range(8):
    batch = torch.randn(8, 4)
    if step % 4 == 3:
        batch[0] = float("nan")
    optimizer.zero_grad()
    value = passes(batch) + passes(batch)
    if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        print("dropped", step)
        continue
    if step % 2:
        wrapper.zero_grad(set_to_none=step == 1)
        value = passes(batch[:4])
    optimizer.step()
    print("step", value, step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
