"""Two ranks against one: time to a loss, communication, and a model of 64 ranks.

python benchmarks/prioritized/ranks.py [--json docs/prioritized-ranks.json] [--seeds 5] [--latency SECONDS]
    [--bandwidth BYTES_A_SECOND]: with that file, run.py --part page puts the tables on its page.

Takes less than five minutes on two quiet cores. One rank with a global batch of 64, and two with 32 each, train the
wide CNN on the easy-heavy images to the same loss, in turn, one thread a rank, by gloo under torchrun. `ASSUMPTIONS`
are those of the model, which is compared with what 2 and 4 ranks take here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

JOB = Path(__file__).with_name("rank_job.py")
RANKS = (1, 2, 4, 8, 16, 32, 64)
RANK_BATCH = 32
STEPS_DRAWN_COUNT = 20_000  # of the slowest of several ranks
ASSUMPTIONS = (
    "Each rank has a core, and computes as fast as a rank here does while its neighbour computes, too.",
    "A step waits for the slowest rank: times of ranks are independent, and spread as those measured.",
    "Gradients are reduced in a ring: 2 (W - 1) messages of 1/W of the bytes each, with a latency and a bandwidth "
    "fitted to all-reduces of 2 ranks over loopback; between machines give --latency and --bandwidth.",
    "Nothing of that is hidden behind the backward pass, since this model fits into DDP's first bucket.",
    "The method adds what it adds here; nothing of it depends on the number of ranks: each has its own shard.",
    "Ranks beyond the cores of this machine share them evenly: this enters only where 4 ranks are compared.",
)


class Link(NamedTuple):
    """What an all-reduce takes: seconds a message, and bytes a second."""

    latency: float
    bandwidth: float

    def seconds(self, ranks: int, size: float) -> float:
        """Return the seconds of a ring over so many ranks."""
        return 2 * (ranks - 1) * (self.latency + size / ranks / self.bandwidth)


def measured(world: int, *words: str) -> dict[str, Any]:
    """Run the job on ``world`` ranks under torchrun; return what it found."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, str(JOB), str(file), *words], check=True, env=env)
        found: dict[str, Any] = json.loads(file.read_text())
    return found


def fitted(reducing: dict[str, float], ranks: int) -> Link:
    """Fit a link to the seconds of all-reduces by the number of floats."""
    sizes = np.array([4.0 * int(values) for values in reducing])
    seconds = np.array(list(reducing.values()))
    weights = 1 / seconds  # relative errors count
    design = np.stack([np.ones_like(sizes), sizes], 1) * weights[:, None]
    start, each = np.linalg.lstsq(design, seconds * weights, rcond=None)[0]
    messages = 2 * (ranks - 1)
    return Link(max(float(start), 0.0) / messages, messages / ranks / max(float(each), 1e-15))


def slowest(seconds: list[float], ranks: int) -> float:
    """Return the mean time of the slowest of so many ranks."""
    drawn = np.random.default_rng(0).choice(seconds, (STEPS_DRAWN_COUNT // ranks, ranks))
    return float(drawn.max(1).mean())


def step_seconds(found: dict[str, Any], link: Link, ranks: int, crowd: float = 1.0) -> dict[str, float]:
    """Return the parts of a step of so many ranks, as the model has them."""
    computing = found["computing"][str(RANK_BATCH)]
    beside = found["beside"]
    own = max(0.0, beside["method_step"] - beside["plain_step"])
    mean = statistics.fmean(computing)
    parts = {
        "computing": crowd * mean, "waiting": crowd * (slowest(computing, ranks) - mean),
        "reducing": link.seconds(ranks, beside["bytes_a_step"]), "method": own if ranks > 1 else 0.0,
    }  # fmt: skip
    return parts | {"step": sum(parts.values())}


def results(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return all that the page needs."""
    quick = ["--quick"] if options.quick else []
    found, crowded = measured(2, "--seeds", str(options.seeds), *quick), measured(4, "--check")
    cores = len(os.sched_getaffinity(0))
    here = fitted(found["reducing"], 2)
    link = Link(options.latency or here.latency, options.bandwidth or here.bandwidth)
    runs = found["runs"]
    ratios = [run["one"]["seconds"] / run["all"]["seconds"] for run in runs]
    steps = [
        run["one"]["seconds"] / run["one"]["steps"] / (run["all"]["seconds"] / run["all"]["steps"]) for run in runs
    ]
    beside, one = found["beside"], statistics.fmean(found["alone"][str(RANK_BATCH)])
    checks = {
        str(ranks): {
            "predicted": step_seconds(found, here, ranks, max(1.0, ranks / cores))["step"],
            "measured": statistics.fmean(seen["together"]),
        }
        for ranks, seen in ((2, found), (4, crowded))
    }
    model = {}
    for ranks in RANKS:
        parts = step_seconds(found, link, ranks) if ranks > 1 else {"step": one, "computing": one}
        model[str(ranks)] = parts | {"throughput": ranks * one / parts["step"]}
    return {
        "cores": cores, "seeds": options.seeds, "runs": runs,
        "time_to_loss": {"ratios": ratios, "median": statistics.median(ratios), "firm": 1.7, "stretch": 1.85},
        "step_time": {"ratios": steps, "median": statistics.median(steps)},
        "communication": {
            **beside, "time_share": beside["method_step"] / beside["plain_step"] - 1,
            "bytes_share": 8.0 * 10 / (beside["bytes_a_step"] * statistics.median(run["all"]["steps"] for run in runs)),
            "firm": 0.05, "stretch": 0.01,
        },
        "link": link._asdict(), "fitted": here._asdict(), "checks": checks, "model": model, "assumptions": ASSUMPTIONS,
    }  # fmt: skip


def table(found: dict[str, Any]) -> list[str]:
    """Return the results as lines of Markdown."""
    speed, other = found["time_to_loss"], found["communication"]
    lines = [
        "| promise | measured | firm | stretch |", "|---|---|---|---|",
        f"| 2 ranks against 1, time to loss (median of {found['seeds']}: {spread(speed['ratios'])}) | "
        f"{speed['median']:.2f} × | 1.7 × {held(speed['median'] >= 1.7)} | 1.85 × {held(speed['median'] >= 1.85)} |",
        f"| the same, by step ({spread(found['step_time']['ratios'])}) | {found['step_time']['median']:.2f} × | | |",
        f"| bytes that the method sends beside those of plain DDP | {100 * other['bytes_share']:.4f} % | "
        f"5 % {held(other['bytes_share'] <= 0.05)} | 1 % {held(other['bytes_share'] <= 0.01)} |",
        f"| a step with the hook and gbar beside one of plain DDP | {100 * other['time_share']:+.1f} % | "
        f"5 % {held(other['time_share'] <= 0.05)} | 1 % {held(other['time_share'] <= 0.01)} |",
        "",
        f"A step of plain DDP takes {1e3 * other['plain_step']:.1f} ms, of which {1e3 * other['exposed']:.2f} ms are "
        f"waits for the reduction of {other['bytes_a_step'] / 1e6:.1f} MB.",
        "", "| ranks | step | computing | waiting for the slowest | reducing | examples a second, of one rank |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for ranks, one in found["model"].items():
        times = " | ".join(f"{1e3 * one.get(name, 0.0):.1f}" for name in ("computing", "waiting", "reducing"))
        lines.append(f"| {ranks} | {1e3 * one['step']:.1f} ms | {times} | {one['throughput']:.1f} × |")
    lines += ["", "Compared with what is measured here:", "", "| ranks | predicted | measured |", "|---|---|---|"]
    for ranks, one in found["checks"].items():
        lines.append(f"| {ranks} | {1e3 * one['predicted']:.1f} ms | {1e3 * one['measured']:.1f} ms |")
    return [*lines, "", "Assumptions:", "", *(f"- {text}" for text in found["assumptions"])]


def spread(values: list[float]) -> str:
    """Return the range of some numbers as text."""
    return f"{min(values):.2f}–{max(values):.2f}"


def held(good: bool) -> str:
    """Return a mark for a promise."""
    return "holds" if good else "does not hold"


def main() -> None:
    """Measure, print the table, and write the JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    arguments.add_argument("--latency", type=float)
    arguments.add_argument("--bandwidth", type=float)
    options = arguments.parse_args()
    found = results(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
