"""The earlier runs of a job: what they validated, and what follows for the next.

Where this rule would have stopped them says where it may stop the next one. A forecast draws futures from the run's
own validations, and weighs each by how near it stops to the earlier runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stopping_rules import Floats, StopRule

MAX_EARLIER_RUNS = 8
"""Maximum number of earlier runs that are used, the newest ones."""
MAX_CURVE_POINTS = 2000
"""Points of a curve that a run keeps for later ones."""
_SPREAD, _SPREAD_RUNS = 0.2, 3.0  # of the logarithm of a stop, before it is known; and as how many runs that counts
_UNLIKE_WEIGHT = 0.05  # of a stop far from all earlier ones; the nearest has 1: this run may be unlike them


def facts_of(metric: Metric, values: Sequence[float], *, finished: bool) -> dict[str, Any]:
    """Return the curve of a run as later ones read it with `curves_in`."""
    return {"metric": metric.kind, "values": list(values[:MAX_CURVE_POINTS]), "finished": finished}


def curves_in(kept: Sequence[Any], metric: Metric) -> list[Floats]:
    """Return the curves of finished runs with this metric; ``kept`` is untrusted."""
    curves = []
    for facts in kept:
        if not isinstance(facts, dict) or facts.get("finished") is not True or facts.get("metric") != metric.kind:
            continue
        values = facts.get("values")
        if isinstance(values, list) and all(type(value) in (int, float) for value in values):
            curves.append(np.array(values[:MAX_CURVE_POINTS], float))
    return curves


def newest_curves(curves: Sequence[Floats]) -> list[Floats]:
    """Return the newest ``curves`` that have any value, and only numbers."""
    return [curve for curve in curves[-MAX_EARLIER_RUNS:] if len(curve) and np.isfinite(curve).all()]


def stops_of(curves: Sequence[Floats], rule: StopRule, metric: Metric, last: int) -> list[int]:
    """Return where ``rule`` stops the runs with these ``curves``.

    One that it does not stop has reached its ``last`` validation, or was ended by something else and is left out.
    """
    found = [rule.stops(metric.compared(curve).tolist()) or last * (len(curve) >= last) for curve in curves]
    return [stop for stop in found if stop]


def weights_of(stops: Sequence[int], draws: Floats) -> Floats:
    """Return the weights of drawn stops, given the ``stops`` of earlier runs.

    The logarithm of a stop is taken for normal, its mean and spread for unknown but for what the earlier runs say.

    >>> weights_of([30, 34], np.array([10.0, 31.0, 33.0, 90.0])).round(2).tolist()
    [0.06, 1.04, 1.04, 0.06]
    """
    count, logs = len(stops), np.log(stops)
    freedom = _SPREAD_RUNS + count - 1
    variance = (_SPREAD_RUNS * _SPREAD**2 + float(((logs - logs.mean()) ** 2).sum())) / freedom
    off = (np.log(np.maximum(draws, 1.0)) - logs.mean()) / math.sqrt(variance * (1 + 1 / count))
    return np.asarray((1 + off**2 / freedom) ** (-(freedom + 1) / 2) + _UNLIKE_WEIGHT)
