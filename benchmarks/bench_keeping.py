"""Processor time of keeping values, from `emit` to the file, and reading them.

Keeping: a job emits 200,000 events, in bursts of 20,000 with pauses of 20 ms, and keeps `step, loss` of each. The
figure is the processor time of all threads from the first event until the file is closed, without the pauses. The
baseline is a loop written by hand: sqlite3 with a row for each value (number, event, monotonic and wall clock, step,
loss), `executemany` in transactions of 1,000 rows, a write-ahead log and `synchronous = NORMAL`, like looptap.

Reading: 1,000,000 values of the stored stream, compared with `pandas.read_parquet` (pyarrow) of a file with the same
columns: all seven (`to_pandas`: number, event, rank, time, wall, step, loss), and only step and loss (`to_numpy`).
Opening the file counts on both sides. All values are compared each time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pandas
from harness import Row, in_units, interleave, main

import looptap
from looptap.store.writer import Writer
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.stream.buffer import Batch

EVENTS, COMMIT, STORED, ROUNDS = 200_000, 1000, 1_000_000, 15
HISTORY = 65_536  # values that may wait for the I/O thread
BURST, PAUSE_SECONDS = 20_000, 0.02
_numbers = count()


def losses(number: int) -> np.ndarray:
    return np.random.default_rng(1).random(number)


def cpu(work: Callable[[], object]) -> float:
    """Return the processor time of all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def kept(folder: Path, values: list[float]) -> float:
    """Return the seconds for each value that an agent keeps."""
    place = folder / f"kept-{next(_numbers)}"
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(looptap.Agent("keeping", store=place))
        agent.stream("loss", "step, loss", keep=True, history=HISTORY)

        def work() -> None:
            for step, loss in enumerate(values):
                agent.emit("batch", step=step, loss=loss)
                if not step % BURST:
                    time.sleep(PAUSE_SECONDS)  # a loop that never waits for anything leaves the I/O thread behind
            stack.close()

        took = cpu(work)
    (path,) = place.glob("*.looptap")
    with looptap.open(path) as run:
        step, loss = run.stream("loss").to_numpy("step", "loss")
        assert run.stream("loss").dropped == 0
    assert np.array_equal(step, np.arange(len(values)))
    assert loss.tolist() == values
    path.unlink()
    return took / len(values)


def by_hand(folder: Path, values: list[float]) -> float:
    """Return the seconds for each value that sqlite3 keeps."""
    path = folder / f"hand-{next(_numbers)}.db"

    def work() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                "CREATE TABLE loss (number INTEGER PRIMARY KEY, event INTEGER, time REAL, wall REAL, step INTEGER, "
                "loss REAL)"
            )
            rows = []
            for step, loss in enumerate(values):
                rows.append((step + 1, step + 1, time.monotonic(), time.time(), step, loss))
                if len(rows) == COMMIT:
                    connection.execute("BEGIN")
                    connection.executemany("INSERT INTO loss VALUES (?, ?, ?, ?, ?, ?)", rows)
                    connection.execute("COMMIT")
                    rows = []

    took = cpu(work)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT step, loss FROM loss").fetchall() == list(enumerate(values))
    path.unlink()
    return took / len(values)


def stored(folder: Path) -> Path:
    """Return the file of a run with a stream of many rows."""
    writer = Writer(folder / "stored.looptap")
    stream = writer.stream("loss", fields=("step", "loss"))
    steps, values = np.arange(STORED), losses(STORED)
    for first in range(0, STORED, COMMIT):
        part = slice(first, first + COMMIT)
        events, times = array("q", (steps[part] + 1).tobytes()), array("d", (0.001 * steps[part]).tobytes())
        batch = Batch(first + 1, events, times, ValueColumns([steps[part], values[part]], True), 1e9)
        while not writer.append(stream, batch):
            time.sleep(0.01)
    assert writer.close(60)
    assert writer.stats().kept == STORED
    return writer.path


def reading(folder: Path) -> Iterator[Row]:
    path, table, few = stored(folder), folder / "stored.parquet", folder / "few.parquet"
    with looptap.open(path) as run:
        run.stream("loss").to_parquet(table)
    pandas.read_parquet(table)[["step", "loss"]].to_parquet(few)
    steps, values = np.arange(STORED), losses(STORED)

    def checked(read: Callable[[], tuple[object, object]]) -> Callable[[], float]:
        def block() -> float:
            found = []
            took = cpu(lambda: found.extend(read()))
            assert all(map(np.array_equal, found, (steps, values)))
            return took

        return block

    def frame() -> tuple[object, object]:
        with looptap.open(path) as run:
            found = run.stream("loss").to_pandas()
        return found["step"].to_numpy(), found["loss"].to_numpy()

    def arrays() -> tuple[object, object]:
        with looptap.open(path) as run:
            return run.stream("loss").to_numpy("step", "loss")

    def parquet(path: Path) -> tuple[object, object]:
        found = pandas.read_parquet(path)
        return found["step"].to_numpy(), found["loss"].to_numpy()

    blocks = {
        "all": frame, "all of parquet": lambda: parquet(table), "two": arrays, "two of parquet": lambda: parquet(few)
    }  # fmt: skip
    seen = interleave({name: checked(read) for name, read in blocks.items()}, rounds=ROUNDS)
    for what, name in (("all seven columns as a DataFrame", "all"), ("two columns as arrays", "two")):
        ratio = seen.ratio(name, f"{name} of parquet")
        yield Row(
            f"processor time of reading {STORED:,} stored values, {what} (baseline: pandas.read_parquet)",
            in_units(seen.median(f"{name} of parquet")), in_units(seen.median(name)), str(ratio), "≤ 2",
            ratio.at_most(2), figures={one: seen.seconds[one] for one in (name, f"{name} of parquet")},
        )  # fmt: skip


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder, values = Path(name), losses(EVENTS).tolist()
        blocks = {"ours": lambda: kept(folder, values), "hand": lambda: by_hand(folder, values)}
        seen = interleave(blocks, rounds=ROUNDS)
        ratio = seen.ratio("ours", "hand")
        yield Row(
            "processor time of keeping a value, from emit to the file (baseline: sqlite3, a row for each)",
            in_units(seen.median("hand")), in_units(seen.median("ours")), str(ratio), "≤ 1.5", ratio.at_most(1.5),
            figures=dict(seen.seconds),
        )  # fmt: skip
        yield from reading(folder)


if __name__ == "__main__":
    main(rows, __doc__)
