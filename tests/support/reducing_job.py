"""Compares plain DDP with DDP from whose buckets the gradients are taken.

python reducing_job.py: run under a launcher's environment; rank 0 prints a JSON object at the end: for each case,
whether the gradients are those of plain DDP to the bit, and how far what was taken is from them.
"""

import json
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients

STEPS = 3
torch.set_num_threads(1)
warnings.filterwarnings("ignore", ".*(was not used|find_unused_parameters|Grad strides).*")
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Branched(nn.Module):
    """Layers of which one is used by some ranks only, and one by none."""

    def __init__(self):
        super().__init__()
        self.first, self.some, self.never = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(self.some(x) if rank == 0 else x)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def frozen():
    model = mlp()
    model[2].requires_grad_(False)
    return model


def convolution():
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3)
    return nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Upsample((4, 4)), *layers).to(memory_format=torch.channels_last)


def sparse():
    return nn.Sequential(Ids(), nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(32, 3))


class Ids(nn.Module):
    """Numbers as indices."""

    def forward(self, x):
        return (x.abs() * 7).long() % 20


CASES = {
    "plain": (mlp, {}, {}),
    "many buckets": (mlp, {"bucket_cap_mb": 0.0003}, {}),
    "views": (mlp, {"gradient_as_bucket_view": True}, {}),
    "views kept": (mlp, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0003}, {"to_none": False}),
    "accumulated": (mlp, {}, {"parts": 3}),
    "accumulated views": (mlp, {"gradient_as_bucket_view": True}, {"parts": 3, "to_none": False}),
    "accumulated in sync": (mlp, {}, {"parts": 2, "sync": True}),
    "unused": (Branched, {"find_unused_parameters": True}, {}),
    "unused views": (
        Branched, {"find_unused_parameters": True, "gradient_as_bucket_view": True}, {"to_none": False},
    ),
    "static": (mlp, {"static_graph": True, "bucket_cap_mb": 0.0003}, {}),
    "frozen": (frozen, {}, {}),
    "channels last": (convolution, {}, {}),
    "bfloat16": (lambda: mlp().bfloat16(), {}, {"dtype": torch.bfloat16}),
    "sparse": (sparse, {}, {}),
    "fp16": (mlp, {}, {"hook": fp16_compress_hook}),
    "powerSGD": (mlp, {}, {"hook": powerSGD_hook, "low_rank": True}),
}  # fmt: skip


def trained(case, ours):
    """Return the gradients of each step, and the distances of what was taken."""
    make, options, how = CASES[case]
    torch.manual_seed(0)
    model = DistributedDataParallel(make(), **options)
    hook, state, taking = how.get("hook"), None, None
    if how.get("low_rank"):
        state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    if ours:
        taking = ReducedGradients(model, hook, state)
        assert taking.taken() is None
    elif hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, parts = torch.Generator().manual_seed(1 + rank), how.get("parts", 1)
    found, apart = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=how.get("to_none", True))
        for part in range(parts):
            x = torch.randn(4, 8, generator=generator).to(how.get("dtype", torch.float32))
            model.require_backward_grad_sync = how.get("sync", False) or part == parts - 1  # as no_sync() does
            loss = nn.functional.cross_entropy(model(x), torch.arange(4) % 3)
            loss.backward()
        gradients = [None if one.grad is None else one.grad.to_dense().clone() for one in model.parameters()]
        found.append(gradients)
        if taking is not None:
            taken = taking.taken()
            assert taking.taken() is None
            apart.append(max(map(distance, taken, gradients)))
        optimizer.step()
    if taking is not None:
        assert taking.note == "", taking.note
        assert taking.reductions == STEPS * (parts if how.get("sync") else 1)
        assert 0 < taking.exposed_seconds <= taking.seconds, (taking.exposed_seconds, taking.seconds)
        assert taking.reduced_bytes > 0
    return found, apart


def distance(taken, gradient):
    """Return how far a gradient is from the one that the optimizer sees."""
    if taken is None or gradient is None:
        return 0.0 if gradient is None and (taken is None or not taken.any()) else float("inf")
    return float((taken.to_dense() - gradient).abs().max())


def equal(one, other):
    """Return True if the gradients of all steps are equal to the bit."""
    pairs = [pair for steps in zip(one, other, strict=True) for pair in zip(*steps, strict=True)]
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


results = {}
for name in CASES:
    plain, _ = trained(name, False)
    taken, apart = trained(name, True)
    results[name] = [equal(plain, taken), max(apart)]
everywhere = [None] * world
dist.all_gather_object(everywhere, results)
if rank == 0:
    print(json.dumps(everywhere))
dist.destroy_process_group()
