"""An assistant beside the loop on each of two ranks that train together."""

from __future__ import annotations

import json
import sys

import pytest
from rank_jobs import printed

JOB = """
import json, time
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from looptap.training.selection import Selection, WithIndex

torch.set_num_threads(1)
dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(0)
x = torch.randn(403, 6, generator=generator)
y = torch.where(x[:, 1] > 0.5, torch.randint(0, 2, (403,), generator=generator), (x[:, 0] > 0).long())
data = TensorDataset(x, y)  # those with x[1] > 0.5 cannot be learned
selection = Selection(data, 8, "autoassist", features=x, asynchronous=True)
selection.learning_rate = 1.0
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counts, seen = [], set()


def on_all_ranks(condition):
    value = torch.tensor(float(condition))
    dist.all_reduce(value, dist.ReduceOp.MIN)
    return bool(value)


def train_until(condition):
    while not on_all_ranks(condition()):
        count = 0
        for ids, (inputs, targets) in DataLoader(WithIndex(data), batch_sampler=selection):
            logits = model(inputs)
            loss = selection.loss(ids, logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            selection.observe(ids, logits=logits, targets=targets)
            count += 1
            seen.update(ids.tolist())
            time.sleep(0.001)  # an assistant in a thread needs the interpreter
        counts.append(count)


train_until(lambda: selection.skipped > 500 and selection.gamma > 0.5)
result = {"made": selection.steps - selection.beside.starved, "ended": selection.beside.ended}
selection.method = "uniform"  # an easy instance may have been skipped each time
again = len(counts) + 1
train_until(lambda: len(counts) > again)
result |= {"counts": counts, "seen": sorted(seen), "note": selection.note}
print(json.dumps(result | {"weights": model.module.weight.detach().tolist()}))
dist.barrier()
selection.close()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
def test_each_rank_selects_by_its_own_assistant_and_all_take_equal_steps(tmp_path):
    texts = printed(tmp_path, [sys.executable, "-c", JOB], 2)
    first, second = (json.loads(text.splitlines()[-1]) for text in texts)
    assert first["counts"] == second["counts"]
    assert first["weights"] == second["weights"]
    assert set(first["seen"]) & set(second["seen"]) <= {0}  # the one that stands in for what is missing
    assert set(first["seen"]) | set(second["seen"]) == set(range(403))
    assert min(first["made"], second["made"]) > 0
    assert first["note"] == second["note"] == first["ended"] == second["ended"] == ""
