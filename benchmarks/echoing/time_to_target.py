"""Seconds until the digits are learnt from a slow server, on one clock."""

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
"""The ratio R that the latency of the server is set for."""
WORKERS = 2


def files(port: int) -> Dataset[Any]:
    """Return the training digits behind the server."""
    return Fetched(port, digit_files.decoded, digit_files.files()[1][: digit_files.TRAIN].tolist())


def calibrate(server: Server, rate: float) -> tuple[float, float]:
    """Set the latency so that a fresh batch takes `RATIO` times a step; return both.

    The step is measured while the reader works beside it, as it does later.
    """
    down = run(server, 8.0, rate, 0, steps=150).down
    for steps in (16, 24):
        up = run(server, 1.0, rate, 0, steps=steps).up
        server.latency += (RATIO * down - up) * WORKERS / 64
    return run(server, 1.0, rate, 0, steps=24).up, down


def run(server: Server, factor: float | str, rate: float, seed: int, *, steps: int, target: bool = False) -> Outcome:
    """Train from the server for so many steps; evaluate ``target`` afterwards."""
    loader = digits_echo(files(server.port), seed, factor, workers=WORKERS)
    outcome = train(DIGITS, loader, rate, seed, steps=steps, target=target, later=True)
    return outcome._replace(expected={other: loader.speed_up(other) for other in FIXED})


def waiting(server: Server, rate: float, seed: int, steps: int = 64) -> tuple[float, float]:
    """Return the seconds per step from the server, bare and with factor 1."""
    data, found = files(server.port), {}
    for echoed in (seed % 2 == 0, seed % 2 == 1):
        loader = digits_echo(data, seed, 1.0, workers=WORKERS) if echoed else Bare(data, seed)
        found[echoed] = pace(train(DIGITS._replace(score=lambda _: 0.0), loader, rate, seed, steps=steps))
    return found[False], found[True]


def fast(rate: float, seed: int, steps: int = 150) -> dict[str, tuple[float, float]]:
    """Return seconds per step, and R, without a server: bare, factor 1, auto."""
    found = {}
    for name, factor in (("bare", None), ("1", 1.0), ("auto", "auto"))[:: 1 if seed % 2 else -1]:
        made, targets = digit_files.files()
        data = Listed(made[: digit_files.TRAIN], targets[: digit_files.TRAIN].tolist(), decode=digit_files.decoded)
        loader = Bare(data, seed) if factor is None else digits_echo(data, seed, factor, workers=WORKERS)
        took = train(DIGITS, loader, rate, seed, steps=steps, target=False)
        found[name] = took.seconds / took.steps, took.up / took.down
    return found


class Bare:
    """The loader without echo; its batches are distorted in the loop if need be."""

    fresh, up, down, factor = 0, math.nan, math.nan, 1.0

    def __init__(self, data: Dataset[Any], seed: int, workers: int = WORKERS, distorts: bool = True) -> None:
        self._loader, self._distorts = batches(data, 64, seed, workers), distorts

    def __iter__(self) -> Iterator[Any]:
        return map(digit_files.distorted, self._loader) if self._distorts else iter(self._loader)


Timed = dict[str, list[Outcome]]
"""The runs of each factor, seed by seed; `named` gives the keys."""


def named(factor: float | str) -> str:
    """Return the name of a factor: "2", "auto"."""
    return factor if isinstance(factor, str) else f"{factor:g}"


def speed_up(found: Timed, name: str, what: Callable[[Outcome], float]) -> tuple[float, float, float]:
    """Return how many times less than with factor 1: ratio of medians, and range."""
    base, other = ([what(one) for one in found[key]] for key in ("1", name))
    each = [one / two for one, two in zip(base, other, strict=True)]
    return median(base) / median(other), min(each), max(each)


def seconds(outcome: Outcome) -> float:
    """Return the seconds to the target; infinite if it was not reached."""
    return outcome.seconds if outcome.reached else math.inf


def pace(outcome: Outcome) -> float:
    """Return the seconds per step between the first evaluation and the last."""
    (first, _), (last, _) = outcome.scores[0], outcome.scores[-1]
    return (last - first) / max(1, len(outcome.scores) - 1) / DIGITS.every


def expected(found: Timed, factor: float, during: float = 1.0) -> float:
    """Return the speed-up that `Echo.speed_up` predicted during other runs."""
    return median(one.expected[factor] for one in found[named(during)])


def before(factor: float) -> float:
    """Return the factor below; 1 is the least."""
    return FIXED[max(0, FIXED.index(factor) - 1)]
