"""Two ranks with DistributedDataParallel; each writes a file of its losses."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lines = []
    for step in range(30):
        while step == 3 and not os.path.exists(f"{sys.argv[1]}/go"):
            time.sleep(0.01)
        inputs = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = (model(inputs) ** 2).mean()
        loss.backward()
        optimizer.step()
        lines.append(f"step {loss.item()} {step}")
    lines.append(f"parameters {[p.tolist() for p in model.parameters()]}")
    with open(f"{sys.argv[1]}/rank{rank}", "w") as file:
        file.write("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
