"""Time from `run.stream(…)` to its first value, in a loop of 1 ms a step."""

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
    found: dict[str, list[float]] = {"normal": [], "low": []}
    with run() as agent, reader() as client:

        def ask() -> None:
            for number in range(60):
                for latency, times in found.items():
                    answer = client.open("first", "step, loss", on="batch", latency=latency, first=True)
                    times.append(answer["first"])
                    client.close("first")
                time.sleep(0.005 * (number % 3))
            stop.set()

        thread = threading.Thread(target=ask)
        thread.start()
        steps = steps_until(stop, agent, mlp)
        thread.join()
    gap = statistics.median(steps)
    for latency in ("low", "normal"):
        median = statistics.median(found[latency])
        yield Row(
            f'first value after run.stream(latency="{latency}") (baseline: a step of the loop)',
            in_units(gap),
            in_units(median),
            "",
            "≤ 10 ms + a step",
            median <= 0.010 + gap,
            figures={latency: found[latency]},
        )


if __name__ == "__main__":
    main(rows, __doc__)
