"""Trains a linear model over a parameter server, on several ranks.

python async_job.py [KIND]: rank 0 serves, and each rank prints a JSON object at the end. "slow": the last worker takes
a while for each step. "worker dies": the first worker is killed after 20 steps; "workers die": all are. "server dies":
the server is killed after 40 updates; "server fails": its optimizer raises.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from looptap.training.prioritized.distributed.async_worker import AsyncWorker
from looptap.training.prioritized.distributed.parameter_server import ParameterServer

STEPS = 150
kind = (sys.argv[1:] or [""])[0]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # the workers get the server's parameters
model = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 1, bias=False))
target = torch.arange(6.0)


def die():
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def serve():
    """Serve; return what was seen."""
    apart = [0]

    def look(server):
        if server.lost == {}:
            apart.append(max(server.steps.values()) - min(server.steps.values()))
        if server.updates == 40 and kind == "server dies":
            die()
        if server.updates == 40 and kind == "server fails":
            raise OSError("no space left")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    server = ParameterServer(model, optimizer, staleness=2, timeout=200, on_update=look)
    server.serve()
    return {
        "updates": server.updates, "steps": list(server.steps.values()), "lost": list(server.lost), "note": server.note,
        "stalest": max(server.staleness_counts), "mean": server.mean_staleness, "waits": server.waits,
        "counted": sum(server.staleness_counts.values()), "apart": max(apart),
        "weights": model[1].weight.detach().flatten().tolist(), "running": model[0].running_mean.tolist(),
    }  # fmt: skip


def work():
    """Train; return what was seen."""
    generator = torch.Generator().manual_seed(rank)
    losses, descents = [], torch.zeros(6)
    with AsyncWorker(model) as worker:
        first = model[1].weight.detach().flatten().clone()
        while worker.steps < STEPS:
            x = torch.randn(64, 6, generator=generator) + 3
            loss = (model(x)[:, 0] - (x - 3) @ target).square().mean()
            model.zero_grad()
            loss.backward()
            worker.step()
            losses.append(loss.item())
            descents += worker.descent[-1].flatten()
            if kind == "slow" and rank == world - 1:
                time.sleep(0.005)
            if worker.steps == 20 and (kind == "workers die" or (kind == "worker dies" and rank == 1)):
                die()
        moved = first - model[1].weight.detach().flatten()
    return {"losses": losses, "apart": float((moved - descents).abs().max()), "seconds": worker.seconds}


print(json.dumps(serve() if rank == 0 else work()), flush=True)
