"""Seconds from the command to the loss curve of a job that declares nothing.

The job has run for a while, and exposes nothing either; loop and screen are processes on one machine. Each round begins
with a fresh interpreter, whose own start is included: for the terminal a program on a pseudoterminal, for the notebook
a program that imports looptap, attaches, and creates an overview with its charts.
"""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence

from harness import Block, Row, in_units, interleave, main
from reader import run

ROUNDS = 9
TIMEOUT_SECONDS = 60.0
OVERVIEW = """
import looptap
run = looptap.attach("bench")
shown = looptap.overview(run)
assert any(stream.name == "loss" and stream.arrived for stream in run.attached)
shown.close()
run.close()
"""


_cpu: dict[str, list[float]] = {}


def on_screen(name: str, arguments: Sequence[str]) -> float:
    """Return the seconds until a program on a terminal shows a curve of the loss."""
    began = time.perf_counter()
    child, terminal = pty.fork()
    if not child:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "looptap.cli", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    shown = ""
    try:
        while not ("loss" in shown and any("\u2801" <= letter <= "\u28ff" for letter in shown)):
            assert select.select([terminal], [], [], TIMEOUT_SECONDS)[0], shown
            shown += os.read(terminal, 65_536).decode(errors="replace")
        return time.perf_counter() - began
    finally:
        os.kill(child, signal.SIGKILL)
        _note(name, os.wait4(child, 0)[2])
        os.close(terminal)


def overview(name: str) -> float:
    """Return the seconds until a program has made an overview with the loss."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", OVERVIEW])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode
    _note(name, usage)
    return time.perf_counter() - began


def _note(name: str, usage: resource.struct_rusage) -> None:
    _cpu.setdefault(name, []).append(usage.ru_utime + usage.ru_stime)


def rows() -> Iterator[Row]:
    over = threading.Event()
    with run() as agent:

        def train() -> None:
            step = 0
            while not over.wait(0.002):
                agent.emit("batch", step=step, loss=1 / (step + 1))
                step += 1

        thread = threading.Thread(target=train)
        thread.start()
        top, plot = "looptap top RUN", "looptap plot RUN, in a terminal"
        notebook = "looptap.overview(run), imports included"
        screens: dict[str, Block] = {
            top: lambda: on_screen(top, ["top", agent.run.id]),
            plot: lambda: on_screen(plot, ["plot", agent.run.id, "--in", "terminal"]),
            notebook: lambda: overview(notebook),
        }
        seen = interleave(screens, ROUNDS)
        over.set()
        thread.join()
    for name in screens:
        median, worst = seen.median(name), max(seen.seconds[name])
        yield Row(
            f"{name}: to the curve of the loss of a job that declares nothing",
            "",
            f"{in_units(median)}, at most {in_units(worst)}; CPU {in_units(statistics.median(_cpu[name]))}",
            "",
            "≤ 2 s",
            median <= 2.0,
            figures={name: seen.seconds[name]},
        )


if __name__ == "__main__":
    main(rows, __doc__)
