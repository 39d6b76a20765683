"""The arguments of `Selection`, checked."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from looptap.training.instances import index_array
from looptap.training.sampling.per_example import Criterion, PerExample
from looptap.training.sampling.permutation_walk import Floats, Ints


def size_of(data: Any) -> int:
    """Return the number of instances of a map-style data set, or the number itself. Raises TypeError, ValueError."""
    if isinstance(data, Integral) and not isinstance(data, bool):
        size = int(data)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        size = len(data)
    else:
        raise TypeError(
            f"data={data!r:.60} must be a data set with a length and indices, or its length: instances are drawn by "
            "their index. A stream of data has none."
        )
    if size < 1:
        raise ValueError(f"data={data!r:.60} has no instances.")
    return size


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least ``least``. Raises ValueError, TypeError."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60} must be a whole number.")
    if value < least:
        raise ValueError(f"{name}={value!r} must be at least {least}.")
    return int(value)


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks, those of torch.distributed by default. Raises ValueError."""
    import torch

    group = torch.distributed
    if rank is None and world is None:
        running = group.is_available() and group.is_initialized()
        return (group.get_rank(), group.get_world_size()) if running else (0, 1)
    if rank is None or world is None or not 0 <= rank < world:
        raise ValueError(f"rank={rank!r}, world={world!r} must be a rank and how many there are.")
    return rank, world


def shard_of(size: int, rank: int, world: int) -> Ints:
    """Return the instances of a rank: all ranks have equally many, and the first few stand in for those missing."""
    ids = np.arange(rank, -(-size // world) * world, world, dtype=np.int64)
    return ids % size


def batch_size_of(batch_size: Any, instances: int) -> int:
    """Return the size of a batch, at most the ``instances`` of a rank. Raises ValueError, TypeError."""
    if whole("batch_size", batch_size) > instances:
        raise ValueError(f"batch_size={batch_size} is more than the {instances} instances of this rank.")
    return int(batch_size)


def indices_in(indices: Any, size: int) -> Ints:
    """Return ``indices`` as an array. Raises ValueError, TypeError for what is no index of ``size`` instances."""
    found = index_array(indices)
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < size:
        raise ValueError(f"indices from {found.min()} to {found.max()} must be from 0 to {size - 1}.")
    return found


def per_example(count: int, losses: Any, outputs: Any, targets: Any, criterion: Criterion) -> PerExample:
    """Return what a step says of its ``count`` examples. Raises ValueError, TypeError for shapes that do not fit."""
    if losses is None and (outputs is None or targets is None):
        raise ValueError("observe() needs losses=, or logits= and targets=.")
    found = PerExample(losses, None) if outputs is None or targets is None else criterion(outputs, targets)
    for name, values in zip(("losses", "scores"), found, strict=True):
        if values is not None and np.shape(values) != (count,):
            raise ValueError(f"{name} of shape {tuple(np.shape(values))} for {count} indices: one for each is needed.")
    return found


def mean_over_ranks(number: float) -> float:
    """Return the mean of ``number`` over all ranks. A collective of torch.distributed."""
    import torch

    group = torch.distributed
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    value = torch.tensor([number], dtype=torch.float64, device=device)
    group.all_reduce(value)
    total: float = value.item()
    return total / float(group.get_world_size())


def array_of(values: Any) -> Floats:
    """Return a tensor, array or list as an array of 32-bit floats."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)
