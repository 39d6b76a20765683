"""An encoder and a decoder under one optimizer, whose batches are dicts."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 2), nn.Tanh())

    def forward(self, batch):
        batch["hidden"] = self.inner(batch["img"]).expand(8, 8, 2)  # the largest, which it was not called with
        return batch["hidden"][0]


front, decoder = Encoder(), nn.Linear(2, 4)
optimizer = torch.optim.SGD([*front.parameters(), *decoder.parameters()], lr=0.1)
for step in range(6):
    batch = {"index": torch.arange(8), "img": torch.randn(8, 4), "labels": torch.zeros(8)}
    loss = ((decoder(front(batch)) - batch["img"]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", loss.item(), flush=True)
print("parameters", [p.tolist() for m in (front, decoder) for p in m.parameters()])
