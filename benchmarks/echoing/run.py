"""What does echoing save? `make bench-echo`, half an hour on two cores.

Measures a slow server, digits and a transformer. Writes docs/echoing-benchmarks.md and .json, and the figure beside
them. ``--seeds 1`` is a quick look.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import baselines_page
import digit_files
import echo_chart
import echo_page
import fresh_to_target
import stage_cost
import time_to_target
import torch
from echoed_training import Outcome
from file_server import serving
from fresh_to_target import Job, best, finals, grid, jobs, rows
from promises import Fast, Waiting, promises
from rich.console import Console
from rich.progress import track

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Measure everything, and write the page."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=len(fresh_to_target.SEEDS))
    arguments.add_argument("--into", type=Path, default=DOCS)
    options = arguments.parse_args()
    seeds, into = tuple(range(options.seeds)), options.into
    torch.set_num_threads(1)
    begun = time.monotonic()
    tried = grid()
    rates = {(task, size): best(tried, task, size) for task, sizes in fresh_to_target.SIZES.items() for size in sizes}
    rate = rates["digits", 64]
    fresh = fresh_to_target.all_done(jobs([r for part in rows().values() for r in part], rates, seeds), "fresh data")
    timed, waiting, latency = _timed(rate, seeds, fresh)
    fast = [time_to_target.fast(rate, seed) for seed in track(seeds, "where R < 1")]
    costs = stage_cost.costs()
    last = finals(rate, seeds)
    kept = promises(timed, fast, last, waiting, costs)
    lines = [echo_page.head(seeds), *echo_page.kept(kept), *echo_page.times(timed, latency), *echo_page.fed(fast)]
    lines += [*echo_page.tables(fresh), *echo_page.equal(last), *echo_page.cost(costs), *echo_page.tuned(tried)]
    minutes = (time.monotonic() - begun) / 60
    lines.append(f"All of the above took {minutes:.0f} minutes on {os.cpu_count()} cores.")
    if (alternatives := into / "echoing-baselines.json").exists():
        lines += ["", *baselines_page.lines(json.loads(alternatives.read_text()))]
    echo_chart.draw(into / "echoing-speedup.png", timed, fresh)
    (into / "echoing-benchmarks.md").write_text("\n".join(lines) + "\n")
    beside: dict[str, Fast | Waiting] = {"fast": fast, "waiting": waiting}
    _write(into / "echoing-benchmarks.json", timed, beside, {**tried, **fresh, **last}, costs)
    for promise in kept:
        print(f"{'holds' if promise.held else 'MISSED'}: {promise.what}: {promise.measured} ({promise.baseline})")


def _timed(
    rate: float, seeds: tuple[int, ...], fresh: dict[Job, Outcome]
) -> tuple[time_to_target.Timed, Waiting, float]:
    """Train with all factors in turn, seed by seed, starting with another each time."""
    timed: time_to_target.Timed = {time_to_target.named(factor): [] for factor in time_to_target.FACTORS}
    console = Console()
    with serving(digit_files.files()[0]) as server:
        up, down = time_to_target.calibrate(server, rate)
        console.print(f"R = {up / down:.2f}: {up * 1e3:.1f} ms a fresh batch, {down * 1e3:.1f} ms a step; "
                      f"latency {server.latency * 1e3:.2f} ms")  # fmt: skip
        turns = [(seed, at) for seed in seeds for at in range(len(time_to_target.FACTORS))]
        for seed, at in track(turns, "from the server", console=console):
            factor = time_to_target.FACTORS[(at + seed) % len(time_to_target.FACTORS)]
            steps = fresh_to_target.steps_of(fresh, factor, seed)
            outcome = time_to_target.run(server, factor, rate, seed, steps=steps, target=True)
            timed[time_to_target.named(factor)].append(outcome)
            console.print(f"seed {seed}, e = {factor}: {outcome.seconds:.1f} s, {outcome.steps} steps, "
                          f"R = {outcome.up / outcome.down:.2f}")  # fmt: skip
        few = seeds[: fresh_to_target.FEW]
        waiting = [time_to_target.waiting(server, rate, seed) for seed in track(few, "beside a bare loader")]
        return timed, waiting, server.latency


def _write(path: Path, timed: time_to_target.Timed, beside: dict[str, Fast | Waiting], found: dict[Job, Outcome],
           costs: dict[tuple[str, int], tuple[float, float, float]]) -> None:  # fmt: skip
    def plain(outcome: Outcome) -> dict[str, object]:
        scores = [[round(at, 3), round(score, 4)] for at, score in outcome.scores]
        return {"reached": outcome.reached, "steps": outcome.steps, "fresh": outcome.fresh, "scores": scores,
                "seconds": round(outcome.seconds, 3)}  # fmt: skip

    from_server = {
        name: [plain(one) | {"up": one.up, "down": one.down, "factor": one.factor} for one in every]
        for name, every in timed.items()
    }
    data = {
        "timed": from_server,
        **beside,
        "in memory": [job._asdict() | plain(one) | {"scores": one.scores[-1:]} for job, one in found.items()],
        "costs": [[mode, workers, *cost] for (mode, workers), cost in costs.items()],
    }  # fmt: skip
    path.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
