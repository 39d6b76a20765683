"""Trains with `Prioritized` on several ranks, also from the states of others.

python prioritized_ranks_job.py FOLDER METHOD [resume]: two epochs; saves at the end, to FOLDER. Each rank prints JSON.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from looptap.training.instances import WithIndex
from looptap.training.prioritized import Prioritized
from looptap.training.prioritized.distributed import ReducedGradients

folder, method, resumes = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["resume"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(0)
targets = torch.randint(0, 2, (103,), generator=generator)
inputs = torch.randn(103, 4, generator=generator)
inputs[:70, 0] = 9.0 * (2 * targets[:70] - 1)
data = TensorDataset(inputs, targets)
torch.manual_seed(0)
network = torch.nn.Linear(4, 2)
prioritized = Prioritized(data, network, 8, method, k=0.1, r=0.1, epochs=5, switch="on")
start = 0
if resumes:
    states = [torch.load(path) for path in sorted(folder.glob("*.pt"))]
    network.load_state_dict(states[0]["model"])
    prioritized.load_state_dict(*(state["prioritized"] for state in states))
    start = prioritized.steps
known = int((prioritized.table.seen[prioritized.shard] > 0).sum())
model = torch.nn.parallel.DistributedDataParallel(network)
prioritized.reduced = reduced = ReducedGradients(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts = []
for _ in range(4 if method == "published" else 2):  # two passes without a step come first
    count = 0
    for indices, (x, y) in DataLoader(WithIndex(data), batch_sampler=prioritized):
        logits = model(x)
        losses = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        optimizer.zero_grad()
        prioritized.backward(indices, losses)
        optimizer.step()
        prioritized.observe(indices, logits=logits, targets=y)
        count += 1
    counts.append(count)
dist.barrier()  # all have read the states of those before
if rank == 0:
    for path in folder.glob("*.pt"):
        path.unlink()
dist.barrier()
torch.save({"model": network.state_dict(), "prioritized": prioritized.state_dict()}, folder / f"rank-{rank}.pt")
print(json.dumps({
    "counts": counts, "weights": network.weight.tolist(), "known": known, "shard": len(prioritized.shard),
    "note": prioritized.note, "seconds": reduced.seconds, "own": prioritized.communication_seconds,
    "steps": prioritized.steps, "start": start,
    "gbar": None if prioritized.average is None else [one.tolist() for one in prioritized.average.tensors],
    "loss": torch.nn.functional.cross_entropy(network(inputs), targets).item(),
}))  # fmt: skip
dist.destroy_process_group()
