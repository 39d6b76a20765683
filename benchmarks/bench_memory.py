"""Memory of a job at 1,000 events/s with 16 clients that query and never read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
from harness import Row, main
from reader import run

CLIENTS, SECONDS = 16, 5.0
DEAF = """
import os, signal, sys, looptap
run = looptap.attach()
streams = [run.stream(q, on="batch") for q in ("step, loss", "x")]
print("attached", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def rows() -> Iterator[Row]:
    mine, array = psutil.Process(), np.ones(2500, np.float32)
    with run() as agent:
        deaf = [
            subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)
        ]
        try:
            for process in deaf:
                assert process.stdout is not None
                process.stdout.readline()
            before, peak, step, began = mine.memory_info().rss, 0, 0, time.monotonic()
            while time.monotonic() - began < SECONDS:
                agent.emit("batch", step=step, loss=0.5, x=array)
                step += 1
                time.sleep(max(0.0, began + step / 1000 - time.monotonic()))
                if step % 100 == 0:
                    peak = max(peak, mine.memory_info().rss)
            dropped = agent.stats()["dropped"]
        finally:
            for process in deaf:
                process.kill()
                process.wait()
                process.stdout.close()
    grown = (peak - before) / 2**20
    yield Row(
        f"16 clients that never read, {SECONDS:g} s of 1,000 events/s with 10 kB each: memory grown by "
        f"({dropped:,} values dropped and counted)",
        f"{before / 2**20:.0f} MiB before",
        f"{grown:.1f} MiB",
        "",
        "< 64 MiB",
        grown < 64,
        figures={"grown": grown, "dropped": dropped},
    )


if __name__ == "__main__":
    main(rows, __doc__)
