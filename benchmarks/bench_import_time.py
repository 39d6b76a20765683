"""How long looptap takes to start, compared with `import numpy, zmq`.

Each runs in a fresh interpreter, whose own start is included. The names of looptap are lazy: `looptap.Agent` loads all
modules that a loop needs, so that nothing is loaded later, while the job trains, forks, or is upgraded. Commands are
measured by their processor time; there is one run to list.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Block, Row, in_units, interleave, main, program
from reader import run

AGENT = "import looptap; looptap.Agent('x')"
ROWS = {"import looptap": None, "import looptap; looptap.Agent": None, AGENT: 1.2}
"""What Python runs, and the most that is promised, as a ratio to the baseline."""
COMMANDS = {"--version": 0.15, "ls": 0.4}
"""Commands, and the seconds of processor time that are promised."""
PROGRAM = str(Path(sys.executable).with_name("looptap"))


def processor_time(command: list[str]) -> Block:
    """Return a block that runs a program and returns its processor time."""

    def block() -> float:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        return usage.ru_utime + usage.ru_stime

    return block


def rows() -> Iterator[Row]:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the warm-up leaves the byte code that an installation has
    codes = {"nothing": "pass", "baseline": "import numpy, zmq", **{code: code for code in ROWS}}
    blocks = {name: program([sys.executable, "-c", code]) for name, code in codes.items()}
    blocks |= {name: processor_time([PROGRAM, name]) for name in COMMANDS}
    with run():
        seen = interleave(blocks, rounds=20)
    start = in_units(seen.median("nothing"))
    for code, most in ROWS.items():
        ratio = seen.ratio(code, "baseline")
        yield Row(
            f"{code} (baseline: import numpy, zmq), of which {start} are the interpreter's",
            in_units(seen.median("baseline")), in_units(seen.median(code)), str(ratio),
            f"≤ {most:g}" if most else "", ratio.at_most(most) if most else None,
            figures={"ours": seen.seconds[code], "baseline": seen.seconds["baseline"]},
        )  # fmt: skip
    for name, most in COMMANDS.items():
        took = seen.median(name)
        yield Row(
            f"looptap {name}: processor time", "", in_units(took), "", f"≤ {in_units(most)}", took <= most,
            figures={"seconds": seen.seconds[name]},
        )  # fmt: skip


if __name__ == "__main__":
    main(rows, __doc__)
