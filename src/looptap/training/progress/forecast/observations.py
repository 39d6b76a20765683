"""The validations that a forecast is made from, the old ones merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looptap.training.progress.forecast.stopping_rules import Floats

_MAX_OBSERVATIONS = 120  # observations; older ones are merged


class Observations(NamedTuple):
    """Errors ``y`` with variances ``v`` at ascending raw points ``x``.

    Inserted validations are at fractions of a raw point.
    """

    x: Floats
    y: Floats
    v: Floats


class MergedObservations(NamedTuple):
    """Observations; old ones are means of as many as ``merged`` says."""

    x: Floats
    y: Floats
    v: Floats
    merged: Floats


def merged(seen: Observations) -> MergedObservations:
    """Return at most `_MAX_OBSERVATIONS`: the newest half, and means of older ones."""
    count = len(seen.x)
    if count <= _MAX_OBSERVATIONS:
        return MergedObservations(seen.x, seen.y, seen.v, np.ones(count))
    recent = _MAX_OBSERVATIONS // 2
    edges = np.linspace(0, count - recent, _MAX_OBSERVATIONS - recent + 1).astype(int)
    edges = np.concatenate([edges, np.arange(count - recent + 1, count + 1)])
    sizes = np.diff(edges)
    x, y, v = (np.add.reduceat(np.asarray(column), edges[:-1]) / sizes for column in seen)
    return MergedObservations(x, y, v / sizes, sizes.astype(float))


def lowest(seen: MergedObservations) -> float:
    """Return where the running mean of three points is lowest, at least 2."""
    if len(seen.x) < 4:
        return 2.0
    place = int(np.argmin(np.convolve(seen.y, np.ones(3) / 3, mode="valid"))) + 1
    return max(2.0, float(round(seen.x[place])))
