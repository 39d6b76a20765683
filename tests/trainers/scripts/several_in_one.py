"""Two optimizers on the same gradients, one of them of one's own make."""

import torch
from torch import nn


class Signs(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = [Signs(model[0].parameters()), torch.optim.AdamW(model[2].parameters())]


def forward_backward(data):
    hidden_loss = (model(data) ** 2).mean()
    hidden_loss.backward()
    return hidden_loss.item()


for step in range(6):
    value = forward_backward(torch.randn(8, 4))
    for one in optimizers:
        one.step()
    for one in optimizers:
        one.zero_grad()
    print("step", value, step, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
