"""A compiled step: forward, backward and the optimizer in one compiled function."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(x):
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@torch.compile(fullgraph=True, backend="eager")
def evaluate(x):
    model.eval()
    return model(x)


compiled = torch.compile(train_step, backend="eager")
for step in range(5):
    value = compiled(torch.ones(2, 4))
    print("step", value.item(), step, flush=True)
print("evaluated", evaluate(torch.ones(1, 4)).tolist())
print("parameters", [p.tolist() for p in model.parameters()])
