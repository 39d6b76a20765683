"""Writes the stored run of a version, which the tests open ever after.

python tests/store/versions/record.py (never again for a version that was released)
"""

from array import array
from pathlib import Path

import numpy as np

from looptap.store.layout import schema
from looptap.store.layout.scalar_columns import scalar_row
from looptap.store.queue import QueuedCommand
from looptap.store.writer import Writer
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.stream.buffer import Batch

ODD = [1, 2.5, float("nan"), float("inf"), True, None, "text", (1, None), (1, (2, 3)), [1], {"a": 1}, 2**70, -0.0]
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def batch(first, values, flags=b""):
    count = len(values)
    events = array("q", range(first * 10, (first + count) * 10, 10))
    return Batch(first, events, array("d", [0.5 * n for n in range(count)]), list(values), 1.7e9, flags)


def many():
    """Return the values of a long stream: rows that are alike, but for a None."""
    rows = [(step, 1 / (step + 1), ("warm-up", "train")[step > 99], step % 2 == 0) for step in range(1200)]
    return [(*row[:1], None, *row[2:]) if row[0] == 700 else row for row in rows]


def write(path):
    writer = Writer(path, {"id": "recorded-1", "name": "recorded", "started": 1.7e9})
    loss = writer.stream("loss", query="step, loss", on="batch", fields=("step", "loss"))
    odd = writer.stream("odd", query="odd", on="batch", window="100 events", unit="s")
    writer.append(loss, batch(1, [(step, 1 / (step + 1)) for step in range(20)]))
    writer.append(loss, batch(31, [(30, 0.25)]))
    rows = many()
    long = writer.stream("long", on="batch", fields=("step", "loss", "phase", "even"), first=11)
    for first in range(0, len(rows), 100):
        writer.append(long, batch(first + 11 + (first >= 1000), rows[first : first + 100]))
    writer.append(odd, batch(1, [*ODD, ARRAY]))
    writer.append(odd, batch(len(ODD) + 2, ["ZeroDivisionError", 7], bytes((ERROR, PARTIAL))))
    writer.command(QueuedCommand("c1", 1.5, 1.7e9, "batch", 12, "me", "echo.factor", 1, 3, "done"))
    events, times, losses = array("q", [1, 5, 9]), array("d", [0.1, 0.5, 0.9]), array("d", [0.5, 0.25, 0.0])
    names = [("loss", "loss", "float", False)]
    writer.scalars(scalar_row("batch", 1.7e9, events, times, names, [losses], [bytearray((1, 1, 0))]))
    assert writer.close(30, farewell="the run ended")


if __name__ == "__main__":
    import looptap.store.writer

    looptap.store.writer.about = lambda: {"host": "somewhere"}
    write(Path(__file__).with_name(f"version-{schema.SCHEMA_VERSION}.looptap"))
