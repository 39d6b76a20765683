"""`make bench-assistant`: instances and seconds to equal accuracy.

Writes docs/selection-benchmarks.md and .json, and the figures beside them. Each training is done once and kept in the
JSON file; delete it to do all again. ``--part noisy`` does one part; ``--quick`` is a smoke test that writes elsewhere.
``--part wall --tasks wide-cnn,characters --again`` times only these tasks, and those that were timed before once more.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import selection_chart
import selection_page
import selection_stages as stages
import torch
from selection_cost import costs
from selection_promises import IMAGES, WIDE, Figures, Promise, promises
from selection_runs import PLAIN, methods
from selection_stages import LESS, QUICK, Protocol, Results
from selection_tasks import TASKS

DOCS = Path(__file__).resolve().parents[2] / "docs"
ACCURACY, WALL, PAGE = "accuracy", "wall", "page"
"""Parts besides the tasks: a decaying rate, the clock, nothing but the page."""


def main() -> None:
    """Measure what is missing, write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--part", choices=[*TASKS, ACCURACY, WALL, PAGE], action="append")
    arguments.add_argument("--methods", type=lambda text: text.split(","), help="of the tasks; by default all")
    arguments.add_argument("--tasks", type=lambda text: text.split(","), default=[*TASKS], help="those that are timed")
    arguments.add_argument("--again", action="store_true", help="time also what was timed before")
    arguments.add_argument("--processes", type=int, help="that count instances; by default one for each core")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--into", type=Path)
    options = arguments.parse_args()
    into = options.into or (Path(tempfile.mkdtemp()) if options.quick else DOCS)
    torch.set_num_threads(1)
    results = Results(
        into / "selection-benchmarks.json", QUICK if options.quick else Protocol(), processes=options.processes
    )
    for part in options.part or [*TASKS, ACCURACY, WALL]:
        if part in TASKS:
            wanted = [PLAIN] if part == WIDE else options.methods or methods()
            stages.tune(results, part, wanted)
            if part != WIDE:
                stages.judge(results, part, wanted)
        elif part == ACCURACY:
            for task in IMAGES:
                stages.decaying(results, task)
        elif part == WALL:
            stages.timed(results, options.tasks, again=options.again)
            results.costs = costs()
            results.write()
    for promise in write(results, into):
        print(f"{'holds' if promise.firm else 'NOT HELD'}: {promise.what}: {promise.measured}")
    print(f"Written: {into / 'selection-benchmarks.md'}")


def write(results: Results, into: Path) -> list[Promise]:
    """Write the page and the figures from what is there; return the promises."""
    figures, every = Figures(results), methods()
    found = promises(figures)
    lines = [*selection_page.head(figures), *selection_page.kept(found), *selection_page.tables(figures, every)]
    lines += [
        *selection_page.times(figures),
        *selection_page.paper(figures, every),
        *selection_page.decaying(figures, LESS),
    ]
    lines += [*selection_page.tuned(figures, every), *selection_page.history()]
    selection_chart.over_instances(into / "selection-instances.png", figures, every)
    selection_chart.over_time(into / "selection-time.png", figures, every)
    (into / "selection-benchmarks.md").write_text("\n".join(lines) + "\n")
    return found


if __name__ == "__main__":
    main()
