"""Values per second from one loop to one client, compared with bare CURVE.

The client is another process, the values are encrypted, and none is lost. The compiled `emit` can be faster than any
wire, so the loop waits now and then until the client has all but the newest 40,000 values. It emits 400,000 events with
the query `step, loss`; the time runs from the first event until the client has the last value. The baseline is bare
pyzmq with CURVE over ipc, at its best message size: without numbers, times, queries or a history of the values. Left
out: what a reader does with the values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from harness import Row, interleave, main, promised, rate
from raw_curve import values_per_second, wire
from reader import reader, run

EVENTS, BLOCK, MAX_WAITING, SIZES = 400_000, 10_000, 40_000, (512, 1024, 4096, 16_384)
SHARE_OF_BARE = promised(0.6, pure=0.15)


def best_size() -> int:
    """Return the message size at which bare CURVE carries most values a second."""
    with wire("values") as link:
        blocks = {str(size): partial(_seconds, link, size) for size in SIZES}
        seen = interleave(blocks, rounds=5)
    return min(SIZES, key=lambda size: seen.median(str(size)))


def _seconds(link: Any, size: int) -> float:
    return 1 / values_per_second(link, size, EVENTS)


def rows() -> Iterator[Row]:
    size = best_size()
    for listen, name in ((None, "ipc"), ("tcp", "tcp, loopback")):
        with wire("values") as link, run(listen) as agent, reader() as client:
            client.open("values", "step, loss", on="batch", buffer=1000)
            due = 0

            def ours() -> float:
                nonlocal due
                start = time.monotonic()
                for _ in range(EVENTS // BLOCK):
                    for step in range(BLOCK):
                        agent.emit("batch", step=step, loss=0.5)
                    due += BLOCK
                    client.when("values", due - MAX_WAITING)
                return (client.delivered("values", due) - start) / EVENTS

            blocks = {"ours": ours, "raw": partial(_seconds, link, size)}
            seen = interleave(blocks, rounds=9)
        got = 1 / seen.median("ours")
        yield Row(
            f"values per second to one client, encrypted, none lost, {name} (baseline: bare CURVE, ipc, "
            f"{size} a message)",
            rate(1 / seen.median("raw")),
            rate(got),
            "",
            "≥ 400,000/s",
            got >= 400_000,
            figures=dict(seen.seconds),
        )
        ratio = seen.ratio("raw", "ours")
        yield Row(
            f"the same, {name}, as a share of bare CURVE",
            rate(1 / seen.median("raw")),
            rate(got),
            str(ratio),
            f"≥ {SHARE_OF_BARE:g}",
            ratio.at_least(SHARE_OF_BARE),
        )


if __name__ == "__main__":
    main(rows, __doc__)
