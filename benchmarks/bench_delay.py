"""Time from an event to the client's callback in another process.

There are 200 events/s, in a loop that trains between them. Both processes read the same monotonic clock: the value of
an event is its time, which the callback subtracts from its own. The baseline is the time for which values are collected
before they are sent (the linger): 30 ms, or 1 ms with low latency.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from harness import Row, in_units, main
from loops import Mlp
from reader import reader, run

from looptap.agent.server.exporter import LOW_LATENCY_SECONDS
from looptap.streams.stream.attention import PROMPT_SECONDS

EVENTS, PERIOD = 1500, 0.005


def rows() -> Iterator[Row]:
    mlp = Mlp()
    for latency, linger, bound in (("normal", PROMPT_SECONDS, 0.040), ("low", LOW_LATENCY_SECONDS, 0.005)):
        with run() as agent, reader() as client:
            client.open("delay", "event_time", on="batch", latency=latency, delays=True, buffer=10_000)
            due = time.monotonic()
            for _ in range(EVENTS):
                while time.monotonic() < due:
                    mlp.step()
                due += PERIOD
                agent.emit("batch")
            client.delivered("delay", EVENTS)
            delays = client.seen("delay")["delays"]
        p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
        yield Row(
            f'event to callback at 200 events/s, latency="{latency}": p50 {in_units(p50)}, p99 (baseline: the linger)',
            in_units(linger),
            in_units(p99),
            f"{p99 / linger:.2g}",
            f"≤ {in_units(bound)}",
            p99 <= bound,
            figures={"delays": delays},
        )


if __name__ == "__main__":
    main(rows, __doc__)
