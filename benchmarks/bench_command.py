"""Time from `run.set(…)` to its outcome, in a loop of 1 ms a step."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator

from emitting import steps_until
from harness import Row, in_units, main
from loops import Mlp
from reader import reader, run


def rows() -> Iterator[Row]:
    mlp, stop = Mlp(), threading.Event()
    took: list[float] = []
    with run() as agent, reader() as client:
        agent.expose(optimizer=mlp.optimizer)

        def ask() -> None:
            for number in range(200):
                took.append(client.set("optimizer.lr", 0.01 + number / 1e6))
                time.sleep(0.021 + 0.001 * (number % 7))  # the limit of commands per second
            stop.set()

        thread = threading.Thread(target=ask)
        thread.start()
        steps = steps_until(stop, agent, mlp)
        thread.join()
    gap, median = statistics.median(steps), statistics.median(took)
    worst = statistics.quantiles(took, n=100)[98]
    yield Row(
        "outcome of run.set(…) (baseline: a step of the loop)",
        in_units(gap),
        f"{in_units(median)}, p99 {in_units(worst)}",
        "",
        "≤ 5 ms + a step",
        median <= 0.005 + gap,
        figures={"set": took},
    )


if __name__ == "__main__":
    main(rows, __doc__)
