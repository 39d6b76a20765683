"""Values per second from one loop to one client, against bare CURVE.

The client is another process, the values are encrypted, and none is lost. The loop emits 200,000 events in a row with
the query `step, loss`; a rate counts from the first event until the client has the last value. The baseline is pyzmq
with CURVE over ipc at the best of its message sizes, with nothing around it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import Row, interleave, main, rate
from raw_curve import values_per_second, wire
from reader import reader, run

EVENTS, BATCH = 200_000, 4096


def rows() -> Iterator[Row]:
    for listen, name in ((None, "ipc"), ("tcp", "tcp, loopback")):
        with wire("values") as link, run(listen) as agent, reader() as client:
            client.open("values", "step, loss", on="batch", buffer=1000)
            due = 0

            def ours() -> float:
                nonlocal due
                due += EVENTS
                start = time.monotonic()
                for step in range(EVENTS):
                    agent.emit("batch", step=step, loss=0.5)
                return (client.delivered("values", due) - start) / EVENTS

            blocks = {"ours": ours, "raw": lambda: 1 / values_per_second(link, BATCH, EVENTS)}
            seen = interleave(blocks, rounds=9)
        got = 1 / seen.median("ours")
        yield Row(
            f"values per second to one client, encrypted, none lost, {name} (baseline: bare CURVE, ipc, "
            f"{BATCH} a message)",
            rate(1 / seen.median("raw")),
            rate(got),
            str(seen.ratio("raw", "ours")),
            "≥ 400,000/s",
            got >= 400_000,
            figures=dict(seen.seconds),
        )


if __name__ == "__main__":
    main(rows, __doc__)
