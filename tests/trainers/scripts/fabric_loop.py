"""Lightning Fabric: accumulation of two batches, a validation after each epoch."""

import lightning_fabric
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader, validation = fabric.setup_dataloaders(DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))
for epoch in range(3):
    model.train()
    value = 0.0
    for place, (inputs, targets) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=place % 2 == 0):
            half = nn.functional.mse_loss(model(inputs), targets) / 2
            fabric.backward(half)
            value += half.item()
        if place % 2:
            optimizer.step()
            optimizer.zero_grad()
            print("step", value)
            value = 0.0
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.mse_loss(model(inputs), targets) for inputs, targets in validation)
    print("evaluation", loss.item())
print("parameters", [float(p.sum()) for p in model.parameters()])
