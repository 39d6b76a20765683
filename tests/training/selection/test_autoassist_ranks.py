"""An assistant beside the loop on two ranks: processes that train together."""

from __future__ import annotations

import json
import sys

import psutil
import pytest
from rank_jobs import printed
from waiting import soon

JOB = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from looptap.training.selection import Selection, WithIndex

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, mode = dist.get_rank(), sys.argv[1]
generator = torch.Generator().manual_seed(0)
x = torch.randn(403, 6, generator=generator)
y = torch.where(x[:, 1] > 0.5, torch.randint(0, 2, (403,), generator=generator), (x[:, 0] > 0).long())
data = TensorDataset(x, y)  # those with x[1] > 0.5 cannot be learned
selection = Selection(data, 8, "autoassist", features=x, asynchronous=mode)
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
result = {"made": selection.steps - selection.beside.starved, "note": selection.note, "pid": selection.beside.pid}
if mode == "process" and rank == 1:
    os.kill(selection.beside.pid, signal.SIGKILL)
    train_until(lambda: bool(selection.beside.ended))
    taken, walked = selection.taken, selection.walk.walked
else:
    train_until(lambda: mode == "thread" or rank == 0)
    taken, walked = selection.taken, selection.walk.walked
again = len(counts) + 1
train_until(lambda: len(counts) >= again)
result |= {"ended": selection.note, "waiting": selection.beside.waiting}
result |= {"plain": selection.walk.walked - walked == selection.taken - taken}
selection.method = "uniform"  # an easy instance may have been skipped each time
train_until(lambda: len(counts) > again)
result |= {"counts": counts, "seen": sorted(seen)}
print(json.dumps(result | {"weights": model.module.weight.detach().tolist()}))
dist.barrier()
selection.close()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_each_rank_selects_by_its_own_assistant_and_all_take_equal_steps(mode, tmp_path):
    """In processes the assistant of the second rank is killed."""
    texts = printed(tmp_path, [sys.executable, "-c", JOB, mode], 2)
    first, second = (json.loads(text.splitlines()[-1]) for text in texts)
    assert first["counts"] == second["counts"]
    assert first["weights"] == second["weights"]
    assert set(first["seen"]) & set(second["seen"]) <= {0}  # the one that stands in for what is missing
    assert set(first["seen"]) | set(second["seen"]) == set(range(403))
    assert min(first["made"], second["made"]) > 0
    assert first["note"] == second["note"] == first["ended"] == ""
    assert (first["pid"] == second["pid"]) == (mode == "thread")
    if mode == "process":
        assert "is gone): sampling is plain until you set the method again." in second["ended"]
        assert second["plain"]
        soon(lambda: not psutil.pid_exists(first["pid"]) and not psutil.pid_exists(second["pid"]))
    else:
        assert second["ended"] == ""
