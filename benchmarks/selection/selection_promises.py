"""What was promised of selection, what was measured, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from selection_arithmetic import Paired, change, crossing, difference
from selection_cost import COST_METHODS
from selection_runs import COUNTED, DEFAULT, PLAIN, TIMED, Curve, Job
from selection_stages import LESS, Results, Tuned
from selection_tasks import TASKS

WIDE, CHARACTERS = "wide-cnn", "characters"
SHORTEST_STEP_MS = 1.0
"""Of the rows in which the default is not to lose time."""
IMAGES = ("easy-heavy", "imbalanced", "noisy", "balanced")
"""The tasks with an MLP."""


class Promise(NamedTuple):
    """One row: what is promised, what was measured, and whether it holds."""

    what: str
    measured: str
    firm: bool
    stretch: bool | None = None


class Figures:
    """The changes over paired seeds that tables and promises are made of."""

    def __init__(self, results: Results) -> None:
        self.results, self.protocol = results, results.protocol
        self.tuned = {task: Tuned(results, task) for task in TASKS if Tuned(results, task).tried(PLAIN)}

    def judged(self, task: str, method: str, kind: str = COUNTED) -> dict[int, Curve]:
        """Return the judged curves of a method with its best rate, by seed."""
        tuned = self.tuned.get(task)
        if tuned is None or not tuned.has_rate(method, kind):
            return {}
        rate, found, longest = tuned.rate(method, kind), self.results.found, self.protocol.longest
        jobs = {seed: Job(task, method, rate, seed, longest, kind) for seed in self.protocol.judged}
        return {seed: found[job] for seed, job in jobs.items() if job in found}

    def instances(self, task: str, method: str, target: int) -> Paired | None:
        """Return the change of the cost to a target; None: not measured."""
        return self._changed(task, method, target, COUNTED, lambda curve: curve.cost)

    def seconds(self, task: str, method: str, target: int) -> Paired | None:
        """Return the change of the seconds to a target; None: not measured."""
        return self._changed(task, method, target, TIMED, lambda curve: curve.seconds)

    def reached(self, curve: Curve, task: str, target: int, axis: Sequence[float]) -> float:
        """Return where on an axis a curve reaches a target."""
        return crossing(axis, curve.accuracy, self.tuned[task].targets[target])

    def accuracy(self, task: str, less: float) -> Paired | None:
        """Return how many points more the default reaches; None: not measured.

        ``less`` is its share of the instances. The rate decays.
        """
        tuned = self.tuned.get(task)
        if tuned is None:
            return None
        try:
            rates = tuned.peak(PLAIN, 1.0)[0], tuned.peak(DEFAULT, LESS[0])[0]
        except ValueError:  # none was tried
            return None
        plain = tuned.final(PLAIN, 1.0, rates[0], self.protocol.judged)
        ours = tuned.final(DEFAULT, less, rates[1], self.protocol.judged)
        if len(plain) != len(ours) or len(plain) < 2:
            return None
        return difference([100 * (two - one) for one, two in zip(plain, ours, strict=True)])

    def _changed(
        self, task: str, method: str, target: int, kind: str, axis: Callable[[Curve], Sequence[float]]
    ) -> Paired | None:
        plain, other = self.judged(task, PLAIN, kind), self.judged(task, method, kind)
        seeds = sorted(plain.keys() & other.keys())
        if len(seeds) < 2:
            return None
        ends = max(axis(curve[seed])[-1] for curve in (plain, other) for seed in seeds)
        base, new = ([self.reached(curve[seed], task, target, axis(curve[seed])) for seed in seeds]
                     for curve in (plain, other))  # fmt: skip
        return change(base, new, ends)


def promises(figures: Figures) -> list[Promise]:
    """Return all that were measured; those that do not hold come first."""
    found = [*_fewer(figures), *_sooner(figures), *_accurate(figures)]
    found += [*_cheap(figures.results.costs), *_rated(figures), *_off(figures)]
    return sorted(found, key=lambda promise: promise.firm)


def _fewer(figures: Figures) -> Iterator[Promise]:
    for task, firm, stretch, near in (("easy-heavy", 0.2, 0.35, -0.1), ("imbalanced", 0.2, 0.35, -0.1),
                                      ("noisy", 0.15, 0.3, 0.0), ("balanced", 0.15, 0.3, 0.0),
                                      ("cnn", 0.08, 0.3, 0.0)):  # fmt: skip
        every = [one for target in (0, 1) if (one := figures.instances(task, DEFAULT, target))]
        if len(every) == 2:
            held = all(one.median <= -firm and (one.high <= near if near else one.high < 0) for one in every)
            far = all(one.median <= -stretch for one in every)
            yield Promise(
                f"{task}: `{DEFAULT}` needs ≥ {firm:.0%} fewer instances, at both targets, upper end of the interval "
                f"{'≤ −10%' if near else '< 0'} (stretch: {stretch:.0%})",
                "; ".join(map(shown, every)), held, far,
            )  # fmt: skip


def _sooner(figures: Figures) -> Iterator[Promise]:
    for task in figures.tuned:
        every = [one for target in (0, 1) if (one := figures.seconds(task, DEFAULT, target))]
        if len(every) == 2 and step_of(figures, task) >= SHORTEST_STEP_MS:
            worst = max(one.median for one in every)
            yield Promise(f"{task}, {step_of(figures, task):.1f} ms a step: seconds of `{DEFAULT}` with its switch to "
                          "both targets ≤ 1.03 × (stretch: 1.01)", "; ".join(map(_factor, every)),
                          worst <= 0.03, worst <= 0.01)  # fmt: skip
    every = [one for target in (0, 1) if (one := figures.seconds(WIDE, DEFAULT, target))]
    if len(every) == 2:
        least = min(1 / (1 + one.median) for one in every)
        measured = "; ".join(f"{1 / (1 + one.median):.2f} ×" for one in every)
        yield Promise(f"{WIDE}, easy-heavy data, {step_of(figures, WIDE):.0f} ms a step, targets after ≥ 4 epochs: "
                      "≥ 1.15 × sooner (stretch: 1.4 ×)", measured, least >= 1.15, least >= 1.4)  # fmt: skip


def _accurate(figures: Figures) -> Iterator[Promise]:
    for task in IMAGES:
        less, least = (figures.accuracy(task, share) for share in LESS)
        if less and least:
            yield Promise(
                f"{task}: accuracy on 15% fewer instances with a decaying rate, lower end of the interval ≥ −0.5 "
                "points (stretch: on 30% fewer ≥ −0.7)",
                f"{_points(less)}; on 30% fewer {_points(least)}", less.low >= -0.5, least.low >= -0.7,
            )  # fmt: skip


def _cheap(costs: dict[str, float]) -> Iterator[Promise]:
    for method in COST_METHODS:
        if method in costs:
            yield Promise(f"`{method}` costs ≤ 0.3 ms a step with 800 features", f"{costs[method]:.2f} ms",
                          costs[method] <= 0.3)  # fmt: skip


def _rated(figures: Figures) -> Iterator[Promise]:
    for task in figures.tuned:
        curves = [curve.auc for curve in figures.judged(task, DEFAULT).values() if curve.auc]
        if curves:
            epochs = [median(found) for found in zip(*curves, strict=False)]
            yield Promise(f"{task}: the stored score has an AUC ≥ 0.85 in each epoch from the second on",
                          f"{epochs[0]:.2f} in the second, then {min(epochs[1:] or epochs):.2f} to {max(epochs):.2f}",
                          min(epochs) >= 0.85)  # fmt: skip


def _off(figures: Figures) -> Iterator[Promise]:
    found = [curve.selected for curve in figures.judged(CHARACTERS, DEFAULT, TIMED).values()]
    if found:
        yield Promise("characters: the switch stays off", f"on in {max(found):.1%} of the steps", max(found) == 0)
    one = [curve.selected for job, curve in figures.results.found.items()
           if job.kind == TIMED and job.method == DEFAULT and job.budget < figures.protocol.longest]  # fmt: skip
    if one:
        yield Promise("runs of one epoch: the switch stays off", f"on in {max(one):.1%} of the steps", max(one) == 0)


def step_of(figures: Figures, task: str) -> float:
    """Return the milliseconds of a step of uniform sampling, as timed."""
    curves = figures.judged(task, PLAIN, TIMED).values()
    return median(curve.seconds[-1] / curve.cost[-1] * TASKS[task].batch * 1e3 for curve in curves)


def shown(one: Paired) -> str:
    """Return a change and its interval as text: "−20% (−30 to −10)"."""
    missed = f", {one.missed} of {one.seeds} not reached" if one.missed else ""
    if math.isinf(one.high):
        return f"{100 * one.median:+.0f}%"
    return f"{100 * one.median:+.0f}% ({100 * one.low:+.0f} to {100 * one.high:+.0f}{missed})".replace("-", "−")


def _factor(one: Paired) -> str:
    return f"{1 + one.median:.2f} × ({1 + one.low:.2f}–{1 + one.high:.2f})"


def _points(one: Paired) -> str:
    return f"{one.median:+.1f} points ({one.low:+.1f} to {one.high:+.1f})".replace("-", "−")
