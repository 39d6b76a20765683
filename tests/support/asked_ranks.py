"""One rank of a DDP job that is asked questions of its own: asked_ranks.py TIMES."""

from __future__ import annotations

import json
import random
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from asking import asked, refusals
from torch import nn
from watched_loop import process, state

EVENTS = "forward", "backward", "batch", "epoch"
EPOCHS, SIZE = 2, 24
QUESTIONS_PER_JOB = 6


class Synced(nn.Module):
    """A layer that subtracts the mean of all ranks, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return x - mean / dist.get_world_size()


class Job:
    """What a rank owns."""

    def __init__(self):
        rank = dist.get_rank()
        torch.manual_seed(5)
        random.seed(5)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.model, self.synced = nn.parallel.DistributedDataParallel(net), Synced()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        torch.manual_seed(50 + rank)  # dropout and noise of each rank's own
        data = torch.utils.data.TensorDataset(torch.arange(SIZE * 4.0).reshape(SIZE, 4).sin(), torch.arange(SIZE) % 3)
        self.sampler = torch.utils.data.distributed.DistributedSampler(data, seed=3)
        self.loader = torch.utils.data.DataLoader(data, 3, sampler=self.sampler)
        self.group, self.handles, self.store = dist.group.WORLD, [], dist.distributed_c10d._get_default_store()

    def averaged(self, value):
        dist.all_reduce(value)
        return value / dist.get_world_size()

    def gathered(self, value):
        found = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(found, value)
        return torch.cat(found)

    def meeting(self):
        self.handles.append(dist.barrier(async_op=True))
        return len(self.handles)


ASKED = (
    "model(x).mean()", "model.module(x).mean()", "probe(model, x).std()", "probe(model, x, train=True).std()",
    "probe(model, x, gradient=True).sum()", "saliency(model, x, y).norm()", "copy_of(model)(x).sum()",
    "model.eval()(x).sum()", "model.train(False) and 1", "copy_of(model.module)(x).sum()", "synced(x).sum()",
    "probe(synced, x).sum()", "probe(synced, x, train=True).sum()", "synced.calls.item()", "model.forward(x).mean()",
    "job.averaged(loss)", "job.averaged(loss.detach().clone())", "job.gathered(out).mean()", "job.meeting()",
    "job.averaged(x.sum()).item()", "len(job.handles)", "job.group.size()", "job.group.rank()",
    "job.group.barrier().wait()", "job.group.allreduce([x.clone()]).wait()", "job.store.add('asked', 1)",
    "job.store.set('asked', 'x')", "job.store.wait(['never'])", "dist.get_rank()", "dist.get_world_size()",
    "dist.all_reduce(x) or 1", "dist.all_reduce(x.clone()) or 1", "dist.barrier() or 1", "dist.broadcast(x, 0) or 1",
    "dist.reduce(x.clone(), 0) or 1", "dist.all_gather_object([None, None], step) or 1", "dist.send(x, 0) or 1",
    "dist.recv(x.clone(), 0)", "dist.monitored_barrier() or 1", "dist.new_group([0, 1])", "dist.is_initialized()",
    "dist.destroy_process_group() or 1", "torch.ops._c10d_functional.all_reduce(x, 'sum', '0').sum()",
    "torch.ops.c10d.barrier", "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model.module)(x).sum()",
    "torch.nn.SyncBatchNorm(4)(x).sum()", "model.no_sync().__enter__() or 1", "model.require_backward_grad_sync",
    "model._sync_buffers() or 1", "model._sync_module_states() or 1", "model.reducer._get_zeros_like_grad_buckets()",
    "model.reducer._rebuild_buckets()", "model.reducer.prepare_for_backward([]) or 1", "model._get_ddp_logging_data()",
    "model.register_comm_hook(None, print) or 1", "model._pre_forward(x)", "model._post_forward(out)", "model.join()",
    "loss.backward() or 1", "torch.autograd.grad(loss, model.module[0].weight)[0].norm()", "model.zero_grad() or 1",
    "model(x).sum().backward() or 1", "optimizer.step() or 1", "optimizer.state_dict()['param_groups'][0]['lr']",
    "sum(p.grad.norm() for p in model.parameters() if p.grad is not None)", "layer_norms(model)",
    "layer_norms(model, 'weight')", "model.module[1].running_mean.norm()", "model.state_dict()['module.1.running_var']",
    "model.module[0].weight.data.zero_().sum()", "model.module[1].reset_running_stats() or 1", "lr(optimizer)",
    "list(job.sampler)[:2]", "job.sampler.set_epoch(3) or 1", "next(iter(job.loader))[0].sum()", "len(job.loader)",
    "torch.rand(3).sum()", "torch.manual_seed(1).initial_seed()", "torch.nn.functional.dropout(x).sum()",
    "x.add_(1).sum()", "out.softmax(-1).max(1).values", "x", "loss", "(x, out, step)", "rank", "loss.item() * 2",
    "mean(e.out.std() for e in events)", "max(e.model(e.x).sum() for e in events)", "last(e.x for e in events)",
    "mean(e.job.averaged(e.x).sum() for e in events)", "torch.nn.functional.cross_entropy(out, y)",
)  # fmt: skip


def worked(agent=None, begin=lambda: None):
    """Return the state of the job at its end."""
    job = Job()
    emit = (lambda event, **seen: None) if agent is None else agent.emit
    if agent is not None:
        own = {"job": job, "model": job.model, "synced": job.synced, "optimizer": job.optimizer, "dist": dist}
        agent.expose(**own, copy_of=__import__("copy").deepcopy)
    begin()
    losses = []
    for epoch in range(EPOCHS):
        job.sampler.set_epoch(epoch)
        for x, y in job.loader:
            x = job.synced(x + 0.1 * torch.rand(1))
            out = job.model(x)
            loss = nn.functional.cross_entropy(out, y)
            seen = {"step": len(losses), "x": x, "y": y, "out": out, "loss": loss}
            emit("forward", **seen)
            loss.backward()
            emit("backward", **seen)
            job.optimizer.step()
            job.optimizer.zero_grad()
            mean = job.averaged(loss.detach().clone())
            emit("batch", **seen)
            losses.append((loss.item(), mean.item(), x.tolist(), random.random()))
        emit("epoch", **seen)
    held = {"model": job.model.module, "synced": job.synced, "optimizer": job.optimizer}
    logged = {name: one for name, one in job.model._get_ddp_logging_data().items() if "time" not in name}
    return losses, state(held), job.model.training, len(job.handles), str(sorted(logged.items())), process()


def main(times):
    """Ask, and print how many questions were refused, or what changed the job."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    dice, refused, changed = random.Random(100 * times + dist.get_rank()), 0, []
    bare = worked()
    for _ in range(0, times, QUESTIONS_PER_JOB):
        questions = [(dice.choice(EVENTS), dice.choice(ASKED)) for _ in range(QUESTIONS_PER_JOB)]
        became, said = asked(worked, questions)
        changed += [] if became == bare else [questions]
        refused += len(refusals(said))
    print(json.dumps({"refused": refused, "changed": changed}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
