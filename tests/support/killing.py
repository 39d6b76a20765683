"""Kills processes that record values, and checks what their files still hold.

python killing.py FOLDER ROUNDS LONGEST: each round forks ten children that count up, and kills each at a random time,
after LONGEST seconds at most; in every other round not before values of all are committed. A child reports how many
values are committed. Printed at the end as JSON: how many were killed, how many had a file with values, and the longest
time in seconds between a lost value and the last that was written.
"""

import json
import os
import random
import shutil
import signal
import struct
import sys
import time
from array import array
from pathlib import Path

import looptap
from looptap.store.writer import Writer
from looptap.streams.stream.buffer import Batch

CHILDREN = 10


def keep(folder: Path, number: int) -> None:
    """Count up until killed."""
    reported = os.open(folder / f"{number}.reported", os.O_CREAT | os.O_WRONLY)
    writer = Writer(folder / f"{number}.looptap", {"id": str(number)})
    stream, first = writer.stream("n"), 1
    while True:
        values = list(range(first, first + 20))
        times = array("d", [time.monotonic()]) * 20
        writer.append(stream, Batch(first, array("q", values), times, values, time.time() - times[0], nbytes=1000))
        first += 20
        os.pwrite(reported, struct.pack("<qqd", writer.stats().kept, first - 1, time.monotonic()), 0)
        time.sleep(0.0005)


def kill_all(folder: Path, longest: float, chance: random.Random, *, after: bool) -> list[tuple[int, float]]:
    """Run one round; return each child's number of values, and the seconds lost."""
    folder.mkdir()
    children = []
    for number in range(CHILDREN):
        if (child := os.fork()) == 0:
            keep(folder, number)
        children.append(child)
    reported = [folder / f"{number}.reported" for number in range(CHILDREN)]
    while not all(path.exists() and path.stat().st_size for path in reported):  # a busy machine takes its time
        time.sleep(0.001)
    while after and not all(struct.unpack("<qqd", path.read_bytes())[0] for path in reported):
        time.sleep(0.001)
    begun = time.monotonic()
    for delay, child in sorted((chance.uniform(0, longest), child) for child in children):
        time.sleep(max(0.0, begun + delay - time.monotonic()))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = [checked(folder, number) for number in range(CHILDREN)]
    shutil.rmtree(folder)
    return found


def checked(folder: Path, number: int) -> tuple[int, float]:
    reported, path = folder / f"{number}.reported", folder / f"{number}.looptap"
    committed, _, last = struct.unpack("<qqd", reported.read_bytes())
    if not path.exists() and committed == 0:
        return 0, 0.0
    with looptap.open(path) as run:
        records = run.streams[0].records if run.streams else []
    values = [record.value for record in records]
    assert values == list(range(1, len(values) + 1)), "values are a prefix"
    assert len(values) >= committed, "what was committed is there"
    return len(values), last - records[-1].time if records else 0.0


if __name__ == "__main__":
    chance = random.Random(7)
    place, rounds, longest = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    found = [one for n in range(rounds) for one in kill_all(place / str(n), longest, chance, after=bool(n % 2))]
    with_values = [lost for count, lost in found if count]
    print(json.dumps({"killed": len(found), "with_values": len(with_values), "longest": max(with_values)}))
