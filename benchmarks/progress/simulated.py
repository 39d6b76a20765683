"""Synthetic training runs from a seed: errors, and the times of all work.

Power laws, double exponentials, over-fitting, and learning rates that fall exponentially or in steps, with noise,
spikes and slowdowns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KINDS = ("power", "double", "overfit", "exponential", "step")
LOADS = ("steady", "slower for a while", "slower for good")
PATIENCE, DELTA = 9, 0.0082
_CHUNKS = 20  # stretches between two raw points


class Stretch(NamedTuple):
    """A stretch of work: seconds, phase, instances, and its end ``x`` in raw points.

    ``phase`` is training (0), validation (1), or neither (2). ``error`` is there at the end of a validation, with its
    known ``variance`` if it was an inserted one.
    """

    phase: int
    seconds: float
    instances: float
    x: float
    error: float | None = None
    variance: float | None = None


@dataclass
class Run:
    """A run: its curve at all raw points, its plan, its pace and learning rates."""

    kind: str
    load: str
    seed: int
    point: float
    last: int
    validation: float
    ratio: float
    pace: float  # instances of training a second
    jitter: float
    other: float  # of a cycle
    smooth: np.ndarray  # the error without noise, at points 1..last
    errors: np.ndarray  # as validated
    rates: np.ndarray | None


def make(seed: int, kind: str, load: str) -> Run:
    """Return the run of a ``seed``, of a kind of curve and of load."""
    rng = np.random.default_rng([seed, KINDS.index(kind), LOADS.index(load)])
    halves = bool(rng.integers(2))
    last, point = (50, 25_000.0) if halves else (100, 50_000.0)
    x = np.arange(1, last + 1, dtype=float)
    rates = None
    floor, height = rng.uniform(0.03, 0.3), rng.uniform(0.3, 0.7)
    u = x
    if kind == "exponential":
        rates = rng.uniform(0.9, 0.98) ** (x - 1)
        u = np.cumsum(rates)
    if kind == "step":
        every = int(rng.integers(8, 25))
        rates = 0.1 ** ((x - 1) // every)
        u = x
    power = (1 + u / rng.uniform(0.3, 2)) ** -rng.uniform(0.4, 1.5)
    double = 0.7 * np.exp(-u / rng.uniform(0.8, 4)) + 0.3 * np.exp(-u / rng.uniform(8, 30))
    shape = double if kind == "double" else power
    smooth = floor + height * shape
    if kind == "overfit":
        smooth = smooth + rng.uniform(0.05, 0.25) * np.maximum(0, x - rng.uniform(5, 25)) / last
    if kind == "step" and rates is not None:
        for place in np.flatnonzero(np.diff(rates)) + 1.0:
            gain = rng.uniform(0.02, 0.12) * smooth[0] * 0.4 ** (place / every - 1)
            smooth = smooth - gain * np.where(x > place, 1 - np.exp(-(x - place) / 0.7), 0)
    smooth = np.clip(smooth, 0.005, 0.98)
    level = smooth[0] * rng.uniform(0.01, 0.04) * (smooth / smooth[0]) ** 0.5
    if rates is not None:
        level = level * np.sqrt(np.clip(rates, 0.01, 1))
    noise, carried, keep = np.zeros(last), 0.0, rng.uniform(0.0, 0.5)
    for i in range(last):
        carried = keep * carried + np.sqrt(1 - keep**2) * rng.standard_normal()
        noise[i] = carried * level[i] + (rng.random() < 0.01) * rng.uniform(3, 8) * level[i]
    errors = np.clip(smooth + noise, 0.002, 0.999)
    return Run(
        kind, load, seed, point, last,
        validation=float(rng.choice([0.04, 0.25])) * 50_000,
        ratio=rng.uniform(1.05, 3.0), pace=50_000 / rng.uniform(60, 300), jitter=rng.uniform(0.01, 0.06),
        other=rng.uniform(0, 0.05), smooth=smooth, errors=errors, rates=rates,
    )  # fmt: skip


def stretches(run: Run, stop: int, ahead: list[int] | None = None, subset: int = 0) -> list[Stretch]:
    """Return all work until raw point ``stop``; ``ahead`` inserts validations."""
    rng = np.random.default_rng([run.seed, 77])
    found: list[Stretch] = []
    train, validate = run.point / run.pace, run.validation / run.pace / run.ratio
    smooth = np.concatenate([[min(0.98, 1.6 * run.smooth[0])], run.smooth])
    for j in range(stop):
        here = ahead[j] if ahead and j < len(ahead) else 0
        places = {round(_CHUNKS * (i + 1) / (here + 1)) for i in range(here)}
        for chunk in range(1, _CHUNKS + 1):
            found.append(Stretch(0, _noisy(rng, train / _CHUNKS, run.jitter), run.point / _CHUNKS, j + chunk / _CHUNKS))
            if chunk in places and chunk < _CHUNKS:
                x = j + chunk / _CHUNKS
                true = float(np.interp(x, np.arange(len(smooth)), smooth))
                variance = true * (1 - true) / subset * (1 - subset / run.validation)
                error = float(np.clip(true + np.sqrt(variance) * rng.standard_normal(), 0.002, 0.999))
                seconds = _noisy(rng, validate * subset / run.validation, run.jitter)
                seen = error * (1 - error) / subset * (1 - subset / run.validation)
                found.append(Stretch(1, seconds, subset, x, error, seen))
        parts = 5
        for part in range(1, parts + 1):
            error = float(run.errors[j]) if part == parts else None
            found.append(Stretch(1, _noisy(rng, validate / parts, run.jitter), run.validation / parts, j + 1.0, error))
        found.append(Stretch(2, run.other * (train + validate) * rng.uniform(0.5, 1.5), 0, j + 1.0))
    return _loaded(found, run.load, rng)


def _noisy(rng: np.random.Generator, seconds: float, jitter: float) -> float:
    return float(seconds * np.exp(jitter * rng.standard_normal()))


def _loaded(found: list[Stretch], load: str, rng: np.random.Generator) -> list[Stretch]:
    if load == "steady":
        return found
    begin = rng.uniform(0.15, 0.7)
    end, factor = (begin + 0.15, 1.8) if load == "slower for a while" else (1.0, 1.5)
    count = len(found)
    return [s._replace(seconds=s.seconds * factor) if begin <= i / count < end else s for i, s in enumerate(found)]
