"""Trains on several ranks inside a `RankCheckpoint`, until it is killed or fails.

python dying_job.py FOLDER [fail]: each rank writes FOLDER/reached-<rank> after 12 steps. With "fail" rank 1 raises
ValueError then. TIMEOUT_SECONDS is that of the process group.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from looptap.training.prioritized.distributed.rank_checkpoint import RankCheckpoint

folder, fails = Path(sys.argv[1]), sys.argv[2:] == ["fail"]
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT_SECONDS", "600"))))
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(1 + rank)


def state():
    """Return what a rank keeps."""
    scores = {"ids": torch.arange(rank, 10, dist.get_world_size()), "score": torch.full((1,), float(rank))}
    return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "table": scores}


with RankCheckpoint(folder, state, every=5) as checkpoint:
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        checkpoint.stepped()
        if checkpoint.step == 12:
            if fails and rank == 1:
                raise ValueError("no such class: 7")
            (folder / f"reached-{rank}").touch()
