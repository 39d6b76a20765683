"""Two ranks against one: time to a loss, communication, and a model of 64 ranks.

python benchmarks/prioritized/ranks.py [--json docs/prioritized-ranks.json] [--seeds 5] [--latency SECONDS]
    [--bandwidth BYTES_A_SECOND]: with that file, run.py --part page puts the tables on its page.

Takes about ten minutes on two quiet cores. One rank with a global batch of 64, and two with 32 each, train a CNN on the
easy-heavy images to the same loss, in turn, one thread a rank, by gloo under torchrun: a small one, then a large one,
for which the promises are judged, since jobs on several ranks have long steps. `ASSUMPTIONS` are those of the model,
which is compared with what 2 and 4 ranks take here.
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
CHANNELS = {"small": 72, "large": 176}
"""Of the first convolution of each CNN."""
RANKS = (1, 2, 4, 8, 16, 32, 64)
STEPS_DRAWN_COUNT = 20_000  # of the slowest of several ranks
FIRM, STRETCH = 1.7, 1.85
"""Promised: how much faster two ranks are than one."""
FIRM_SHARE, STRETCH_SHARE = 0.05, 0.01
"""Promised: of a step of plain DDP, what the method may add."""
MODEL_TOLERANCE_SHARE = 0.1
"""How far the model may be from what is measured here."""
ASSUMPTIONS = (
    "Each rank has a core, and computes as fast as a rank here computes beside a busy neighbour. This is measured with "
    "all of a rank's work, including DDP's copies and the method, on ranks that start each step together and do not "
    "communicate.",
    "A step waits for the slowest rank. The times of the ranks are independent, and spread like the measured ones.",
    "Gradients are reduced in a ring: 2 (W - 1) messages, each with 1/W of the bytes. Latency and bandwidth are fitted "
    "to all-reduces of 2 ranks over loopback; for several machines pass --latency and --bandwidth.",
    "Within a step, a reduction takes longer by a constant factor: gradients are not in the cache, threads must be "
    "woken beside ranks that compute, and part of it is hidden behind the backward pass. The factor is the time that "
    "steps of 2 ranks wait after their last gradient, minus the wait for the slower rank, divided by the time of an "
    "all-reduce alone.",
    "The cost of the method does not depend on the number of ranks, because each has its own shard.",
    "Here, 4 ranks share 2 cores. Their times to compute, to wait for the slowest, and to reduce alone are therefore "
    "measured with 4 at once; the factor is that of 2 ranks.",
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


def slowest(computing: list[list[float]], ranks: int) -> float:
    """Return the mean time of the slowest rank; times are by step and rank."""
    if ranks == len(computing[0]):
        return statistics.fmean(map(max, computing))
    seconds = [one for step in computing for one in step]
    drawn = np.random.default_rng(0).choice(seconds, (STEPS_DRAWN_COUNT // ranks, ranks))
    return float(drawn.max(1).mean())


def in_step_factor(computing: list[list[float]], link: Link, exposed: float, size: float) -> float:
    """Return how much longer than by itself 2 ranks reduce in a step."""
    mean = statistics.fmean(one for step in computing for one in step)
    return max(0.0, exposed - (slowest(computing, 2) - mean)) / link.seconds(2, size)


def step_seconds(computing: list[list[float]], reducing: float, ranks: int) -> dict[str, float]:
    """Return the parts of a step of so many ranks, as the model has them."""
    mean = statistics.fmean(one for step in computing for one in step)
    parts = {"computing": mean, "waiting": slowest(computing, ranks) - mean, "reducing": reducing}
    return parts | {"step": sum(parts.values())}


def results(options: argparse.Namespace, channels: int) -> dict[str, Any]:
    """Measure a CNN, and return all that the page needs."""
    words = ["--channels", str(channels), *(["--quick"] if options.quick else [])]
    found, crowded = measured(2, "--seeds", str(options.seeds), *words), measured(4, "--check", *words)
    here = fitted(found["reducing"], 2)
    link = Link(options.latency or here.latency, options.bandwidth or here.bandwidth)
    runs, beside, one = found["runs"], found["beside"], statistics.fmean(found["alone"])
    ratios = [run["one"]["seconds"] / run["all"]["seconds"] for run in runs]
    by_step = [{name: _by_step(run[name]) for name in ("one", "all")} for run in runs]
    plain = [_by_step(run["plain"]["one"]) / _by_step(run["plain"]["all"]) for run in runs]
    size = beside["bytes_a_step"]
    factor, checks = in_step_factor(found["computing"], here, beside["exposed"], size), {}
    for ranks, seen in ((2, found), (4, crowded)):
        reducing = factor * fitted(seen["reducing"], ranks).seconds(ranks, size)
        own = step_seconds(seen["computing"], reducing, ranks)
        checks[str(ranks)] = own | {"measured": statistics.fmean(seen["together"])}
    model = {}
    for ranks in RANKS:
        reducing = factor * link.seconds(ranks, size)
        parts = step_seconds(found["computing"], reducing, ranks) if ranks > 1 else {"step": one, "computing": one}
        model[str(ranks)] = parts | {"throughput": ranks * one / parts["step"]}
    return {
        "channels": channels, "seeds": options.seeds, "runs": runs,
        "one_step": statistics.median(step["one"] for step in by_step),
        "time_to_loss": {"ratios": ratios, "median": statistics.median(ratios)},
        "step_time": {
            "ratios": (steps := [step["one"] / step["all"] for step in by_step]), "median": statistics.median(steps),
        },
        "plain_step_time": {"ratios": plain, "median": statistics.median(plain)},
        "communication": {
            **beside, "time_share": beside["method_step"] / beside["plain_step"] - 1,
            "own_share": statistics.median(run["all"]["own_seconds"] / run["all"]["seconds"] for run in runs),
        },
        "link": link._asdict(), "fitted": here._asdict(), "in_step_factor": factor, "checks": checks, "model": model,
    }  # fmt: skip


def _by_step(run: dict[str, Any]) -> float:
    return float(run["seconds"] / run["steps"])


def table(every: dict[str, Any]) -> list[str]:
    """Return the results as lines of Markdown."""
    lines = [
        f"Two ranks with 32 examples each, compared with one rank with 64, on {every['cores']} cores, one thread per "
        f"rank, {every['seeds']} seeds. The promises apply to the large CNN.",
        "", "| promise | small CNN | large CNN | firm | stretch |", "|---|---|---|---|---|",
    ]  # fmt: skip
    small, large = (every["sizes"][name] for name in CHANNELS)

    def row(what: str, shown: Any, held: Any = None) -> str:
        marks = [f"{shown(one)}" for one in (small, large)]
        return f"| {what} | {' | '.join(marks)} | {' | '.join(held(large) if held else ('', ''))} |"

    def faster(one: dict[str, Any]) -> tuple[str, str]:
        value = one["time_to_loss"]["median"]
        return f"{FIRM} × {mark(value >= FIRM)}", f"{STRETCH} × {mark(value >= STRETCH)}"

    def added(one: dict[str, Any]) -> tuple[str, str]:
        value = one["communication"]["time_share"]
        firm, stretch = FIRM_SHARE, STRETCH_SHARE
        return f"{firm:.0%} {mark(value <= firm)}", f"{stretch:.0%} {mark(value <= stretch)}"

    lines += [
        row("a step of one rank", lambda one: f"{1e3 * one['one_step']:.0f} ms"),
        row("2 ranks against 1, time to loss, median and range", lambda one: spread(one["time_to_loss"]), faster),
        row("the same, time per step", lambda one: spread(one["step_time"])),
        row("the same for plain DDP, time per step: the upper limit", lambda one: spread(one["plain_step_time"])),
        row("share of that limit which the method reaches",
            lambda one: f"{median(one, 'step_time') / median(one, 'plain_step_time'):.0%}"),
        row("a step with DDP's hook and ḡ, compared with one of plain DDP",
            lambda one: f"{100 * one['communication']['time_share']:+.1f}%", added),
        row("share of the time in which the method itself communicates",
            lambda one: f"{100 * one['communication']['own_share']:.2f}%"),
        row("bytes reduced per step", lambda one: f"{one['communication']['bytes_a_step'] / 1e6:.1f} MB"),
        row("time of a DDP step spent waiting for the reduction",
            lambda one: f"{1e3 * one['communication']['exposed']:.1f} ms of "
            f"{1e3 * one['communication']['method_step']:.1f} ms"),
        "", f"Where the time of a step of two ranks goes. Small CNN: {_split(small)}. Large CNN: {_split(large)}.",
        "", "A model of up to 64 ranks with 32 examples each, for the large CNN:",
        "", "| ranks | step | computing | waiting for the slowest | reducing | examples a second, of one rank |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for ranks, one in large["model"].items():
        times = " | ".join(f"{1e3 * one.get(name, 0.0):.1f}" for name in ("computing", "waiting", "reducing"))
        lines.append(f"| {ranks} | {1e3 * one['step']:.1f} ms | {times} | {one['throughput']:.1f} × |")
    lines += [
        "", "The model compared with measurements:", "",
        "| ranks | CNN | computing, to the slowest | reducing | predicted | measured | |", "|" + "---|" * 7,
    ]  # fmt: skip
    for name in CHANNELS:
        for ranks, one in every["sizes"][name]["checks"].items():
            parts = one["computing"] + one["waiting"], one["reducing"], one["step"], one["measured"]
            times = " | ".join(f"{1e3 * part:.1f} ms" for part in parts)
            lines.append(f"| {ranks} | {name} | {times} | {round(one['step'] / one['measured'] - 1, 2) + 0.0:+.0%} |")
    far = max(abs(one["step"] / one["measured"] - 1) for size in (small, large) for one in size["checks"].values())
    held = "holds" if far <= MODEL_TOLERANCE_SHARE else "does not hold"
    factors = " and ".join(f"{size['in_step_factor']:.1f}" for size in (small, large))
    lines += [
        "", f"The model {held}: it is off by at most {far:.0%} ({MODEL_TOLERANCE_SHARE:.0%} allowed). Within a step, a "
        f"reduction takes {factors} times as long as alone (small and large CNN).",
    ]  # fmt: skip
    return [*lines, "", "Assumptions:", "", *(f"- {text}" for text in ASSUMPTIONS)]


def median(one: dict[str, Any], name: str) -> float:
    return float(one[name]["median"])


def _split(one: dict[str, Any]) -> str:
    """Return the parts of a step of two ranks as text."""
    own, seen = one["model"]["1"]["step"], one["checks"]["2"]
    parts = [
        f"half of a step of one rank takes {500 * one['one_step']:.1f} ms",
        f"a step with half of the examples {1e3 * own:.1f} ms",
        f"the same beside a busy second rank {1e3 * seen['computing']:.1f} ms",
        f"and with waiting for the slower rank and the reduction {1e3 * seen['step']:.1f} ms",
        f"measured: {1e3 * seen['measured']:.1f} ms",
    ]
    return ", ".join(parts)


def spread(found: dict[str, Any]) -> str:
    """Return a median of ratios and their range as text."""
    return f"{found['median']:.2f} × ({min(found['ratios']):.2f}–{max(found['ratios']):.2f})"


def mark(good: bool) -> str:
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
    sizes = {name: results(options, channels) for name, channels in CHANNELS.items()}
    found = {"cores": len(os.sched_getaffinity(0)), "seeds": options.seeds, "sizes": sizes}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
