"""Comparison of one thing against another on a machine with other work.

A block is a function that does the work many times and returns the seconds of one operation. Competing blocks
run interleaved, in an order shuffled in each round, so that a slow moment of the machine hits them all;
the figure is the ratio of their medians, with a 95% interval from resampling whole rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from looptap.streams.native.compiled import which_tap

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-tensorwatch" / "bin" / "python"
"""The interpreter that has TensorWatch."""
TRACKERS = HERE.parent / ".venv-trackers" / "bin" / "python"
"""The interpreter that has the trackers looptap is compared with."""

Block = Callable[[], float]


def promised(compiled: float, pure: float) -> float:
    """Return which of two promises holds for the tap that runs here."""
    return pure if which_tap() == "pure Python" else compiled


@dataclass(frozen=True)
class Row:
    """A line of the table: what, baseline, figures, and if the promise holds."""

    what: str
    baseline: str
    ours: str
    ratio: str = ""
    promise: str = ""
    holds: bool | str | None = None
    """Whether the promise holds; "open" if its bound lies within the interval."""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """median(ours) / median(baseline), and the range of 95% of resampled ratios."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g}–{self.high:.3g})"

    def at_most(self, bound: float) -> bool | str:
        """Return whether the ratio is at most ``bound``, or "open"."""
        return "open" if self.low <= bound < self.high else self.high <= bound

    def at_least(self, bound: float) -> bool | str:
        """Return whether the ratio is at least ``bound``, or "open"."""
        return "open" if self.low < bound <= self.high else self.low >= bound

    def slower(self) -> str:
        """Return it as a slow-down in percent."""
        value, low, high = (100 * ratio - 100 for ratio in (self.value, self.low, self.high))
        return f"{value:+.1f}% ({low:+.1f} to {high:+.1f})"


class Measured:
    """The result of `interleave`: seconds of one operation, by block and round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = seconds

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, ours: str, baseline: str, draws: int = 4000) -> Ratio:
        """Return the ratio of two blocks; rounds are resampled as pairs: drift is common."""
        above, below = np.array(self.seconds[ours]), np.array(self.seconds[baseline])
        pick = np.random.default_rng(1).integers(0, len(above), (draws, len(above)))
        ratios = np.median(above[pick], axis=1) / np.median(below[pick], axis=1)
        low, high = np.quantile(ratios, [0.025, 0.975])
        return Ratio(float(np.median(above) / np.median(below)), float(low), float(high))


def interleave(
    blocks: Mapping[str, Block], rounds: int, *, warm_up: int = 1, settle: float = 0.0, seed: int = 1
) -> Measured:
    """Run each block once a round, shuffled, ``settle`` seconds apart; warm up first."""
    order, shuffler = list(blocks), random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(-warm_up, rounds):
        shuffler.shuffle(order)
        for name in order:
            time.sleep(settle)
            took = blocks[name]()
            if number >= 0:
                seconds[name].append(took)
    return Measured(seconds)


def program(command: Sequence[str]) -> Block:
    """Return a block that runs a program and returns how long that took."""

    def block() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    return block


@contextlib.contextmanager
def helper(script: str, *arguments: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run a script of this folder in another process; closing its input ends it."""
    command = [python, str(HERE / script), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(process: subprocess.Popen[str], **request: Any) -> Any:
    """Send a helper a JSON line, if there is a request; return its JSON reply."""
    if request:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"{process.args} ended with status {process.wait()} instead of answering.")
    return json.loads(answer)


def in_units(seconds: float) -> str:
    """Return seconds in the unit that suits them."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 0.9995:  # else it would be written as 1e+03 of the next unit
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def rate(per_second: float, unit: str = "/s") -> str:
    return f"{per_second:,.0f} {unit}".replace(" /s", "/s")


def machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    versions = {}
    for name in ("torch", "pyzmq", "msgspec", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def put_section(page: Path, heading: str, text: str) -> None:
    """Replace the section of a page under a heading; without it, append one."""
    above, _, below = page.read_text().partition(f"\n## {heading}\n")
    following = "".join(below.partition("\n## ")[1:])
    page.write_text(f"{above.rstrip()}\n\n## {heading}\n\n{text.strip()}\n{following}")


def show(rows: Iterable[Row], title: str = "") -> None:
    table = Table(title=title, title_justify="left")
    for column in ("what", "baseline", "ours", "ratio", "promise", "holds"):
        table.add_column(column, overflow="fold")
    for row in rows:
        verdict = {True: "[green]yes", False: "[red]no", "open": "open", None: ""}[row.holds]
        table.add_row(escape(row.what), row.baseline, row.ours, row.ratio, row.promise, verdict)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def main(rows: Callable[[], Iterable[Row]], description: str | None) -> None:
    """Run one benchmark: its table, or JSON for `run.py` with ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    found = list(rows())
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in found]))
    else:
        show(found)
