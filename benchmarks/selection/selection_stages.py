"""Which trainings are done: tuning seeds, then judged seeds, each once."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich.progress import Progress
from selection_arithmetic import crossing, targets
from selection_runs import COUNTED, DECAYING, DEFAULT, PLAIN, TIMED, Curve, Job, Training
from selection_tasks import TASKS

sys.path.append(str(Path(__file__).resolve().parents[1]))

from worker_pool import worker_pool


class Protocol(NamedTuple):
    """How much is done."""

    tuned: tuple[int, ...] = (100, 101, 102)
    """Seeds on which rates and targets are chosen."""
    judged: tuple[int, ...] = tuple(range(8))
    """Seeds that are reported."""
    budget: float = 1.0
    """Of that of uniform sampling."""
    extends: bool = True
    """Whether the grid of rates is extended until no edge is chosen."""

    @property
    def longest(self) -> float:
        """Budgets after which a run that did not reach its target is given up."""
        return 1.25 * self.budget


QUICK = Protocol(tuned=(100, 101), judged=(0, 1), budget=0.2, extends=False)
"""A smoke test."""
MAX_RATES = 8
"""Of a method on a task."""
GRID_FACTOR = math.sqrt(2)
"""Between neighbouring rates."""
LESS = (0.85, 0.7)
"""Budgets of the default with a decaying rate."""
TIMES: dict[str, tuple[tuple[str, ...], int]] = {
    "easy-heavy": ((PLAIN, DEFAULT, "infobatch", "autoassist"), 8), "imbalanced": ((PLAIN, DEFAULT), 8),
    "noisy": ((PLAIN, DEFAULT), 8), "balanced": ((PLAIN, DEFAULT), 8), "cnn": ((PLAIN, DEFAULT), 8),
    "characters": ((PLAIN, DEFAULT), 8), "wide-cnn": ((PLAIN, DEFAULT), 8),
}  # fmt: skip
"""What is timed: methods, and how many of the judged seeds."""
ONE_EPOCH = "easy-heavy"
"""The task of the runs of one epoch."""


class Results:
    """Curves by job, in a JSON file; what is there is not done again.

    ``train`` does a job, up to an accuracy at which it may end.
    """

    def __init__(
        self, path: Path, protocol: Protocol, train: Callable[[Job, float], Curve] | None = None,
        processes: int | None = None,
    ) -> None:  # fmt: skip
        self.path, self.protocol, self.train, self.processes = path, protocol, train or _trained, processes
        known = json.loads(path.read_text()) if path.exists() else {"runs": [], "costs": {}}
        self.found = {Job(*job): Curve(*curve) for job, curve in known["runs"]}
        self.costs: dict[str, float] = known.get("costs", {})
        """Milliseconds a step that a method takes."""
        self.load: float | None = known.get("load")
        """The load average of the machine when timing began; None: before it was noted."""

    def done(self, jobs: Iterable[tuple[Job, float]], what: str) -> None:
        """Do what is missing; a job comes with the accuracy at which it may end."""
        missing = [(job, target) for job, target in dict.fromkeys(jobs) if job not in self.found]
        if not missing:
            return
        with Progress() as progress, worker_pool(self.processes) as pool:
            bar = progress.add_task(what, total=len(missing))
            running = {pool.submit(self.train, job, target): job for job, target in missing}
            for future in as_completed(running):
                self.found[running[future]] = future.result()
                progress.advance(bar)
                self.write()

    def timed(self, jobs: Iterable[tuple[Job, float]], what: str) -> None:
        """Do what is missing in this process, in turn."""
        missing = [(job, target) for job, target in dict.fromkeys(jobs) if job not in self.found]
        with Progress() as progress:
            for job, target in progress.track(missing, description=what):
                self.found[job] = self.train(job, target)
                self.write()

    def write(self) -> None:
        """Save all."""
        rows = [json.dumps([job, curve]) for job, curve in sorted(self.found.items())]
        part = self.path.with_suffix(".part")
        part.write_text(
            f'{{"costs": {json.dumps(self.costs)}, "load": {json.dumps(self.load)},\n"runs": [\n'
            + ",\n".join(rows)
            + "\n]}\n"
        )
        part.replace(self.path)

    def curves(self, task: str, method: str, rate: float, seeds: Sequence[int]) -> list[Curve]:
        """Return those that are there."""
        wanted = (Job(task, method, rate, seed, self.protocol.longest) for seed in seeds)
        return [self.found[job] for job in wanted if job in self.found]


class Tuned:
    """The targets and rates of a task, from the tuning seeds."""

    def __init__(self, results: Results, task: str) -> None:
        self.results, self.name, self.task, self.protocol = results, task, TASKS[task], results.protocol

    @property
    def targets(self) -> tuple[float, float]:
        """The accuracies of uniform sampling at its best rate.

        At a third and at two thirds of its budget.
        """
        return max((self._targets(rate) for rate in self.tried(PLAIN)), key=sum)

    def tried(self, method: str) -> list[float]:
        """Return the rates that were run on all tuning seeds."""
        rates = {job.rate for job in self.results.found if job[:2] == (self.name, method)}
        seeds = self.protocol.tuned
        return sorted(rate for rate in rates if len(self._curves(method, rate)) == len(seeds))

    def rate(self, method: str, kind: str = COUNTED) -> float:
        """Return the rate of the least cost to both targets.

        Timed runs of the default have that of uniform sampling, which it is while its switch is off.
        """
        method = _tuned_as(method, kind)
        return min(self.tried(method), key=lambda rate: (self.needed(method, rate), -self._end(method, rate)))

    def has_rate(self, method: str, kind: str = COUNTED) -> bool:
        """Return whether a rate can be chosen for runs of this kind."""
        return bool(self.tried(_tuned_as(method, kind)))

    def settled(self, method: str) -> bool:
        """Return whether no further rate is to be tried.

        A method that reaches no target with any rate is left at that after some.
        """
        return self.inside(method) or len(self.tried(method)) >= MAX_RATES

    def inside(self, method: str) -> bool:
        """Return whether rates on both sides of the best one were tried."""
        every = self.tried(method)
        return bool(every) and self.rate(method) not in (every[0], every[-1])

    def needed(self, method: str, rate: float) -> float:
        """Return the geometric mean of the cost to both targets.

        A target that is not reached counts as two whole runs.
        """
        found = []
        for curve in self._curves(method, rate):
            for target in self.targets:
                found.append(math.log(min(crossing(curve.cost, curve.accuracy, target), 2 * curve.cost[-1])))
        return math.exp(mean(found))

    def _end(self, method: str, rate: float) -> float:
        return mean(curve.accuracy[-1] for curve in self._curves(method, rate))

    def _targets(self, rate: float) -> tuple[float, float]:
        curves = self._curves(PLAIN, rate)
        budget = self.protocol.budget * self.task.epochs * self.task.evaluations
        return targets([curve.accuracy for curve in curves], budget)

    def _curves(self, method: str, rate: float) -> list[Curve]:
        return self.results.curves(self.name, method, rate, self.protocol.tuned)

    def final(self, method: str, budget: float, rate: float, seeds: Sequence[int]) -> list[float]:
        """Return the accuracies at the end of runs with a decaying rate."""
        found = {(job.rate, job.seed): curve.accuracy[-1] for job, curve in self._decaying(method, budget).items()}
        return [found[rate, seed] for seed in seeds if (rate, seed) in found]

    def peak(self, method: str, budget: float) -> tuple[float, bool]:
        """Return the best decaying rate, and whether its neighbours were tried."""
        rates = {job.rate for job in self._decaying(method, budget)}
        seeds = self.protocol.tuned
        ends = {rate: self.final(method, budget, rate, seeds) for rate in rates}
        means = {rate: mean(found) for rate, found in sorted(ends.items()) if len(found) == len(seeds)}
        best = max(means, key=lambda rate: means[rate])
        return best, best not in (min(means), max(means))

    def _decaying(self, method: str, budget: float) -> dict[Job, Curve]:
        wanted = self.name, method, self.share(budget), DECAYING
        every = self.results.found.items()
        return {job: curve for job, curve in every if (job.task, job.method, job.budget, job.kind) == wanted}

    def share(self, budget: float) -> float:
        """Return a part of the budget, in those of uniform sampling."""
        return round(budget * self.protocol.budget, 4)

    def floor(self, budget: float) -> float:
        """Return the floor with which an epoch trains on so much of the data.

        The first epoch is plain. What later ones keep rises with the floor, from that of 0.2 on the tuning seeds to 1.
        """
        found = []
        for curve in self._curves(DEFAULT, self.rate(DEFAULT)):
            epochs = curve.cost[-1] / curve.kept / len(self.task.split(0).inputs)
            found.append((curve.kept * epochs - 1) / max(0.1, epochs - 1))
        least, whole = mean(found), max(2, self.task.epochs)
        wanted = (budget * whole - 1) / (whole - 1)
        return round(min(1.0, max(0.2, 0.2 + 0.8 * (wanted - least) / (1 - least))), 2)


def tune(results: Results, task: str, methods: Sequence[str]) -> Tuned:
    """Try rates until each method has one that is better than both its neighbours.

    Uniform sampling goes first, to the end of its budget: it makes the targets.
    """
    tuned, protocol = Tuned(results, task), results.protocol
    for group in ([PLAIN], [one for one in methods if one != PLAIN]):
        around = {method: TASKS[task].start if method == PLAIN else tuned.rate(PLAIN) for method in group}
        while group:
            jobs = [
                (Job(task, method, rate, seed, protocol.longest), math.inf if method == PLAIN else tuned.targets[1])
                for method in group for rate in _around(around[method]) for seed in protocol.tuned
            ]  # fmt: skip
            results.done(jobs, f"{task}: rates")
            around = {method: tuned.rate(method) for method in group}
            group = [method for method in group if protocol.extends and not tuned.settled(method)]
    return tuned


def judge(results: Results, task: str, methods: Sequence[str]) -> None:
    """Run the judged seeds with the rates that were tuned."""
    tuned, protocol = Tuned(results, task), results.protocol
    jobs = [(Job(task, method, tuned.rate(method), seed, protocol.longest), tuned.targets[1])
            for method in methods for seed in protocol.judged]  # fmt: skip
    results.done(jobs, f"{task}: judged seeds")


def decaying(results: Results, task: str) -> None:
    """Tune and run uniform sampling, and the default on less, to a rate of 0."""
    tuned, protocol = Tuned(results, task), results.protocol
    rates = {}
    for method, budget in ((PLAIN, 1.0), (DEFAULT, LESS[0])):
        rates[method], inside = 2 * tuned.rate(method), False
        while not inside:
            tried = _around(rates[method])
            jobs = [_decaying(tuned, method, budget, rate, seed) for rate in tried for seed in protocol.tuned]
            results.done(jobs, f"{task}: decaying rates")
            rates[method], inside = tuned.peak(method, budget)
            inside = inside or not protocol.extends
    wanted = [(PLAIN, 1.0), *((DEFAULT, less) for less in LESS)]
    jobs = [_decaying(tuned, method, budget, rates[method], seed) for method, budget in wanted
            for seed in protocol.judged]  # fmt: skip
    results.done(jobs, f"{task}: decaying rate, judged seeds")


def timed(results: Results, tasks: Sequence[str], *, again: bool = False) -> None:
    """Run what is timed, one at a time, methods in turn; all of it if ``again``."""
    if again:
        results.load = round(os.getloadavg()[0], 2)
        results.found = {
            job: curve for job, curve in results.found.items() if job.kind != TIMED or job.task not in tasks
        }
    jobs, seeds, longest = [], results.protocol.judged, results.protocol.longest
    for task in tasks:
        tuned, (methods, many) = Tuned(results, task), TIMES[task]
        for seed in seeds[:many]:
            every = [method for method in methods if tuned.has_rate(method, TIMED)]
            jobs += [(Job(task, method, tuned.rate(method, TIMED), seed, longest, TIMED), tuned.targets[1])
                     for method in (every if seed % 2 else every[::-1])]  # fmt: skip
    tuned, budget = Tuned(results, ONE_EPOCH), 1 / TASKS[ONE_EPOCH].epochs
    if ONE_EPOCH in tasks and tuned.has_rate(PLAIN):
        rate = tuned.rate(DEFAULT, TIMED)
        jobs += [(Job(ONE_EPOCH, DEFAULT, rate, seed, budget, TIMED), math.inf) for seed in seeds[:2]]
    results.timed(jobs, "on the clock")


def _decaying(tuned: Tuned, method: str, budget: float, rate: float, seed: int) -> tuple[Job, float]:
    share = tuned.share(budget)
    if method == PLAIN:
        return Job(tuned.name, method, rate, seed, share, DECAYING), math.inf
    plan = max(1, round(tuned.task.epochs * tuned.protocol.budget))
    return Job(tuned.name, method, rate, seed, share, DECAYING, plan, tuned.floor(budget)), math.inf


def _tuned_as(method: str, kind: str) -> str:
    """Return the method whose rate runs of this kind have."""
    return PLAIN if (method, kind) == (DEFAULT, TIMED) else method


def _around(rate: float) -> list[float]:
    """Return a rate and its neighbours; of three digits, since they are keys."""
    return [float(f"{rate * GRID_FACTOR**step:.3g}") for step in (-1, 0, 1)]


def _trained(job: Job, target: float) -> Curve:
    return Training(job).run(target)
