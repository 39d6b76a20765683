"""Evaluations with a loss of their own, with another name, and with none."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(16, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.no_grad()
def evaluate():
    model.eval()
    found = 1e5 * (model(x) ** 2).mean().item()
    model.train()
    return found


for step in range(9):
    batch = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (model(batch) ** 2).mean()
    loss.backward()
    optimizer.step()
    print("step", loss.item(), flush=True)
    if step % 3 == 0:
        val_error = evaluate()
        print("error", val_error, flush=True)
    elif step % 3 == 1:
        evaluate()
    else:
        model.eval()
        for (test_batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=8):
            with torch.no_grad():
                loss = 1e5 * (model(test_batch) ** 2).mean()
        print("loss", loss.item(), flush=True)
        model.train()
model.eval()
loss = 1e5 * (model(x) ** 2).mean()
print("loss", loss.item(), flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
