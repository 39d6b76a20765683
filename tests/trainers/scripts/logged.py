"""A loop that logs to TensorBoard and a progress bar.

It waits at its third step for the file of its first argument.
"""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter(sys.argv[2])
writer.add_text("note", "before the first step")
with tqdm(range(20), file=sys.stdout, disable=None, mininterval=0, ncols=60, bar_format="{n_fmt}{postfix}") as bar:
    for step in bar:
        while step == 3 and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        optimizer.step()
        writer.add_scalar("train/loss", loss, step)
        writer.add_scalars("rates", {"a": 0.1 * step, "b": torch.tensor(step)}, step)
        writer.add_histogram("weights", model.weight, step)
        bar.set_postfix(shown=f"{loss.item():.4f}")
        print("step", loss.item(), flush=True)
writer.add_hparams({"lr": 0.1}, {"hparam/loss": loss.item()}, run_name="hparams")
writer.close()
print("parameters", [p.tolist() for p in model.parameters()])
