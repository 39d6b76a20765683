"""Runs the benchmarks of this folder, and writes docs/benchmarks.md.

Each runs in its own process; there is a JSON file, too. `make bench` runs all of them; `make bench BENCH="emit_idle
import_time"` runs some and does not write that page. How costs grow has a page of its own, docs/scaling.md, which is
written whenever that benchmark has run.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scaling
from harness import HERE, Row, machine, show

DOCS = HERE.parent / "docs"

INTRODUCTION = """# Benchmarks

`make bench` measures all of this on your machine, and writes this page. Competing variants run interleaved in
shuffled blocks; a figure is a median, a ratio the ratio of two medians, with its 95 % interval from resampled
rounds in parentheses. A promise whose bound lies within that interval is open. Every connection of looptap is
encrypted; reader and loop are separate processes on one machine.
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
    """Return what the figures were measured on, in a sentence."""
    seen = machine()
    where = f"Seen on {seen.pop('cores')} cores of {seen.pop('processor')}, "
    return where + ", ".join(f"{name} {value}" for name, value in seen.items()) + "."


def page(rows: dict[str, list[Row]]) -> str:
    """Return docs/benchmarks.md."""
    lines = [INTRODUCTION, f"{seen_on()}\n"]
    lines += ["| what | baseline | looptap | ratio | promise | holds |", "|---|---|---|---|---|---|"]
    for row in (row for found in rows.values() for row in found):
        verdict = {True: "yes", False: "**no**", "open": "open", None: ""}[row.holds]
        cells = (row.what, row.baseline, row.ours, row.ratio, row.promise, verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("\n## What is measured against what\n")
    for name in rows:
        text = ast.get_docstring(ast.parse((HERE / f"bench_{name}.py").read_text())) or ""
        lines.append(f"**`benchmarks/bench_{name}.py`** {text}\n")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    wanted = parser.parse_args().names
    if unknown := sorted(set(wanted) - set(names())):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    rows: dict[str, list[Row]] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or names():
            print(f"{name} ...", flush=True)
            start = time.monotonic()
            found = measure(name, Path(folder))
            if found is None:
                failed.append(name)
                continue
            rows[name] = found
            show(found, f"{name} ({time.monotonic() - start:.0f} s)")
    if "scaling" in rows:
        lines = [row.figures for row in rows["scaling"] if "cells" in row.figures]
        (DOCS / "scaling.md").write_text(scaling.page(lines, seen_on()))
        print(f"Written: {DOCS.name}/scaling.md")
    if not wanted and not failed:
        DOCS.mkdir(exist_ok=True)
        (DOCS / "benchmarks.md").write_text(page(rows))
        figures = {"machine": machine(), "rows": {name: [vars(row) for row in rows[name]] for name in rows}}
        (DOCS / "benchmarks.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        print(f"Written: {DOCS.name}/benchmarks.md and {DOCS.name}/benchmarks.json")
    if failed:
        print(f"Failed: {', '.join(failed)}; nothing was written.", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
