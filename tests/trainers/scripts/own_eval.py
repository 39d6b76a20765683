"""A model with its own `eval`, and evaluations that fetch with gradients on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Sequential):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def eval(self):
        return self.train(False)


torch.manual_seed(0)
data = torch.randn(24, 4)
loader, test_loader = DataLoader(TensorDataset(data), batch_size=8), DataLoader(TensorDataset(data[:8]), batch_size=4)
model = Model(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    for (batch,) in loader:
        optimizer.zero_grad()
        objective = (model(batch) ** 2).mean()
        objective.backward()
        optimizer.step()
        print("step", objective.item(), epoch, flush=True)
    model.eval()
    total = 0.0
    for (batch,) in test_loader:
        with torch.no_grad():
            total += (model(batch) ** 2).sum().item()
    print("test", total, flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
