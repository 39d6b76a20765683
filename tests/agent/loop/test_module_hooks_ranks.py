"""Hooks on modules of models that several ranks share: DDP and FSDP, over gloo."""

from __future__ import annotations

import sys

import pytest
from rank_jobs import printed

JOB = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from looptap.testing import pair

torch.set_num_threads(1)
kind, watched = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(checkpoint(self.inner, self.first(x).relu(), use_reentrant=False))

torch.manual_seed(1)
bare = model = Model()
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(bare)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2,))
    for part in (bare.first, bare.inner, bare):
        fully_shard(part, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
agent, run = pair("ranks")
agent.expose(model=model)
asked, own = [], [len(module._forward_hooks) for module in (bare.inner, bare.last)]
torch.manual_seed(rank)
for step in range(6):
    if watched == "yes" and step == 1:
        query = "activations('inner').norm(), inputs('inner').norm(), grads_of('inner').norm(), "
        query += "activations('last', shape)"
        asked.append(run.stream(query, on="batch"))
    if asked and step == 5:
        asked[0].close()
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
    agent.emit("batch")
total = sum(p.to_local().double().sum() if hasattr(p, "to_local") else p.double().sum() for p in bare.parameters())
print("ended", total.item().hex())
if asked:
    rows = [tuple(row) for row in asked[0].values]
    assert len(rows) == 3 and not asked[0].error_count, (rows, asked[0].traceback)
    assert all(0 < number for row in rows for number in row[:3]), rows
    assert [row[3] for row in rows] == [(4, 1)] * 3, rows
    assert [len(module._forward_hooks) for module in (bare.inner, bare.last)] == own
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_model_that_ranks_share_trains_the_same_and_shows_each_rank_its_own(kind, tmp_path):
    bare, same = (printed(tmp_path, [sys.executable, "-c", JOB, kind, watched], 2) for watched in ("no", "yes"))
    assert bare == same
    assert len({text.splitlines()[0] for text in bare}) == 2  # each has batches of its own
