"""Records runs of many kinds of training: values, and the time of steps.

python benchmarks/progress/record_kinds.py [--kept]    writes what is missing of kinds.json (seeds for development) or
kinds-kept.json (those judged once); see kind_curves.py for the format.
"""

from __future__ import annotations

import argparse
import math
import time
from itertools import pairwise

import kinds_games
import kinds_pictures
import kinds_sequences
import kinds_tables
import numpy as np
import torch
from kind_curves import (
    DEVELOPMENT_FILE,
    DEVELOPMENT_SEEDS,
    KEPT_FILE,
    KEPT_SEEDS,
    PARTS,
    UNIT_SECONDS,
    KindCurve,
    read,
    write,
)
from kinds import Checked, Kind, Trained

KINDS: tuple[Kind, ...] = (*kinds_pictures.KINDS, *kinds_tables.KINDS, *kinds_sequences.KINDS, *kinds_games.KINDS)


def record(kind: Kind, seed: int) -> KindCurve:
    """Train once, to the last validation."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    curve = KindCurve(
        kind.name, seed, kind.reports, kind.metric, kind.schedule, kind.min_delta, [], 0, [], [], [], [], []
    )
    rates: list[float] = []
    steps: list[Trained] = []
    seconds: list[float] = []
    events = kind.run(seed)
    before = time.process_time()
    for event in events:
        now = time.process_time()
        if isinstance(event, Checked):
            curve.values.append(event.value)
            curve.checked = event.instances
            curve.check.append(round((now - before) / UNIT_SECONDS))
            curve.steps.append(len(steps))
            edges = np.linspace(0, len(steps), PARTS + 1).round().astype(int)
            for first, last in pairwise(edges):
                part = steps[first:last]
                curve.train.append(round(sum(seconds[first:last]) / UNIT_SECONDS))
                curve.sizes.append(round(sum(step.instances for step in part) / max(1, len(part)), 2))
            rates.append(float(np.mean([step.rate for step in steps])))
            steps, seconds = [], []
        else:
            steps.append(event)
            seconds.append(now - before)
        before = time.process_time()
    curve.rates = [rate / rates[0] for rate in rates] if kind.known and rates[0] > 0 else None
    return curve


def main() -> None:
    """Record what is missing, one run at a time."""
    arguments = argparse.ArgumentParser(description="Record what is missing.")
    arguments.add_argument("--kept", action="store_true", help="record the runs that are judged once")
    arguments.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so many seconds")
    arguments.add_argument("--only", default="", help="record only kinds with this in their name")
    arguments.add_argument("--seeds", type=int, nargs="*", help="record only these seeds")
    arguments.add_argument("--without", default=(), nargs="*", help="leave out kinds with one of these in their names")
    options = arguments.parse_args()
    begun = time.monotonic()
    record(KINDS[8], 0)  # the first steps of a process take long
    path, seeds = (KEPT_FILE, KEPT_SEEDS) if options.kept else (DEVELOPMENT_FILE, DEVELOPMENT_SEEDS)
    done = {(curve.kind, curve.seed): curve for curve in read(path)}
    for seed in options.seeds or seeds:
        for kind in KINDS:
            left_out = options.only not in kind.name or any(part in kind.name for part in options.without)
            if (kind.name, seed) in done or left_out:
                continue
            if time.monotonic() - begun > options.seconds:
                return
            curve = done[kind.name, seed] = record(kind, seed)
            taken = (sum(curve.train) + sum(curve.check)) * UNIT_SECONDS
            print(f"{curve.name}: {len(curve.values)} validations, {taken:.1f} s", flush=True)
            write(path, sorted(done.values(), key=lambda one: (one.kind, one.seed)))


if __name__ == "__main__":
    main()
