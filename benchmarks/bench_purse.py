"""What questions cost the training thread: measured, and as looptap says.

One process for each row runs the same loop, an MLP, in shuffled blocks of steps with looptap in and out: with the hooks
of `looptap run`, or with an agent of its own. The width of the MLP is what makes a step take the time of its row.
Figures are processor time of the training thread; the cost is given as a share of the wall time of the blocks with
looptap in. It is in for half of the time, so it gets half of its usual budget of 3% of the time that passes. What
looptap says is the sum of the shares that `looptap ls` shows.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from harness import HERE, Row, in_units, main

import looptap

ROUNDS, WIDTH, BLOCK_SECONDS, WARM_UP_ROUNDS = 40, 640, 0.1, 3
QUESTIONS = """
loss, step
mean(e.loss for e in recent(50))
norm(out)
x.shape
out.mean().item(), out.std().item()
float(x.abs().max())
(out.argmax(1) == y).float().mean().item()
out.softmax(1).max(1).values.mean().item()
model[0].weight.norm().item()
model[2].weight.norm().item()
model[4].weight.grad.norm().item()
sum(float(p.norm()) for p in model.parameters())
[p.grad.norm().item() for p in model.parameters()]
max(float(p.grad.abs().max()) for p in model.parameters())
layer_norms(model)
layer_norms(model, 'grad')
sum(p.numel() for p in model.parameters())
len(model)
y.float().mean().item()
y.bincount(minlength=10).tolist()
out[0].tolist()
out.isnan().any().item()
loss > 2
{'loss': loss.item(), 'step': step}
model.training
type(model).__name__
x.std(0).mean().item()
out.var(1).mean().item()
(out - out.mean(1, keepdim=True)).norm().item()
torch.quantile(out.flatten(), 0.9).item()
norm(model[0].weight.grad)
math.log(loss.item())
out.min().item(), out.max().item()
out.abs().median().item()
(out > 0).float().mean().item()
torch.histc(out, 10).tolist()
loss.item() ** 2
x[0, :5].tolist()
sorted(out[0].tolist())[:3]
len(list(model.parameters()))
""".strip().splitlines()  # the first two are arithmetic, which is evaluated later


class Script:
    """The script in a process of its own."""

    def __init__(self, how: str, width: int, name: str) -> None:
        command = [sys.executable, str(HERE / "script_in_and_out.py"), how, str(width), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def block(self, word: str, steps: int) -> tuple[float, float]:
        """Run so many steps; return their processor time and wall time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, steps, file=self._process.stdin, flush=True)
        cpu, wall = self._process.stdout.readline().split()
        return float(cpu), float(wall)

    def close(self) -> None:
        self._process.communicate()


def width_for(seconds: float) -> int:
    """Return the width of the MLP whose step takes about so long."""
    with contextlib.closing(Script("emit", WIDTH, "width")) as script:
        script.block("out", 20)
        took = statistics.median(script.block("out", 20)[1] / 20 for _ in range(5))
    return round(WIDTH * (seconds / took) ** 0.5)


class Blocks:
    """Pairs of blocks of one script, with looptap in and out."""

    def __init__(self, script: Script, steps: int) -> None:
        self._script, self._steps, self._shuffler = script, steps, random.Random(1)
        self.cpu: dict[str, list[float]] = {"in": [], "out": []}
        self.wall: list[float] = []

    def pair(self) -> None:
        words = ["in", "out"]
        self._shuffler.shuffle(words)
        both = {word: self._script.block(word, self._steps) for word in words}
        for word, (cpu, _) in both.items():
            self.cpu[word].append(cpu)
        self.wall.append(both["in"][1])

    def share(self, first: int = 0, last: int | None = None) -> tuple[float, float, float]:
        """Return the cost as a share of the time that looptap was in, with interval."""
        cost, wall = (np.array(values)[first:last] for values in (np.subtract(*self.cpu.values()), self.wall))
        pick = np.random.default_rng(1).integers(0, len(cost), (4000, len(cost)))
        low, high = np.quantile(cost[pick].sum(axis=1) / wall[pick].sum(axis=1), [0.025, 0.975])
        return cost.sum() / wall.sum(), low, high


def percent(share: tuple[float, float, float]) -> str:
    value, low, high = (100 * one for one in share)
    return f"{value:.2f}% ({low:.2f} to {high:.2f})"


def of_questions(how: str, step: float, width: int, count: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of so many questions."""
    called = "under `looptap run`" if how == "run" else "with an agent"
    name = f"purse-{how}-{step:g}-{count}"
    steps = max(2, round(BLOCK_SECONDS / step))
    words = f"{count} question{'s' * (count != 1)}" if count else "no client"
    what = f"a step of about {1000 * step:g} ms {called}, {words}"
    with contextlib.closing(Script(how, width, name)) as script, contextlib.ExitStack() as stack:
        blocks = Blocks(script, steps)
        for _ in range(WARM_UP_ROUNDS):
            blocks.pair()
        begun, said, streams = WARM_UP_ROUNDS, 0.0, []
        if count:
            run = stack.enter_context(looptap.attach(name, timeout=60))
            pool = stack.enter_context(ThreadPoolExecutor(count))
            asked = [pool.submit(run.stream, query, on="step") for query in QUESTIONS[:count]]
            before = time.monotonic()
            while time.monotonic() - before < 1.0 or not all(one.done() for one in asked):
                blocks.pair()
            streams, first = [one.result() for one in asked], len(blocks.wall)
            spent = seconds_spent(run)
            yield Row(
                f"{what}, first second: share of the time", "", percent(blocks.share(begun, first)),
                promise="≤ 5%" if count == 40 else "", holds=within(blocks.share(begun, first), 0.05, count == 40),
            )  # fmt: skip
            begun = first
        for _ in range(rounds):
            blocks.pair()
        share, bound = blocks.share(begun), 0.03 if count else 0.01
        out = statistics.median(blocks.cpu["out"]) / steps
        if count:
            said = (seconds_spent(run) - spent) / sum(blocks.wall[begun:])
            values = statistics.median([stream.arrived for stream in streams])
        yield Row(
            f"{what}: share of the time", in_units(out), percent(share), promise=f"≤ {100 * bound:g}%",
            holds=within(share, bound, True),
        )  # fmt: skip
        if count:
            yield Row(
                f"{what}: as looptap says (baseline: measured), each with {values:g} values of {rounds * steps:,}",
                percent(share), f"{100 * said:.2f}%", f"{said / share[0]:.2f}",
            )  # fmt: skip


def seconds_spent(run: looptap.Run) -> float:
    """Return the seconds that all queries have cost, as the agent says."""
    return sum(one.nanoseconds_per_event * one.evaluated for one in run.agent_stats().queries) / 1e9


def within(share: tuple[float, float, float], bound: float, promised: bool) -> bool | str | None:
    """Return whether a share is at most ``bound``, or "open"."""
    if not promised:
        return None
    return "open" if share[1] <= bound < share[2] else bool(share[2] <= bound)


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    for step in (0.002, 0.005, 0.02):
        width = width_for(step)
        for how in ("emit", "run"):
            for count in (0, 1, 5, 40):
                yield from of_questions(how, step, width, count, rounds)


if __name__ == "__main__":
    main(rows, __doc__)
