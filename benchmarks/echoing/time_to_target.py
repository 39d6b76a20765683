"""Seconds until the digits are learnt from a slow server: factors in turn, seed by seed, on one clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import digit_files
from data_sets import Fetched, Listed
from echoed_training import DIGITS, Outcome, batches, digits_echo, train
from file_server import Server
from torch.utils.data import Dataset

FIXED = (1.0, 2.0, 4.0, 5.0, 8.0)
FACTORS: tuple[float | str, ...] = (*FIXED, "auto")
RATIO = 6.0
"""R that the latency of the server is set for."""
WORKERS = 2


def files(port: int) -> Dataset[Any]:
    """The training digits behind the server."""
    return Fetched(port, digit_files.decoded, digit_files.files()[1][: digit_files.TRAIN].tolist())


def calibrate(server: Server, rate: float) -> tuple[float, float]:
    """Set the latency so that a fresh batch takes `RATIO` times a step; seconds of a fresh batch, and of a step.

    The step is measured while the reader works beside it, as it does later.
    """
    down = run(server, 8.0, rate, 0, steps=150).down
    for steps in (16, 24):
        up = run(server, 1.0, rate, 0, steps=steps).up
        server.latency += (RATIO * down - up) * WORKERS / 64
    return run(server, 1.0, rate, 0, steps=24).up, down


def run(server: Server, factor: float | str, rate: float, seed: int, *, steps: int, target: bool = False) -> Outcome:
    """One training from the server of so many steps; with a target it is said afterwards when that was reached."""
    loader = digits_echo(files(server.port), seed, factor, workers=WORKERS)
    outcome = train(DIGITS, loader, rate, seed, steps=steps, target=target, later=True)
    return outcome._replace(expected={other: loader.speed_up(other) for other in FIXED})


def waiting(server: Server, rate: float, seed: int, steps: int = 64) -> tuple[float, float]:
    """Seconds a step from the server, of a bare loader and of an echoed one with factor 1, the start left out."""
    data, found = files(server.port), {}
    for echoed in (seed % 2 == 0, seed % 2 == 1):
        loader = digits_echo(data, seed, 1.0, workers=WORKERS) if echoed else Bare(data, seed)
        found[echoed] = pace(train(DIGITS._replace(score=lambda _: 0.0), loader, rate, seed, steps=steps))
    return found[False], found[True]


def fast(rate: float, seed: int, steps: int = 150) -> dict[str, tuple[float, float]]:
    """Where R < 1, the same files without a server: seconds a step of a bare loader, of factor 1 and of auto, and R."""
    found = {}
    for name, factor in (("bare", None), ("1", 1.0), ("auto", "auto"))[:: 1 if seed % 2 else -1]:
        made, targets = digit_files.files()
        data = Listed(made[: digit_files.TRAIN], targets[: digit_files.TRAIN].tolist(), decode=digit_files.decoded)
        loader = Bare(data, seed) if factor is None else digits_echo(data, seed, factor, workers=WORKERS)
        took = train(DIGITS, loader, rate, seed, steps=steps, target=False)
        found[name] = took.seconds / took.steps, took.up / took.down
    return found


class Bare:
    """The loader as it is; its batches are distorted in the loop, if nothing before does that."""

    fresh, up, down, factor = 0, math.nan, math.nan, 1.0

    def __init__(self, data: Dataset[Any], seed: int, workers: int = WORKERS, distorts: bool = True) -> None:
        self._loader, self._distorts = batches(data, 64, seed, workers), distorts

    def __iter__(self) -> Iterator[Any]:
        return map(digit_files.distorted, self._loader) if self._distorts else iter(self._loader)


Timed = dict[str, list[Outcome]]
"""The runs of each factor, seed by seed; the name of a factor is as `named` says."""


def named(factor: float | str) -> str:
    """ "2", "auto"."""
    return factor if isinstance(factor, str) else f"{factor:g}"


def speed_up(found: Timed, name: str, what: Callable[[Outcome], float]) -> tuple[float, float, float]:
    """How many times less of something there is than with factor 1: ratio of medians, least and most of a seed."""
    base, other = ([what(one) for one in found[key]] for key in ("1", name))
    each = [one / two for one, two in zip(base, other, strict=True)]
    return median(base) / median(other), min(each), max(each)


def seconds(outcome: Outcome) -> float:
    """Seconds to the target; infinite if it was not reached."""
    return outcome.seconds if outcome.reached else math.inf


def pace(outcome: Outcome) -> float:
    """Seconds a step, from the first evaluation to the last: the start of the workers is left out."""
    (first, _), (last, _) = outcome.scores[0], outcome.scores[-1]
    return (last - first) / max(1, len(outcome.scores) - 1) / DIGITS.every


def expected(found: Timed, factor: float, during: float = 1.0) -> float:
    """Steps a second over those with factor 1, as `Echo.speed_up` predicted at the end of the runs with another one."""
    return median(one.expected[factor] for one in found[named(during)])


def before(factor: float) -> float:
    """The factor below; 1 is the least."""
    return FIXED[max(0, FIXED.index(factor) - 1)]
