"""What an event with one mapped query costs the training thread.

Its value is delivered to a client. "In a row" means 50,000 events in a loop that does nothing else, while the I/O
thread packs and sends and a client in another process reads. It is wall time, so it includes every wait for the
interpreter lock. "After a training step" is the median of single calls of `emit` in an MLP loop of a millisecond a
step, which fills the caches with its own data.
"""

from __future__ import annotations

from collections.abc import Iterator

from emitting import compare
from harness import Row, main


def rows() -> Iterator[Row]:
    queries = {"row": ("step, loss", False), "number": ("loss", False), "lambda": ("lambda e: (e.step, e.loss)", False)}
    yield from compare(queries, promise=2e-6)


if __name__ == "__main__":
    main(rows, __doc__)
