"""`make bench-prioritized`: gradients to equal loss, and the paper's figures.

Writes docs/prioritized-benchmarks.md and .json, and the figures beside them. Each training is done once and kept in the
JSON files; delete them to do all again. ``--part easy-heavy`` does one part; ``--quick`` is a smoke test that writes
elsewhere.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pgd_page
import pgd_paper
import torch
from pgd_runs import METHODS, VARIANTS, PrioritizedResults
from selection_runs import Job
from selection_stages import QUICK, Protocol, Tuned, tune

DOCS = Path(__file__).resolve().parents[2] / "docs"
TASKS = ("easy-heavy", "imbalanced", "balanced", "cnn")
"""Those of the selection's benchmark that are done."""
PAPER, PAGE = "paper", "page"
"""Parts besides the tasks: its figures, nothing but the page."""
PROGRAMS = {"cost": "priority_cost.py", "ranks": "ranks.py"}
"""Parts that need a quiet machine, done only when asked for: what exact priorities cost, and several ranks."""


def main() -> None:
    """Measure what is missing, write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--part", choices=[*TASKS, PAPER, *PROGRAMS, PAGE], action="append")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--into", type=Path)
    arguments.add_argument("--processes", type=int)
    options = arguments.parse_args()
    into = options.into or (Path(tempfile.mkdtemp()) if options.quick else DOCS)
    torch.set_num_threads(1)
    protocol = QUICK if options.quick else Protocol()
    shared = (into if options.quick else DOCS) / "selection-benchmarks.json"
    results = PrioritizedResults(into / "prioritized-benchmarks.json", protocol, shared, options.processes)
    paper = pgd_paper.Paper(into / "prioritized-paper.json", quick=options.quick, processes=options.processes)
    for part in options.part or [*TASKS, PAPER]:
        if part in TASKS:
            judge(results, part)
        elif part == PAPER:
            paper.run()
        elif part in PROGRAMS:
            command = [sys.executable, str(Path(__file__).with_name(PROGRAMS[part]))]
            subprocess.run([*command, "--json", str(into / f"prioritized-{part}.json")], check=True)
    pgd_page.write(results, paper, into, TASKS)
    print(f"Written: {into / 'prioritized-benchmarks.md'}")


def judge(results: PrioritizedResults, task: str) -> None:
    """Tune the rates of all methods, and run the judged seeds to the end."""
    tune(results, task, [*(method for method in METHODS if method not in VARIANTS), *VARIANTS])
    tuned, budget = Tuned(results, task), results.protocol.budget
    jobs = [(Job(task, method, tuned.rate(method), seed, budget), math.inf)
            for seed in results.protocol.judged for method in METHODS]  # fmt: skip
    results.done(jobs, f"{task}: judged seeds")


if __name__ == "__main__":
    main()
