"""Values per second that a run keeps in its file, compared with bare sqlite3.

Both get the same rows: 200,000 of `step, loss` in batches of 512. The time runs from the first batch until the last is
committed. The baseline is written by hand: packed with msgspec, `executemany` with a commit for each 1,000 rows, into
the same table with the same settings. Both run alone, and on a thread beside a loop of pure Python, where the
interpreter lock changes hands with every statement (bare sqlite3 gets 20,000 rows there). The cost for the I/O thread
is the time of `append`. The cost for the loop is how much slower it counts while 1,000 and 10,000 values a second are
kept.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
from harness import Row, in_units, interleave, main, rate

from looptap.store.layout import schema
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch

ROWS, BATCH, COMMIT, FEW = 200_000, 512, 1000, 20_000
COUNTS = 3_000_000


def batches(count: int) -> list[Batch]:
    return [
        Batch(
            first + 1,
            array("q", range(first, min(first + BATCH, count))),
            array("d", [0.001 * n for n in range(first, min(first + BATCH, count))]),
            [(n, 1 / (n + 1)) for n in range(first, min(first + BATCH, count))],
            1e9,
            nbytes=64 * BATCH,
        )
        for first in range(0, count, BATCH)
    ]


def kept(folder: Path, handing: list[float], count: int) -> float:
    """Return the seconds for each row that the writer commits."""
    data = batches(count)
    writer = Writer(folder / f"{time.monotonic_ns()}.looptap")
    stream = writer.stream("loss", fields=("step", "loss"))
    begun = time.perf_counter()
    for batch in data:
        assert writer.append(stream, batch)
    handing.append((time.perf_counter() - begun) / count)
    while writer.stats().kept < count:
        time.sleep(0.001)
    took = time.perf_counter() - begun
    assert writer.close(60)
    writer.path.unlink()
    return took / count


def bare(folder: Path, count: int) -> float:
    """Return the seconds for each row by hand."""
    path, encode = folder / f"{time.monotonic_ns()}.db", msgspec.msgpack.Encoder().encode
    data, done = batches(count), []

    def write() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            schema.create(connection)
            begun = time.perf_counter()
            rows = []
            for batch in data:
                numbered = zip(batch.events, batch.times, batch.values, strict=True)
                rows += [
                    (1, number, event, 0, seconds, seconds + 1e9, 0, None, encode(value))
                    for number, (event, seconds, value) in enumerate(numbered, batch.first)
                ]
                if len(rows) >= COMMIT or batch is data[-1]:
                    connection.execute("BEGIN")
                    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                    connection.execute("COMMIT")
                    rows = []
            done.append(time.perf_counter() - begun)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    path.unlink()
    return done[0] / count


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Run a thread of pure Python that never waits."""
    over = False

    def work() -> None:
        count = 0
        while not over:
            count += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over = True
        thread.join()


def beside(block, *arguments: object) -> float:
    with busy():
        return block(*arguments)


def counting(folder: Path, per_second: int) -> float:
    """Return the seconds of a loop's turn while so many values a second are kept."""
    over = threading.Event()
    writer = Writer(folder / f"{time.monotonic_ns()}.looptap")
    stream = writer.stream("loss", fields=("step", "loss"))

    def hand_over() -> None:
        first = 1
        while not over.wait(0.05):
            count = per_second // 20
            columns = array("q", range(count)), array("d", bytes(8 * count)), [(n, 0.5 / (n + 1)) for n in range(count)]
            writer.append(stream, Batch(first, *columns, 1e9, nbytes=64 * count))
            first += count

    thread = threading.Thread(target=hand_over)
    if per_second:
        thread.start()
    begun, count = time.perf_counter(), 0
    while count < COUNTS:
        count += 1
    took = time.perf_counter() - begun
    over.set()
    if per_second:
        thread.join()
        assert writer.close(60)
        writer.path.unlink(missing_ok=True)
    return took / COUNTS


def rows() -> Iterator[Row]:
    handing: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = {"ours": lambda: kept(folder, handing, ROWS), "bare": lambda: bare(folder, ROWS)}
        seen = interleave(alone, rounds=7)
        crowded = {"ours": lambda: beside(kept, folder, [], ROWS), "bare": lambda: beside(bare, folder, FEW)}
        pressed = interleave(crowded, rounds=7)
        loops = {str(rate): lambda rate=rate: counting(folder, rate) for rate in (0, 1000, 10_000)}
        slowed = interleave(loops, rounds=15)
    for measured, where in ((seen, "alone"), (pressed, "beside a loop of pure Python")):
        got = 1 / measured.median("ours")
        yield Row(
            f"values kept per second, {where} (baseline: bare sqlite3, executemany)",
            rate(1 / measured.median("bare")),
            rate(got),
            str(measured.ratio("bare", "ours")),
            "≥ 100,000/s" if measured is seen else "",
            got >= 100_000 if measured is seen else None,
            figures=dict(measured.seconds),
        )
    for per_second in ("1000", "10000"):
        yield Row(
            f"a loop of pure Python while {int(per_second):,} values a second are kept (baseline: none)",
            in_units(slowed.median("0")), in_units(slowed.median(per_second)),
            slowed.ratio(per_second, "0").slower(), figures={"seconds": slowed.seconds[per_second]},
        )  # fmt: skip
    handing.sort()
    yield Row(
        f"handing a value over to be kept, in batches of {BATCH}", "", in_units(handing[len(handing) // 2]),
        figures={"seconds": handing},
    )  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
