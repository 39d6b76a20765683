"""An optimizer for each parameter, which steps while backward runs."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for step in range(6):
    loss = (model(torch.randn(8, 4)) ** 2).mean()
    loss.backward()
    print("step", loss.item(), step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
