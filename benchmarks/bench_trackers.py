"""One scalar a step to a file, by other trackers and by looptap.

The trackers are TensorBoard, W&B, MLflow, Trackio and Aim; print and JSON lines are there for comparison. Each writes
1,000 values, half a millisecond apart, in a separate process; the rounds are shuffled, and each program reads its
values back and counts them. The figures are the CPU time of the calling thread inside the call, and of the process with
its children from the first call to the end of the run, including the loop's sleep, which is the same for all.

The packages are the real ones, in a separate environment; only the network, the console and their monitoring of the
machine are switched off: W&B offline, MLflow and Aim to a folder. looptap keeps a declared stream in its file. Left
out: starting, importing, a server or a page that shows the values, and what W&B would upload. A package that could not
be installed has no row. Aim's values are read before its run ends, and this reading counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import HERE, TRACKERS, Measured, Row, in_units, interleave, main

ROUNDS = 7
NAMES = {
    "tensorboard": "TensorBoard", "wandb": "W&B offline", "mlflow": "MLflow", "trackio": "Trackio", "aim": "Aim",
    "printed": "print to a file", "json_lines": "JSON lines",
}  # fmt: skip


class Way:
    """A block that runs one way to record; the CPU seconds of a step by round."""

    def __init__(self, name: str) -> None:
        self.python = sys.executable if name in ("looptap", "printed", "json_lines") else str(TRACKERS)
        self.name, self.version, self.process = name, "", list[float]()

    def __call__(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = [self.python, str(HERE / "peer_trackers.py"), self.name, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        found = json.loads(done.stdout.splitlines()[-1])
        self.version = found["version"]
        self.process.append(found["process"])
        return float(found["thread"])

    def works(self) -> bool:
        """Return True if its package is there; say which is not."""
        try:
            self()
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
            print(f"{self.name} is left out: {said}", file=sys.stderr)
            return False
        self.process.clear()
        return True


def rows() -> Iterator[Row]:
    ways = {name: way for name in (*NAMES, "looptap") if (way := Way(name)).works()}
    assert Path(ways["looptap"].python).exists()
    thread = interleave(ways, ROUNDS, warm_up=0)
    process = Measured({name: way.process for name, way in ways.items()})
    for name, shown in NAMES.items():
        if name not in ways:
            continue
        for what, seen in (("the calling thread", thread), ("the process", process)):
            yield Row(
                f"a scalar a step, CPU of {what}: {shown} {ways[name].version}".rstrip(),
                in_units(statistics.median(seen.seconds[name])),
                in_units(statistics.median(seen.seconds["looptap"])),
                str(seen.ratio("looptap", name)),
                figures={"theirs": seen.seconds[name], "looptap": seen.seconds["looptap"]},
            )


if __name__ == "__main__":
    main(rows, __doc__)
