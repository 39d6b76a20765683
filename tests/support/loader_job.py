"""A job with loader workers, hooks of saved tensors, and modes of its own."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from watched_loop import process, state

EPOCHS, SIZE = 2, 24
EVENTS = "forward", "mode", "batch", "epoch"


class Pictures(torch.utils.data.Dataset):
    """Augmented by the random numbers of a worker; it counts reads in shared memory."""

    def __init__(self):
        self.pictures = torch.arange(SIZE * 16.0).reshape(SIZE, 1, 4, 4).sin()
        self.reads = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.rng = np.random.default_rng(4)

    def __len__(self):
        return SIZE

    def augmented(self, picture):
        noise = torch.rand(1).item() + random.random() + np.random.rand() + self.rng.normal()
        return picture.flip(-1) + noise if torch.rand(1) < 0.5 else picture * noise

    def __getitem__(self, place):
        self.reads += 1
        return self.augmented(self.pictures[place]), place % 3


class Seen(TorchDispatchMode):
    """A dispatch mode that lists each operation, and draws at each."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.job.operations.append((str(func), self.job.dice.random()))
        return func(*args, **(kwargs or {}))


class Noted(TorchFunctionMode):
    """A function mode that counts what is called on tensors."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        self.job.calls[name] = self.job.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


class Job:
    """What the loop owns."""

    def __init__(self):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.dice, self.operations, self.calls, self.saved = random.Random(6), [], {}, []
        self.dataset = Pictures()
        self.loader = torch.utils.data.DataLoader(
            self.dataset, 6, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(9),
        )  # fmt: skip
        self.batches = None

    def pack(self, tensor):
        self.saved.append((tuple(tensor.shape), self.dice.random()))
        return tensor.clone()

    def unpack(self, tensor):
        self.saved.append(self.dice.random())
        return tensor

    def first(self):
        return next(iter(self.loader))[0]

    def following(self):
        return next(self.batches)[0].sum()


ASKED = (
    "model(x).mean()", "probe(model, x).std()", "probe(model, x, train=True).std()", "out.softmax(-1).max(1).values",
    "saliency(model, x, y).norm()", "probe(model, x, gradient=True).sum()", "x", "loss", "(x, out, step)",
    "mean(e.out.std() for e in events)", "max(e.loss for e in events)", "last(e.x for e in events)", "loss.item() + 1",
    "len(job.loader)", "next(iter(job.loader))[0].sum()", "next(iter(loader))", "job.first().sum()", "job.following()",
    "next(job.batches)[0].mean()", "sum(1 for _ in loader)", "list(loader.sampler)[0]",
    "list(job.loader.batch_sampler)", "job.dataset[0][0].sum()", "job.dataset.augmented(x).sum()",
    "job.dataset.reads.item()", "loader.dataset.rng.normal()",
    "torch.utils.data.get_worker_info() is None", "loader.num_workers", "job.batches._reset(loader)",
    "len(job.batches._workers)", "job.batches._workers[0].is_alive()", "job.batches._shutdown_workers() or 1",
    "job.batches._index_queues[0].put((9, [0])) or 1", "job.batches._data_queue.get()", "job.batches._try_put_index()",
    "job.batches._workers[0].terminate() or 1", "loader._iterator._rcvd_idx", "loader._get_iterator()",
    "torch.utils.data.DataLoader(job.dataset, 4)", "next(iter(torch.utils.data.DataLoader(job.dataset, 4)))[0].sum()",
    "torch.rand(1, generator=loader.generator).item()", "loader.generator.get_state().sum()", "job.dice.random()",
    "len(job.operations)", "job.operations[-1]", "job.calls['linear']", "job.operations.clear() or 1", "len(job.saved)",
    "job.pack(x).sum()", "job.unpack(x).sum()", "torch.autograd.grad(loss, x)", "loss.backward() or 1",
    "torch.autograd.graph.saved_tensors_hooks(print, print).__enter__() or 1", "(x * 2).square().mean()",
    "sum(p.norm() for p in model.parameters())", "layer_norms(model, 'weight')", "norm(x)", "lr(optimizer)",
    "optimizer.step() or 1", "x.add_(1).sum()", "torch.rand(3).sum()", "nn_of.dropout(x).sum()", "np.asarray(x).mean()",
    "x.numpy().sum()", "job.dataset.pictures[0].sum()", "job.dataset.reads.add_(1).item()", "thumbnail(x[:1])",
    "batch_topk(2, by=out[:, 0], x=x)", "confusion(y, out, 3)", "isnan(x)", "histogram(e.x for e in events)",
)  # fmt: skip


def worked(agent=None, begin=lambda: None):
    """Return the state of the job at its end."""
    job = Job()
    if agent is not None:
        agent.expose(job=job, model=job.model, optimizer=job.optimizer, loader=job.loader, nn_of=nn.functional)
    begin()
    losses = []
    for epoch in range(EPOCHS):
        job.batches = iter(job.loader)
        for x, y in job.batches:
            seen = {"step": len(losses), "epoch": epoch, "x": x, "y": y}
            with torch.autograd.graph.saved_tensors_hooks(job.pack, job.unpack):
                out = job.model(x)
                loss = nn.functional.cross_entropy(out, y)
                seen |= {"out": out, "loss": loss}
                if agent is not None:
                    agent.emit("forward", **seen)
            job.optimizer.zero_grad()
            with Noted(job) if len(losses) % 2 else Seen(job):
                loss.backward()
                if agent is not None:
                    agent.emit("mode", **seen)
                job.optimizer.step()
            if agent is not None:
                agent.emit("batch", **seen)
            losses.append((loss.item(), x.tolist(), random.random(), np.random.rand()))
        if agent is not None:
            with Noted(job), Seen(job):  # where windows end
                agent.log(last=loss, picture=x)
                agent.emit("epoch", **seen)
    reads = job.dataset.reads.item()
    job.batches._shutdown_workers()
    held = {"model": job.model, "optimizer": job.optimizer, "generator": job.loader.generator, "dice": job.dice}
    return losses, reads, job.operations, job.calls, job.saved, state(held), process()
