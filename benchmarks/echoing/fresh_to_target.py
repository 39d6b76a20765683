"""Fresh examples until the target, and what equal fresh data teaches."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from echoed_training import DIGITS, LANGUAGE, Outcome, digits_echo, language_echo, pictures, train
from rich.progress import track

from looptap.training.echoing import AFTER, BATCH, BEFORE, SHUFFLED

sys.path.append(str(Path(__file__).resolve().parents[1]))

from worker_pool import worker_pool

SEEDS, DEVELOPMENT = tuple(range(5)), (100, 101)
"""The reported seeds, and those with which the learning rates were chosen."""
FEW = 3
"""The number of seeds of tables that nothing else is derived from."""
RATES = {
    ("digits", 64): (0.035, 0.05, 0.07), ("digits", 256): (0.07, 0.1, 0.14),
    ("language", 32): (0.006, 0.012, 0.024), ("language", 256): (0.012, 0.024, 0.048),
}  # fmt: skip
SIZES = {"digits": (64, 256), "language": (32, 256)}
LIMITS = {("digits", 64): 2000, ("digits", 256): 1000, ("language", 32): 3000, ("language", 256): 600}
"""The most steps of a run."""
FINAL = 30_000
"""The number of examples in the comparison at equal fresh data."""


class Job(NamedTuple):
    """One training in memory; data, model and echo share ``seed``."""

    task: str
    size: int
    mode: str
    factor: float
    buffer: int
    rate: float
    seed: int
    final: bool = False


def done(job: Job) -> Outcome:
    """Run a job."""
    digits = job.task == "digits"
    if digits:
        loader = digits_echo(
            pictures(job.mode), job.seed, job.factor, job.mode, size=job.size, buffer=job.buffer
        )  # fmt: skip
    else:
        loader = language_echo(job.seed, job.factor, job.mode, size=job.size, buffer=job.buffer)
    task = DIGITS if digits else LANGUAGE
    if job.final:
        return train(task, loader, job.rate, job.seed, steps=10**9, fresh=FINAL, target=False, decay=True)
    return train(task, loader, job.rate, job.seed, steps=LIMITS[job.task, job.size])


def all_done(jobs: Iterable[Job], what: str) -> dict[Job, Outcome]:
    """Run all jobs, as many at once as there are processors."""
    jobs = list(dict.fromkeys(jobs))
    with worker_pool() as pool:
        return dict(zip(jobs, track(pool.map(done, jobs), what, len(jobs)), strict=True))


def grid() -> dict[Job, Outcome]:
    """Run every rate for every task and batch size without echo."""
    jobs = [
        Job(task, size, BEFORE if task == "digits" else AFTER, 1.0, _usual(task, size), rate, seed)
        for (task, size), rates in RATES.items() for rate in rates for seed in DEVELOPMENT
    ]  # fmt: skip
    return all_done(jobs, "learning rates")


def best(found: dict[Job, Outcome], task: str, size: int) -> float:
    """Return the rate that needs least fresh data, on average over the seeds."""
    return min(RATES[task, size], key=lambda rate: needed(found, task, size, rate))


def needed(found: dict[Job, Outcome], task: str, size: int, rate: float) -> float:
    """Return the mean fresh examples of a rate; infinite if a seed did not arrive."""
    every = [fresh(one) for job, one in found.items() if (job.task, job.size, job.rate) == (task, size, rate)]
    return sum(every) / len(every)


def fresh(outcome: Outcome) -> float:
    """Return the fresh examples until the target; infinite if it was not reached."""
    return outcome.fresh if outcome.reached else math.inf


class Row(NamedTuple):
    """One line of a table: all but the seed of its jobs."""

    task: str
    size: int
    mode: str
    factor: float
    buffer: int


def _usual(task: str, size: int) -> int:
    return 300 if task == "digits" else 8 * size


def rows() -> dict[str, list[Row]]:
    """Return the tables: by insertion point, batch size and buffer (Fig. 3, 6, 7)."""
    points = [Row("digits", 64, BEFORE, e, 300) for e in (2.0, 4.0, 5.0, 8.0)]
    points += [Row("digits", 64, mode, e, 300) for mode in (AFTER, SHUFFLED, BATCH) for e in (2.0, 4.0)]
    large = [Row("digits", 256, mode, e, 300) for mode, e in ((BEFORE, 4.0), (BATCH, 4.0))]
    buffers = [
        Row("digits", 64, mode, 4.0, buffer) for mode in (BEFORE, AFTER, SHUFFLED) for buffer in (64, 1200)
        if mode == BEFORE or buffer != 64
    ]  # fmt: skip
    deep = [
        Row("language", size, AFTER, e, _usual("language", size)) for size in SIZES["language"]
        for e in (2.0, 4.0, 8.0, 16.0)
    ]  # fmt: skip
    whole = [Row("language", size, BATCH, 4.0, _usual("language", size)) for size in SIZES["language"]]
    return {"points": points, "sizes": large, "buffers": buffers, "language": deep + whole}


def base(row: Row) -> Row:
    """Return the same row without echo."""
    return Row(row.task, row.size, BEFORE if row.task == "digits" else AFTER, 1.0, _usual(row.task, row.size))


def jobs(every: Iterable[Row], rates: dict[tuple[str, int], float], seeds: Sequence[int] = SEEDS) -> list[Job]:
    """Return the jobs of the rows and baselines, with fewer seeds where few do."""
    wanted = dict.fromkeys(one for row in every for one in (base(row), row))
    return [
        Job(*row, rates[row.task, row.size], seed) for row in wanted
        for seed in (seeds if row.task == "language" or row[1:3] + row[4:] == (64, BEFORE, 300) else seeds[:FEW])
    ]  # fmt: skip


def fresh_of(found: dict[Job, Outcome], row: Row) -> list[float]:
    """Return the fresh examples to the target, seed by seed."""
    return [fresh(one) for job, one in found.items() if Row(*job[:5]) == row and not job.final]


def steps_of(found: dict[Job, Outcome], factor: float | str, seed: int) -> int:
    """Return the steps to learn the digits with a factor; for "auto" plenty."""
    needs = {
        job.factor: outcome.steps for job, outcome in found.items()
        if Row(*job[:5]) == Row("digits", 64, BEFORE, job.factor, 300) and job.seed == seed and not job.final
    }  # fmt: skip
    return needs[factor] if isinstance(factor, float) else int(1.4 * max(needs.values()))


def fewer(found: dict[Job, Outcome], row: Row) -> tuple[float, float, float]:
    """Return how many times less fresh data it takes: ratio of medians, and range."""
    after = fresh_of(found, row)
    before = fresh_of(found, base(row))[: len(after)]
    each = [one / two for one, two in zip(before, after, strict=True)]
    return median(before) / median(after), min(each), max(each)


def finals(rate: float, seeds: Sequence[int] = SEEDS) -> dict[Job, Outcome]:
    """Train on equal fresh data, echoed and not, with a rate that falls to 0."""
    wanted = [Job("digits", 64, BEFORE, e, 300, rate, seed, True) for e in (1.0, 2.0, 5.0) for seed in seeds]
    return all_done(wanted, "equal fresh data")
