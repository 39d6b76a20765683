"""A function that begins its DataLoader again; batches at once or one ahead."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0


def train(way, steps=12):
    global step
    loader = DataLoader(data, batch_size=8, shuffle=True)
    batches = iter(loader)

    def fetch():
        nonlocal batches
        try:
            return next(batches)
        except StopIteration:
            batches = iter(loader)
            return next(batches)

    following = fetch() if way == "ahead" else None
    for count in range(1, steps + 1):
        if way == "ahead":
            (inputs, targets), following = following, fetch()
        else:
            inputs, targets = fetch()
        step += 1
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", loss.item())
        if count % 4 == 0:
            print("epoch", way, step)


train("ahead")
train("at_once")
train("ahead")
print("parameters", [p.tolist() for p in model.parameters()])
