"""What an event with one reducing query costs the training thread.

Its value is delivered when the group ends. Measured in a row and after a training step, as in bench_emit_mapped.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from emitting import compare
from harness import Row, main


def rows() -> Iterator[Row]:
    queries = {
        "mean": ("mean(e.loss for e in events)", True),
        "max": ("max(e.loss for e in events)", True),
        "filtered": ("len([e for e in events if e.loss < 5])", True),
        "both": ("max(e.loss for e in events) - mean(e.loss for e in events)", True),
    }
    yield from compare(queries, promise=2e-6)


if __name__ == "__main__":
    main(rows, __doc__)
