"""A float32 array of 1 MB per event, against bare pyzmq with CURVE.

Both send the same arrays over the same connection. The job changes its array at each event, so looptap must copy it;
the baseline sends one array without a copy. The query has a larger budget, because the loop does nothing else and 3%
of it would be very little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from harness import Row, interleave, main, rate
from raw_curve import arrays_per_second, wire
from reader import reader, run

import looptap

ARRAYS = 32


def rows() -> Iterator[Row]:
    array = np.ones(262_144, dtype=np.float32)
    limits = looptap.Limits(outbox_bytes=128 * 2**20)  # the loop is faster than the wire: at most 32 arrays wait
    with wire("arrays") as link, run(limits=limits) as agent, reader() as client:
        client.open("arrays", "x", on="batch", buffer=4, budget=1e9)
        due = 0

        def ours() -> float:
            nonlocal due
            due += ARRAYS
            start = time.monotonic()
            for _ in range(ARRAYS):
                array[0] += 1
                agent.emit("batch", x=array)
            return (client.delivered("arrays", due) - start) / ARRAYS

        seen = interleave({"ours": ours, "raw": lambda: 1 / arrays_per_second(link, array, ARRAYS)}, rounds=15)
    ratio = seen.ratio("raw", "ours")
    yield Row(
        "1 MB float32 arrays per second (baseline: bare CURVE)",
        rate(1 / seen.median("raw")),
        rate(1 / seen.median("ours")),
        str(ratio),
        "≥ 0.5",
        ratio.at_least(0.5),
        figures=dict(seen.seconds),
    )


if __name__ == "__main__":
    main(rows, __doc__)
