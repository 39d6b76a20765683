"""What was promised of echoing, what was measured, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from echoed_training import Outcome
from fresh_to_target import Job
from time_to_target import FIXED, Timed, before, expected, named, pace, seconds, speed_up

Fast = list[dict[str, tuple[float, float]]]
Waiting = list[tuple[float, float]]
Costs = dict[tuple[str, int], tuple[float, float, float]]


class Promise(NamedTuple):
    """One row: promise, baseline, measured figure, and whether it is kept."""

    what: str
    baseline: str
    measured: str
    held: bool


def promises(timed: Timed, fast: Fast, finals: dict[Job, Outcome], waiting: Waiting, costs: Costs) -> list[Promise]:
    """Return all promises."""
    rest = [_foretold(timed, False), _foretold(timed, True), _waits(waiting), _cost(costs)]
    return [*_sooner(timed), _automatic(timed), _fed(fast), *_finals(finals), *rest]


def _sooner(timed: Timed) -> list[Promise]:
    found = []
    base = median(map(seconds, timed["1"]))
    for name, least in (("2", 1.9), ("4", 3.4), ("5", 4.0)):
        ratio, low, high = speed_up(timed, name, seconds)
        paper = " (paper: 3.25×)" if name == "5" else ""
        found.append(Promise(f"time to target at e = {name}: ≥ {least}× sooner{paper}", f"e = 1: {base:.1f} s",
                             times(ratio, low, high), ratio >= least))  # fmt: skip
    return found


def _automatic(timed: Timed) -> Promise:
    fixed = {factor: median(map(seconds, timed[named(factor)])) for factor in FIXED}
    best = min(fixed, key=lambda factor: fixed[factor])
    auto = median(map(seconds, timed["auto"]))
    off = auto / fixed[best] - 1.0
    return Promise("`auto` within 5% of the best fixed factor", f"e = {best:g}: {fixed[best]:.2f} s",
                   f"{auto:.2f} s, {off:+.1%}", off <= 0.05)  # fmt: skip


def _fed(fast: Fast) -> Promise:
    plain, auto = (median(one[name][0] for one in fast) for name in ("1", "auto"))
    ratio = median(one["1"][1] for one in fast)
    off = auto / plain - 1.0
    return Promise(f"`auto` never slower than e = 1 where R < 1 (here R = {ratio:.2f}; 2% are allowed for noise)",
                   f"e = 1: {plain * 1e3:.2f} ms a step", f"{auto * 1e3:.2f} ms, {off:+.1%}",
                   off <= 0.02 and ratio < 1.0)  # fmt: skip


def final_of(finals: dict[Job, Outcome], factor: float) -> list[float]:
    """Return the test accuracy after equal fresh data, seed by seed."""
    return [outcome.scores[-1][1] for job, outcome in finals.items() if job.factor == factor]


def _finals(finals: dict[Job, Outcome]) -> list[Promise]:
    found, plain = [], final_of(finals, 1.0)
    for factor in (2.0, 5.0):
        off = median(final_of(finals, factor)) - median(plain)
        found.append(Promise(f"test accuracy from equal fresh data at e = {factor:g}: at most 0.5 points less",
                             f"e = 1: {median(plain):.1%}", f"{off * 100:+.1f} points", off >= -0.005))  # fmt: skip
    return found


def _foretold(timed: Timed, below: bool) -> Promise:
    off = {
        e: expected(timed, e, before(e) if below else 1.0) / speed_up(timed, named(e), pace)[0] - 1.0 for e in FIXED[1:]
    }
    when = "at the next lower factor" if below else "at e = 1, where the loop waits before each batch"
    worst = max(off, key=lambda factor: abs(off[factor]))
    return Promise(f"speed-up, in steps per second, predicted {when}: within 10%", "measured",
                   f"at worst {off[worst]:+.1%}, at e = {worst:g}", abs(off[worst]) <= 0.1)  # fmt: skip


def _waits(waiting: Waiting) -> Promise:
    bare, ours = (median(values) for values in zip(*waiting, strict=True))
    off = ours / bare - 1.0
    return Promise("the stage at e = 1 costs a loop that waits for the server ≤ 3%", f"bare: {bare * 1e3:.1f} ms",
                   f"{ours * 1e3:.1f} ms, {off:+.1%}", off <= 0.03)  # fmt: skip


def _cost(costs: Costs) -> Promise:
    with_worker = {mode: cost for (mode, workers), cost in costs.items() if workers}
    worst = max(with_worker, key=lambda mode: with_worker[mode][0])
    off, plain, ours = with_worker[worst]
    return Promise("the stage at e = 1 costs a loop that never waits ≤ 3%", f"bare: {plain * 1e3:.2f} ms a step",
                   f"{ours * 1e3:.2f} ms, {off:+.1%} ({worst}, the most expensive)", off <= 0.03)  # fmt: skip


def times(ratio: float, low: float, high: float) -> str:
    """Return a ratio and its range as text."""
    return f"{ratio:.2f}× ({low:.2f}–{high:.2f})" if math.isfinite(ratio) and ratio else "–"


def spread(values: Sequence[float], form: str) -> str:
    """Return median and range as text."""
    if math.isinf(median(values)):
        return "not reached"
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
