"""A script that saves every third update, dies at one, and resumes where it was."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=4)
path, dies_at = os.environ["SAVED"], int(os.environ.get("DIES_AT", 0))
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    step = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
first = step
for epoch in range(step // 5, 4):
    for number, (x, y) in enumerate(loader):
        if epoch * 10 + number < 2 * first:
            continue
        if epoch * 10 + number == 2 * first and number:
            torch.set_rng_state(saved["random"])  # the loader has drawn from it again
        loss = ((model(x) - y) ** 2).mean() / 2
        loss.backward()
        if number % 2:
            if step + 1 == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 3 == 0:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({"step": step, "random": torch.get_rng_state(), **parts}, path)
print("parameters", [p.tolist() for p in model.parameters()])
