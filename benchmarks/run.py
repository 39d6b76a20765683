"""Runs the benchmarks of this folder, and writes docs/benchmarks.md.

Each runs in its own process. `make bench` runs all of them; `make bench BENCH="emit_idle import_time"` runs some, and
the page keeps what it has of the others. The figures are in docs/benchmarks.json, written after each benchmark. How
costs grow is a section of docs/costs.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import scaling
from harness import HERE, Row, machine, put_section, show

DOCS = HERE.parent / "docs"
FIGURES = DOCS / "benchmarks.json"

INTRODUCTION = """# Benchmarks

`make bench` measures everything here on your machine, and writes this page. If you only want to know what looptap
costs, read [what it costs, and why](costs.md).

Variants that are compared run in shuffled, interleaved blocks. A figure is a median. A ratio is the ratio of two
medians; its 95% interval, from resampled rounds, is in parentheses. A promise is open if its bound lies within that
interval. All connections of looptap are encrypted. Reader and loop are separate processes on one machine. "Load" is the
load of the machine before the benchmark began; 0 means that it does nothing else.
"""


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def measure(name: str, folder: Path) -> list[Row] | None:
    """Return the rows of one benchmark; None if it failed."""
    result = folder / f"{name}.json"
    command = [sys.executable, str(HERE / f"bench_{name}.py"), "--json", str(result)]
    if subprocess.run(command).returncode:
        return None
    return [Row(**row) for row in json.loads(result.read_text())]


def seen_on() -> str:
    """Return the machine of the measurement as a sentence."""
    seen = machine()
    where = f"Measured on {seen.pop('cores')} cores of {seen.pop('processor')}, "
    return where + ", ".join(f"{name} {value}" for name, value in seen.items()) + "."


class Measured(NamedTuple):
    """What one benchmark found."""

    load: float | None
    rows: list[Row]


def page(found: dict[str, Measured]) -> str:
    """Return docs/benchmarks.md."""
    lines = [INTRODUCTION, f"{seen_on()}\n"]
    lines += ["| what | baseline | looptap | ratio | promise | holds |", "|---|---|---|---|---|---|"]
    for row in (row for measured in found.values() for row in measured.rows):
        verdict = {True: "yes", False: "**no**", "open": "open", None: ""}[row.holds]
        cells = (row.what, row.baseline, row.ours, row.ratio, row.promise, verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("\n## What each benchmark measures\n")
    for name, measured in found.items():
        text = ast.get_docstring(ast.parse((HERE / f"bench_{name}.py").read_text())) or ""
        load = "" if measured.load is None else f" Load {measured.load:.1f}."
        lines.append(f"**`benchmarks/bench_{name}.py`** {text}{load}\n")
    return "\n".join(lines)


def measured_before() -> dict[str, Measured]:
    """Return what docs/benchmarks.json has of the benchmarks that exist."""
    try:
        found = json.loads(FIGURES.read_text())["found"]
    except (OSError, KeyError):
        return {}
    known = names()
    return {name: Measured(load, [Row(**row) for row in rows]) for name, (load, rows) in found.items() if name in known}


def write(found: dict[str, Measured]) -> None:
    """Write the page and its figures."""
    ordered = {name: found[name] for name in names() if name in found}
    (DOCS / "benchmarks.md").write_text(page(ordered))
    rows = {name: (measured.load, [vars(row) for row in measured.rows]) for name, measured in ordered.items()}
    FIGURES.write_text(json.dumps({"machine": machine(), "found": rows}, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    wanted = parser.parse_args().names
    if unknown := sorted(set(wanted) - set(names())):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    found, failed = measured_before(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or names():
            print(f"{name} ...", flush=True)
            start, load = time.monotonic(), os.getloadavg()[0]
            rows = measure(name, Path(folder))
            if rows is None:
                failed.append(name)
                continue
            found[name] = Measured(round(load, 2), rows)
            write(found)
            show(rows, f"{name} ({time.monotonic() - start:.0f} s)")
            if name == "scaling":
                lines = [row.figures for row in rows if "cells" in row.figures]
                put_section(DOCS / "costs.md", scaling.HEADING, scaling.section(lines, seen_on()))
    print(f"Written: {DOCS.name}/benchmarks.md and {DOCS.name}/benchmarks.json")
    if failed:
        print(f"Failed, so the page keeps their earlier figures: {', '.join(failed)}.", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
