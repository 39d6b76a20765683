"""A loop that waits at its third step for the file of its first argument."""

import os
import sys
import time

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(60):
        while step == 3 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        images, labels = torch.randn(16, 8), torch.randint(0, 2, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print("step", loss.item(), step, flush=True)
    print("parameters", [p.tolist() for p in model.parameters()])


main()
