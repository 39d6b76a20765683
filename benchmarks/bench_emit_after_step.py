"""`emit` of a tensor after a training step, beside `loss.item()`.

The loop is that of `loops.Mlp`, a millisecond a step, which leaves the caches full of its own. In one block a step is
followed by `emit(step=step, loss=loss)` with one to five streams attached, in the other by `loss.item()`, which most
loops have anyway; a figure is the median of single calls without the cost of the clock, and each value arrives.
Left out: what the I/O thread does between the calls, which `small_loop` measures as a whole.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import Row, in_units, interleave, main
from loops import Mlp
from reader import reader, run

STEPS, ROUNDS = 100, 15
QUERIES = ("step, loss", "loss", "mean(e.loss for e in events)", "loss * 2", "max(e.loss for e in events)")
MOST = 2.0


def after_steps(step: Callable[[], Any], call: Callable[[int, Any], object]) -> float:
    took, clock = [], []
    for number in range(STEPS):
        loss = step()
        start = time.perf_counter()
        call(number, loss)
        end = time.perf_counter()
        took.append(end - start)
        clock.append(time.perf_counter() - end)
    return statistics.median(took) - statistics.median(clock)


def rows() -> Iterator[Row]:
    mlp = Mlp()
    blocks: dict[str, Callable[[], float]] = {"item": lambda: after_steps(mlp.step, lambda number, loss: loss.item())}
    with run() as agent, reader() as client:
        for count in range(1, len(QUERIES) + 1):
            event = f"of {count}"
            for query in QUERIES[:count]:
                client.open(f"{event}: {query}", query, on=event, buffer=1000)
            blocks[event] = lambda event=event: after_steps(
                mlp.step, lambda number, loss: agent.emit(event, step=number, loss=loss)
            )
        seen = interleave(blocks, ROUNDS, settle=0.05)
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


if __name__ == "__main__":
    main(rows, __doc__)
