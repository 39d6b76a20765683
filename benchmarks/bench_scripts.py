"""What `looptap run` costs a script that does not mention looptap.

The same script, an MLP, runs in shuffled blocks of steps, one process at a time: in plain Python, under `looptap run`
without a client, and under `looptap run` with five streams of names that the script has. There are three processes of
each, as two of the same kind differ by more than what is looked for; the width of the MLP is what makes a step take the
time of its row. One of the scripts takes its batches
from a DataLoader, whose waits `looptap run` measures. Figures are wall time, the agent's I/O thread included. The
losses of all must be the same. The last row is what `looptap_auto.pth`, which pip installs with looptap, adds to
the start of an interpreter: two empty environments, one of which has the file.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness import HERE, Block, Measured, Row, in_units, interleave, main, program

import looptap

STEPS, ROUNDS, WARM_UP, PROCESSES = 40, 25, 2, 3
WIDTH = 640
STARTS = 150
"""Starts of each interpreter."""
QUERIES = [
    "loss, steps", "mean(e.loss for e in events)", "loss > 3 * mean(e.loss for e in recent(50))", "x.shape", "line",
]  # fmt: skip
RUN = ("-m", "looptap", "run", "--name")
PTH = HERE.parent / "src" / "looptap_auto.pth"


class Setting(NamedTuple):
    """A script that is measured, by what a step of it is called."""

    words: str
    seconds: float
    arguments: tuple[str, ...]
    queries: list[str]
    promised: float | None = None
    """The most that an idle step may take, as a ratio."""


SETTINGS = (
    Setting("a step of about 2 ms", 0.002, (), QUERIES),
    Setting("a step of about 5 ms", 0.005, (), QUERIES, 1.01),
    Setting(
        "a step of about 5 ms with batches of a DataLoader", 0.005, ("loader",), [*QUERIES[:-1], "data_seconds"], 1.01
    ),
)  # fmt: skip


class Script:
    """The script in a process of its own; the last loss of each block."""

    def __init__(self, arguments: tuple[str, ...], *how: str) -> None:
        command = [sys.executable, *how, str(HERE / "script_in_blocks.py"), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.losses: list[str] = []

    def block(self, steps: int) -> Block:
        def run() -> float:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(steps, file=self.process.stdin, flush=True)
            seconds, loss = self.process.stdout.readline().split()
            self.losses.append(loss)
            return float(seconds)

        return run

    def close(self) -> None:
        self.process.communicate()


def width(setting: Setting) -> str:
    """Return the width of the MLP whose step takes about as long as the setting says."""
    script = Script((str(WIDTH), *setting.arguments))
    script.block(STEPS)()
    took = script.block(STEPS)()
    script.close()
    return str(round(WIDTH * (setting.seconds / took) ** 0.5))


def of_scripts(rounds: int) -> Iterator[Row]:
    """Yield two rows of each setting."""
    for setting in SETTINGS:
        arguments = (width(setting), *setting.arguments)
        with contextlib.ExitStack() as stack:
            scripts: dict[str, list[Script]] = {}
            for kind in ("plain", "idle", "asked"):
                names = [f"{kind}-{len(setting.arguments)}-{setting.seconds:g}-{n}" for n in range(PROCESSES)]
                how = [() if kind == "plain" else (*RUN, name) for name in names]
                scripts[kind] = [Script(arguments, *one) for one in how]
                for script in scripts[kind]:
                    stack.callback(script.close)
                    script.block(2)()  # the agent starts with the first step
            runs = [stack.enter_context(looptap.attach(name, timeout=60)) for name in names]
            streams = [
                run.stream(query, on="step", window=100 if "events" in query else None)
                for run in runs for query in setting.queries
            ]  # fmt: skip
            every = {f"{kind} {n}": one.block(STEPS) for kind, those in scripts.items() for n, one in enumerate(those)}
            apart = interleave(every, rounds, warm_up=WARM_UP).seconds
            pooled = {kind: [each for n in range(PROCESSES) for each in apart[f"{kind} {n}"]] for kind in scripts}
            seen = Measured(pooled)
            assert len({tuple(script.losses) for those in scripts.values() for script in those}) == 1
            for stream, query in zip(streams, PROCESSES * setting.queries, strict=True):
                least = STEPS * rounds // (200 if "events" in query else 2)
                assert stream.arrived > least, [str(one) for one in streams]
        for name, what in (("idle", "no client"), ("asked", f"{len(setting.queries)} streams")):
            ratio, promised = seen.ratio(name, "plain"), setting.promised if name == "idle" else None
            yield Row(
                f"{setting.words} under `looptap run`, {what} (baseline: python)",
                in_units(seen.median("plain")),
                in_units(seen.median(name)),
                ratio.slower(),
                "" if promised is None else f"≤ {100 * promised - 100:.0f}% slower",
                None if promised is None else ratio.at_most(promised),
                figures=dict(seen.seconds),
            )


def of_starts(starts: int) -> Iterator[Row]:
    """Yield the row of an interpreter's start."""
    with tempfile.TemporaryDirectory() as folder:
        blocks: dict[str, Block] = {}
        for name in ("without", "with"):
            made = Path(folder, name)
            venv.create(made, symlinks=True)
            if name == "with":
                shutil.copy(PTH, next(made.glob("lib/python*/site-packages")))
            blocks[name] = program([str(made / "bin" / "python"), "-c", "pass"])
        seen = interleave(blocks, starts, warm_up=5)
    yield Row(
        "`python -c pass` with `looptap_auto.pth` in site-packages, LOOPTAP_AUTO not set (baseline: without the file)",
        in_units(seen.median("without")),
        in_units(seen.median("with")),
        seen.ratio("with", "without").slower(),
        figures=dict(seen.seconds),
    )


def rows(rounds: int = ROUNDS, starts: int = STARTS) -> Iterator[Row]:
    yield from of_scripts(rounds)
    yield from of_starts(starts)


if __name__ == "__main__":
    main(rows, __doc__)
