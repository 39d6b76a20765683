"""A small training on several ranks, started by a launcher.

python agreeing_job.py FOLDER STEPS: each rank sums its gradients over gloo, and writes what it has seen to
FOLDER/<rank>.json at the end: the losses, those of the same training without an agent, and the learning rate in use
after each event. With 0 steps it trains until it is stopped, and not without an agent.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import looptap

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=40))
rank, ranks = dist.get_rank(), dist.get_world_size()
settings, saved, rates = {"lr": 0.05}, [], []


def save():
    """Save a checkpoint: made on all ranks at one event, it may wait for the others."""
    total = torch.ones(1)
    dist.all_reduce(total)
    saved.append(total.item())
    return total.item()


def fail():
    """Fail on one rank only."""
    if rank == 1:
        raise OSError("no space left")
    return "well"


def train(agent):
    """Return the losses of all steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    torch.manual_seed(1 + rank)
    losses = []
    while (agent is None or not agent.stop_requested) and (len(losses) < steps or not steps):
        x = torch.randn(16, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p -= settings["lr"] / ranks * p.grad
        losses.append(loss.item())
        if agent is not None:
            time.sleep(float(os.environ.get("PAUSE", 0.0)))
            agent.emit("batch", step=len(losses), loss=loss, model=model)
            rates.append(settings["lr"])
            if len(losses) % 50 == 0:
                agent.emit("epoch", epoch=len(losses) // 50)
    return losses


bare = train(None) if steps else []
limits = looptap.Limits(agreement=float(os.environ.get("PATIENCE", 5.0)))
with looptap.Agent("agreeing", may_pause=300.0, limits=limits) as agent:
    agent.control("lr", lambda: settings["lr"], lambda lr: settings.update(lr=lr), minimum=0, maximum=1)
    agent.checkpoint(save)
    agent.trigger("fail", fail)
    losses = train(agent)
reported = {"losses": losses, "bare": bare, "rates": rates, "saved": saved, "events": len(losses)}
(folder / f"{rank}.json").write_text(json.dumps(reported))
dist.barrier()
