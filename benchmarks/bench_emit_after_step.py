"""`emit` of a tensor after a training step, compared with `loss.item()`.

The loop is `loops.Mlp`, a millisecond a step, which fills the caches with its own data. In one block a step is followed
by `emit(step=step, loss=loss)` with one to five streams attached, in the other by `loss.item()`, which most loops have
anyway. A figure is the median of single calls without the cost of the clock, and each value arrives. Further rows,
without a promise, show what the figure consists of: a call of an empty method with the same arguments, `emit` of a type
without streams, `emit` of a float, and a second `emit` right after the first, which still finds its code and data in
the caches. Neither the number of streams nor the I/O thread matters much. Left out: the work of the I/O thread between
the calls, which `small_loop` measures as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from emitting import Empty, after_steps
from harness import Row, in_units, interleave, main, promised
from loops import Mlp
from reader import reader, run

import looptap

STEPS, ROUNDS = 100, 60
QUERIES = ("step, loss", "loss", "mean(e.loss for e in events)", "loss * 2", "max(e.loss for e in events)")
MOST = promised(0.8, pure=2.0)


def parts(mlp: Mlp, agent: looptap.Agent) -> dict[str, Callable[[], float]]:
    """Return blocks that show what the cost of a call after a step consists of."""

    def twice() -> torch.Tensor:
        loss = mlp.step()
        agent.emit("again", step=0, loss=loss)
        return loss

    def emits(step: Callable[[], Any], host: Any, event: str) -> Callable[[], float]:
        return lambda: after_steps(STEPS, step, lambda number, loss: host.emit(event, step=number, loss=loss))

    return {
        "a call of an empty method": emits(mlp.step, Empty(), "empty"),
        "emit of a type without streams": emits(mlp.step, agent, "without"),
        "emit of a float, one stream": emits(lambda: float(mlp.step() is None), agent, "float"),
        "the second emit after a step, one stream": emits(twice, agent, "again"),
    }


def rows() -> Iterator[Row]:
    mlp = Mlp()
    blocks: dict[str, Callable[[], float]] = {
        "item": lambda: after_steps(STEPS, mlp.step, lambda number, loss: loss.item())
    }
    with run() as agent, reader() as client:
        for count in range(1, len(QUERIES) + 1):
            event = f"of {count}"
            for query in QUERIES[:count]:
                client.open(f"{event}: {query}", query, on=event, buffer=1000)
            blocks[event] = lambda event=event: after_steps(
                STEPS, mlp.step, lambda number, loss: agent.emit(event, step=number, loss=loss)
            )
        for event in ("float", "again"):
            client.open(event, "step, loss", on=event, buffer=1000)
        further = parts(mlp, agent)
        blocks.update(further)
        seen = interleave(blocks, ROUNDS, settle=0.05)
        client.delivered("float", STEPS * (ROUNDS + 1))
        client.delivered("again", 2 * STEPS * (ROUNDS + 1))
        for count in range(1, len(QUERIES) + 1):
            agent.end_group(f"of {count}")
            for query in QUERIES[:count]:
                values = 1 if "events" in query else STEPS * (ROUNDS + 1)
                client.delivered(f"of {count}: {query}", values)
    for count in range(1, len(QUERIES) + 1):
        ratio = seen.ratio(f"of {count}", "item")
        yield Row(
            f"emit after a training step, loss a tensor, {count} stream{'s' * (count > 1)} (baseline: loss.item())",
            in_units(seen.median("item")),
            in_units(seen.median(f"of {count}")),
            str(ratio),
            f"≤ {MOST:g}",
            ratio.at_most(MOST),
            figures={"item": seen.seconds["item"], "emit": seen.seconds[f"of {count}"]},
        )
    for name in further:
        yield Row(
            f"{name}, after a training step (baseline: loss.item())",
            in_units(seen.median("item")),
            in_units(seen.median(name)),
            str(seen.ratio(name, "item")),
            figures={"item": seen.seconds["item"], "ours": seen.seconds[name]},
        )


if __name__ == "__main__":
    main(rows, __doc__)
