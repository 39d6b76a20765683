"""A small training loop with all that a query could disturb, and its state."""

from __future__ import annotations

import collections
import copy
import functools
import io
import random

import numpy as np
import torch
from torch import nn

STEPS = 6
_jitter = np.random.default_rng(11)


class Data(torch.utils.data.Dataset):
    """Sixty-four pictures, augmented by all random generators; it counts accesses."""

    def __init__(self):
        self.pictures = torch.arange(64 * 16, dtype=torch.float32).reshape(64, 1, 4, 4).sin()
        self.labels = list(np.arange(64) % 3)
        self.rng, self.dice = np.random.default_rng(1), random.Random(2)
        self.generator = torch.Generator().manual_seed(3)
        self.reads = 0
        self.change = lambda picture: picture + _jitter.normal()

    def __len__(self):
        return 64

    def __getitem__(self, place):
        self.reads += 1
        noise = self.rng.normal() + self.dice.random() + random.random() + np.random.rand()
        noise += torch.rand(1).item() + torch.rand(1, generator=self.generator).item()
        return self.change(self.pictures[place] + noise), int(self.labels[place])


class Net(nn.Sequential):
    """A convolution with batch norm and dropout, and three layers named by the loop."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.2), nn.Flatten())
        self.norm = nn.BatchNorm1d(8)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.fc = nn.Linear(8, 3)

    def features(self, x):
        for layer in list(self)[:5]:
            x = layer(x)
        return self.norm(x)

    def forward(self, x):
        return self.fc(self.spectral(self.features(x)))


class Config:
    """An object of the job whose attributes, iteration and conversion run its code."""

    depth = 3

    @property
    def jitter(self):
        return torch.rand(1).item() + random.random()

    @functools.cached_property
    def cached(self):
        return np.random.rand()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return random.random()

    def __iter__(self):
        self.goes = self.__dict__.get("goes", 0) + 1
        return iter([torch.rand(1).item()])

    def __float__(self):
        self.goes = self.__dict__.get("goes", 0) + 1
        return np.random.rand()


def world():
    """Return what the loop owns, each time the same."""
    global _jitter
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    _jitter = np.random.default_rng(11)
    data, model = Data(), Net()
    file = io.BytesIO(bytes(range(256)))
    file.seek(5)
    return {
        "model": model, "dataset": data, "config": Config(), "history": [3, 1, 2], "table": {"a": 1, "deep": [1]},
        "loader": torch.utils.data.DataLoader(
            data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5)
        ),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
        "rng": np.random.default_rng(7), "legacy": np.random.RandomState(8), "dice": random.Random(9),
        "generator": torch.Generator().manual_seed(10), "queue": collections.deque([1, 2, 3]), "counts": np.arange(4.0),
        "batches": iter(range(1000)), "file": file,
    }  # fmt: skip


def train(agent=None, begin=lambda: None):
    """Return the loop's state after a few steps; call ``begin`` before the first."""
    own = world()
    if agent is not None:
        agent.expose(**own, copy_of=copy.deepcopy, loss_of=nn.functional.cross_entropy)
    begin()
    model, optimizer, losses = own["model"], own["optimizer"], []
    for step, (x, target) in zip(range(STEPS), own["loader"], strict=False):
        h = model.features(x)
        out = model.fc(model.spectral(h))
        loss = nn.functional.cross_entropy(out, target)
        seen = {"step": step, "loss": loss, "x": x, "h": h, "out": out, "target": target}
        optimizer.zero_grad()
        if agent is not None:
            agent.emit("forward", **seen)
        loss.backward()
        if agent is not None:
            agent.emit("backward", **seen)
        optimizer.step()
        losses.append(loss.item() + next(own["batches"]) + own["rng"].normal() + own["legacy"].rand())
        if agent is not None:
            agent.emit("batch", **seen)
    if agent is not None:
        agent.emit("epoch", error=losses[-1])
    return {"losses": losses, "last": state(seen), **state(own), "process": process()}


def process():
    """Return the random numbers and modes of the process."""
    return (
        torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()), str(_jitter.bit_generator.state),
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), np.geterr(),
    )  # fmt: skip


def state(thing):
    """Return all of an object's state as data that can be compared."""
    if isinstance(thing, torch.Tensor):
        grad = thing.grad if thing.is_leaf or thing.retains_grad else None
        hooks = len(thing._backward_hooks or ())
        return thing.dtype, thing.requires_grad, hooks, thing.detach().tolist(), None if grad is None else grad.tolist()
    if isinstance(thing, np.ndarray):
        return thing.dtype, thing.tobytes()
    if isinstance(thing, nn.Module):
        return [
            (name, type(m).__name__, state(m._parameters), state(m._buffers), sorted(m.__dict__), m.training,
             len(m._forward_hooks), sorted(m._modules))
            for name, m in thing.named_modules()
        ]  # fmt: skip
    if isinstance(thing, torch.Generator):
        return thing.get_state().tolist()
    if isinstance(thing, np.random.Generator):
        return str(thing.bit_generator.state)
    if isinstance(thing, np.random.RandomState):
        return str(thing.get_state())
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, torch.optim.Optimizer):
        return state(list(thing.state.values())), state(thing.param_groups)
    if isinstance(thing, list | tuple | collections.deque):
        return list(map(state, thing))
    if isinstance(thing, dict):
        return {key: state(value) for key, value in thing.items()}
    if hasattr(type(thing), "tell"):
        return thing.tell()
    if hasattr(type(thing), "__length_hint__"):
        return thing.__length_hint__()
    if isinstance(thing, Data | Config | torch.utils.data.DataLoader):
        return {name: state(value) for name, value in vars(thing).items() if name != "change"}
    return thing if isinstance(thing, int | float | str | None) else type(thing)
