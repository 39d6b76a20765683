"""A query that sleeps 5 ms at each event of a loop of 1 ms a step.

The benchmark measures its cost after the grace period, for one such query and for ten. Steps spin for exactly a
millisecond, so the cost is what `emit` adds. The budget is the default of 3%.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import Row, main
from reader import reader, run

import looptap

STEP = 0.001


def share(agent: looptap.Agent, seconds: float) -> float:
    """Return the time in `emit` over that in steps; each event must be accounted for."""
    inside = steps = 0.0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        while time.perf_counter() - start < STEP:
            pass
        emitted = time.perf_counter()
        agent.emit("batch", step=1)
        inside += time.perf_counter() - emitted
        steps += STEP
    for query in agent.stats()["queries"]:
        assert query["evaluated"] + query["withheld"] == agent.stats()["events"]["batch"], query
    return inside / steps


def rows() -> Iterator[Row]:
    for count in (1, 10):
        with run() as agent, reader() as client:
            agent.expose(slow=lambda: time.sleep(0.005))
            for number in range(count):
                client.open(f"slow{number}", "slow()", on="batch")
            share(agent, 0.5)
            found = share(agent, 5.0)
        yield Row(
            f"{'ten queries that sleep' if count > 1 else 'a query that sleeps'} 5 ms an event: share of a 1 ms loop "
            "(baseline: without a budget)",
            f"{count * 500}%",
            f"{100 * found:.2f}%",
            "",
            "≤ 3%",
            found <= 0.03,
            figures={"share": found},
        )


if __name__ == "__main__":
    main(rows, __doc__)
