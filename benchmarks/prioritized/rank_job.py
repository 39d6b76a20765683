"""The job of `ranks.py`, under torchrun: measures, and writes JSON on rank 0.

python -m torch.distributed.run --nproc-per-node 2 benchmarks/prioritized/rank_job.py FILE [--channels 160] [--seeds N]
    [--check]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parent.parent / "selection"))
import digit_copies  # found in the folder of the selection's benchmark
from selection_tasks import cnn

from looptap.training.prioritized import Prioritized
from looptap.training.prioritized.average_gradient import AverageGradient
from looptap.training.prioritized.distributed.reduced_gradients import ReducedGradients

GLOBAL_BATCH, RANK_BATCH = 64, 32
LEARNING_RATE = 0.05
TARGET_LOSS, AVERAGED_LOOKS = 0.18, 3
"""Of a sample of the training data, in the mean of so many looks: after some four epochs."""
PLAIN_STEPS = 60
"""Of plain DDP, which are only timed."""
MAX_STEPS, MAX_QUICK_STEPS, STEPS_BETWEEN_LOOKS, LOOK_SAMPLES = 1500, 30, 15, 800
TIMED_STEPS, WARM_STEPS, ROUNDS = 12, 3, 5
"""Of a block, before it, and blocks of each kind."""
REDUCED_VALUES = (1_000, 10_000, 100_000, 400_000, 1_600_000)


class Training:
    """A training of the CNN, alone or on all ranks, one step at a time.

    ``world`` is the number of ranks that train together; with ``apart`` this rank does its part of their work, that of
    DDP and the method included, and waits for no other.
    """

    def __init__(
        self, seed: int, world: int, channels: int, *, method: bool = True, apart: Any = None, batch: int | None = None
    ) -> None:
        torch.manual_seed(seed)
        self.split, self.world = digit_copies.easy_heavy(3), world
        self.network = cnn(channels)
        self.model: Any = self.network
        self.average, self.reduced = None, None
        if world > 1:
            self.model = DistributedDataParallel(
                self.network, process_group=apart, gradient_as_bucket_view=True, static_graph=True
            )
            self.reduced = ReducedGradients(self.model) if method else None
        if self.reduced is not None:
            self.average = AverageGradient(self.network.parameters(), 0.9)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        rank = dist.get_rank() if world > 1 else 0
        agree = {} if apart is None else {"agree": lambda number: number}
        self.prioritized = Prioritized(
            len(self.split.inputs), None, batch or GLOBAL_BATCH // world, "norm" if method else "uniform",
            epochs=10, seed=seed, rank=rank, world=world, **agree,
        )  # fmt: skip
        self.batches = iter(self.prioritized)

    def step(self) -> None:
        """Make a step of all ranks."""
        try:
            indices = next(self.batches)
        except StopIteration:
            self.batches = iter(self.prioritized)
            indices = next(self.batches)
        ids = torch.tensor(indices)
        targets = self.split.targets[ids]
        logits = self.model(self.split.inputs[ids])
        self.optimizer.zero_grad()
        self.prioritized.backward(ids, cross_entropy(logits, targets, reduction="none"))
        self.averaged()
        self.optimizer.step()
        self.prioritized.observe(ids, logits=logits, targets=targets)

    def plain_step(self) -> None:
        """Make a step on the first examples, with nothing of the method but gbar."""
        ids = slice(0, GLOBAL_BATCH // self.world)
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.split.inputs[ids]), self.split.targets[ids]).backward()
        self.averaged()
        self.optimizer.step()

    def averaged(self) -> None:
        """Feed gbar from DDP's buckets, if it is kept."""
        if self.reduced is not None and self.average is not None and (gradients := self.reduced.taken()) is not None:
            self.average.update(gradients)

    def loss(self) -> float:
        """Return the loss of a sample of the training data."""
        with torch.no_grad():
            outputs = self.network(self.split.inputs[:LOOK_SAMPLES])
            found: Tensor = cross_entropy(outputs, self.split.targets[:LOOK_SAMPLES])
        return float(found)


def to_loss(seed: int, world: int, channels: int, most: int, *, method: bool = True) -> dict[str, Any]:
    """Train until the loss is low; looks at it are not timed."""
    training, steps, seconds, loss = Training(seed, world, channels, method=method), 0, 0.0, float("inf")
    looks: list[float] = []
    while loss > TARGET_LOSS and steps < most:
        if world > 1:
            dist.barrier()
        begun = time.perf_counter()
        for _ in range(STEPS_BETWEEN_LOOKS):
            training.step()
        seconds += time.perf_counter() - begun
        steps += STEPS_BETWEEN_LOOKS
        looks.append(training.loss())  # the parameters are the same on all ranks, and so is this
        loss = statistics.fmean(looks[-AVERAGED_LOOKS:])
    reduced = training.reduced
    return {
        "seconds": seconds, "steps": steps, "loss": loss,
        "communication_seconds": reduced.seconds if reduced else 0.0,
        "exposed_seconds": reduced.exposed_seconds if reduced else 0.0,
        "reduced_bytes": reduced.reduced_bytes if reduced else 0,
        "own_seconds": training.prioritized.communication_seconds,
    }  # fmt: skip


def timed(step: Callable[[], Any], count: int = TIMED_STEPS, *, together: bool = False) -> list[float]:
    """Return the seconds of each call; ``together``: all ranks begin it at once."""
    for _ in range(WARM_STEPS):
        step()
    found = []
    for _ in range(count):
        if together:
            dist.barrier()
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    return found


def beside_plain(channels: int) -> dict[str, float]:
    """Time steps of plain DDP and of the method in turn, selection left out of both."""
    pair = [Training(0, dist.get_world_size(), channels, method=method) for method in (False, True)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * (WARM_STEPS + ROUNDS * TIMED_STEPS)):
        which = (number + number // 2) % 2  # in both orders
        dist.barrier()
        begun = time.perf_counter()
        pair[which].plain_step()
        if number >= 2 * WARM_STEPS:
            seconds[which].append(time.perf_counter() - begun)
    reduced = pair[1].reduced
    assert reduced is not None
    return {
        "plain_step": statistics.median(seconds[0]), "method_step": statistics.median(seconds[1]),
        "communication": reduced.seconds / reduced.reductions, "exposed": reduced.exposed_seconds / reduced.reductions,
        "bytes_a_step": reduced.reduced_bytes / reduced.reductions,
    }  # fmt: skip


def step_by_step(channels: int) -> dict[str, Any]:
    """Time steps of all ranks together, of each for itself, and all-reduces, in turn.

    Those for itself are returned by step and rank.
    """
    world = dist.get_world_size()
    own = [dist.new_group([rank]) for rank in range(world)][dist.get_rank()]
    apart = Training(0, world, channels, apart=own, batch=RANK_BATCH)
    together = Training(0, world, channels, batch=RANK_BATCH)
    tensors = {values: torch.zeros(values) for values in REDUCED_VALUES}
    mine, ours = list[float](), list[float]()
    reducing: dict[int, list[float]] = {values: [] for values in tensors}
    for _ in range(ROUNDS):
        mine += timed(apart.step, together=True)
        ours += timed(together.step)
        for values, tensor in tensors.items():
            reducing[values] += timed(lambda tensor=tensor: dist.all_reduce(tensor), together=True)
    everywhere: list[Any] = [None] * world
    dist.all_gather_object(everywhere, mine)
    return {
        "computing": [list(step) for step in zip(*everywhere, strict=True)], "together": ours,
        "reducing": {values: statistics.median(seconds) for values, seconds in reducing.items()},
    }  # fmt: skip


def alone(work: Callable[[], Any]) -> Any:
    """Return the result of ``work`` on rank 0, while the others wait."""
    found = work() if dist.get_rank() == 0 else None
    dist.barrier()
    return found


def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--channels", type=int, default=72)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    arguments.add_argument("--check", action="store_true", help="only what the model is compared with")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world, channels, found = dist.get_world_size(), options.channels, dict[str, Any]()
    most, plain = (MAX_QUICK_STEPS, MAX_QUICK_STEPS) if options.quick else (MAX_STEPS, PLAIN_STEPS)
    if not options.check:
        found["runs"] = [
            {"seed": seed, "one": alone(lambda seed=seed: to_loss(seed, 1, channels, most)),
             "all": to_loss(seed, world, channels, most),
             "plain": {
                 "one": alone(lambda seed=seed: to_loss(seed, 1, channels, plain, method=False)),
                 "all": to_loss(seed, world, channels, plain, method=False),
             }}
            for seed in range(options.seeds)
        ]  # fmt: skip
        found["beside"] = beside_plain(channels)
        found["alone"] = alone(lambda: timed(Training(0, 1, channels, batch=RANK_BATCH).step))
    dist.barrier()
    found |= step_by_step(channels)
    dist.barrier()
    if dist.get_rank() == 0:
        options.file.write_text(json.dumps(found | {"world": world}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
