"""Training that ends in the way its argument names."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]


class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if how == "data" and index == 6:
            raise ValueError(f"no item {index}")
        return torch.ones(2) * index


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no gradient")


torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(DataLoader(Data(), batch_size=2)):
    optimizer.zero_grad()
    loss = model(x).sum()
    if step == 2:
        if how == "forward":
            model(torch.ones(5))
        elif how == "backward":
            loss = Wrong.apply(loss)
        elif how == "backward twice":
            loss.backward()
        elif how == "gone graph":
            torch.ones(1).backward()
        elif how in ("SIGTERM", "SIGINT", "SIGKILL"):
            print("signal", flush=True)
            os.kill(os.getpid(), getattr(signal, how))
        elif how == "exit":
            sys.exit(7)
        elif how == "text":
            sys.exit("done with it")
        elif how == "_exit":
            os._exit(9)
        elif how == "closure":
            optimizer.step(lambda: 1 / 0)
    loss.backward()
    if step == 2 and how == "step":
        optimizer.param_groups[0]["params"].append(None)
    optimizer.step()
    print("step", loss.item(), flush=True)
print("parameters", [p.tolist() for p in model.parameters()])
