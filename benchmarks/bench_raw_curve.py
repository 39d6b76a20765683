"""Bare pyzmq with CURVE over ipc: the ceiling for the other figures.

This benchmark does not use looptap. It sends (step, loss) pairs, packed by msgspec, in messages of the best of several
sizes, and arrays of 1 MB without a copy. Sender and reader are two processes, and the time ends when the reader has
decoded the last value.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
from harness import Row, main, rate
from raw_curve import arrays_per_second, values_per_second, wire

BATCHES = (16, 64, 256, 1024, 4096, 16384)


def rows() -> Iterator[Row]:
    with wire("values") as link:
        seen = {batch: [] for batch in BATCHES}
        for number in range(5):
            for batch in BATCHES:
                found = values_per_second(link, batch, 200_000)
                if number:
                    seen[batch].append(found)
    best = max(BATCHES, key=lambda batch: statistics.median(seen[batch]))
    yield Row(
        f"bare CURVE: values per second, {best} a message (the best of {BATCHES})",
        rate(statistics.median(seen[best])),
        "",
        figures={str(batch): rates for batch, rates in seen.items()},
    )
    array = np.ones(262_144, dtype=np.float32)
    with wire("arrays") as link:
        rates = [arrays_per_second(link, array) for _ in range(12)][2:]
    found = rate(statistics.median(rates))
    yield Row("bare CURVE: arrays of 1 MB per second", found, "", figures={"rates": rates})


if __name__ == "__main__":
    main(rows, __doc__)
