"""The arguments of `Selection`, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from looptap.training.collectives import all_reduce
from looptap.training.instances import index_array, merge_copies
from looptap.training.sampling.per_example import Criterion, CrossEntropy, PerExample
from looptap.training.sampling.permutation_walk import Floats, Ints


def instances_of(data: Any) -> int:
    """Return the number of instances of a data set, or the number itself.

    Raises TypeError for what has no indices, ValueError for no instances.
    """
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


def why_resized(data: Any, size: int) -> str:
    """Return that a data set has another length than ``size``; "" if it has not."""
    try:
        now = data if isinstance(data, Integral) else len(data)
    except Exception:  # of the data set
        return ""
    if now == size:
        return ""
    return (
        f"The data set has {now:,} instances now, and had {size:,}: new ones are never drawn, and missing ones still "
        "are. Create a new Selection."
    )


def checked_whole(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least ``least``. Raises ValueError, TypeError."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60} must be a whole number.")
    if value < least:
        raise ValueError(f"{name}={value!r} must be at least {least}.")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return True or False. Raises TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r:.60} must be True or False.")
    return value


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks.

    By default they are those of torch.distributed. Raises ValueError.
    """
    import torch

    group = torch.distributed
    if rank is None and world is None:
        running = group.is_available() and group.is_initialized()
        return (group.get_rank(), group.get_world_size()) if running else (0, 1)
    if rank is None or world is None or not 0 <= checked_whole("rank", rank, 0) < checked_whole("world", world):
        raise ValueError(f"rank={rank!r}, world={world!r} must be a rank and how many there are.")
    return rank, world


def agreement(agree: Callable[[float], float] | None, world: int) -> Callable[[float], float] | None:
    """Return how ranks agree on a number; None for one rank. Raises ValueError."""
    import torch

    if agree is not None or world == 1:
        return agree if world > 1 else None
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise ValueError(
            f"world={world} needs an initialized torch.distributed, or agree=, a function that returns the mean of a "
            "number over the ranks: all ranks must make the same number of steps."
        )
    return mean_over_ranks


def shard_of(size: int, rank: int, world: int) -> Ints:
    """Return the instances of a rank, equally many for all; the first ones fill up."""
    ids = np.arange(rank, -(-size // world) * world, world, dtype=np.int64)
    return ids % size


def batch_size_of(batch_size: Any, instances: int) -> int:
    """Return the batch size, at most ``instances``. Raises ValueError, TypeError."""
    if checked_whole("batch_size", batch_size) > instances:
        raise ValueError(f"batch_size={batch_size} is more than the {instances} instances of this rank.")
    return int(batch_size)


def indices_in(indices: Any, size: int) -> Ints:
    """Return ``indices`` as an array. Raises ValueError, TypeError for invalid ones."""
    found = index_array(indices)
    if len(found) and int(found.view(np.uint64).max()) >= size:  # as unsigned numbers, negative ones are large
        raise ValueError(f"indices from {found.min()} to {found.max()} must be from 0 to {size - 1}.")
    return found


def per_example(count: int, losses: Any, outputs: Any, targets: Any, criterion: Criterion) -> PerExample:
    """Return losses and scores of ``count`` examples. Raises ValueError, TypeError."""
    if losses is None and (outputs is None or targets is None):
        raise ValueError("observe() needs losses=, or logits= and targets=.")
    found = PerExample(losses, None)
    if outputs is not None and targets is not None:
        given: Any = criterion.small(outputs, targets) if isinstance(criterion, CrossEntropy) else None
        given = criterion(outputs, targets) if given is None else given
        found = PerExample(*given) if isinstance(given, tuple) else PerExample(given, None)  # or losses alone
    for name, values in zip(("losses", "scores"), found, strict=True):
        if values is not None and np.shape(values) != (count,):
            raise ValueError(f"{name} of shape {tuple(np.shape(values))} for {count} indices: one for each is needed.")
    return found


def distinct(ids: Ints, found: PerExample) -> tuple[Ints, Floats, Floats | None]:
    """Return each of ``ids`` once, with its mean loss and score."""
    losses, scores = float_array(found.losses), None if found.scores is None else float_array(found.scores)
    ordered = np.sort(ids)
    if not np.count_nonzero(ordered[1:] == ordered[:-1]):  # no copies, which is usual
        return ids, losses, scores
    unique, merged = merge_copies(ids, losses)
    means = None if scores is None else merge_copies(ids, scores)[1].astype(np.float32)
    return unique, merged.astype(np.float32), means


def finite(ids: Ints, losses: Floats, scores: Floats | None) -> tuple[Ints, Floats, Floats | None]:
    """Return what has a finite loss and score."""
    if math.isfinite(float(losses.dot(losses if scores is None else scores))):  # what is not shows in the product
        return ids, losses, scores
    good = np.isfinite(losses) if scores is None else np.isfinite(losses) & np.isfinite(scores)
    return ids[good], losses[good], None if scores is None else scores[good]


def class_labels(count: int, targets: Any) -> Any:
    """Return targets as an array of ``count`` classes; None if they are none.

    Those on a device are not waited for.
    """
    if hasattr(targets, "is_cpu"):
        found = targets.numpy() if targets.is_cpu and not targets.is_floating_point() else None
    else:
        found = np.asarray(targets) if np.shape(targets) == (count,) else None
    return found if found is not None and found.shape == (count,) and found.dtype.kind in "iub" else None


def mean_over_ranks(number: float) -> float:
    """Return the mean of ``number`` over all ranks, by torch.distributed."""
    import torch

    group = torch.distributed
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    value = torch.tensor([number], dtype=torch.float64, device=device)
    total: float = all_reduce(value).item()
    return total / float(group.get_world_size())


def float_array(values: Any) -> Floats:
    """Return a tensor, array or list as an array of 32-bit floats."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)
