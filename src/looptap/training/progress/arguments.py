"""The arguments of `Progress`, checked."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from looptap.training.progress.forecast.earlier_runs import newest_curves
from looptap.training.progress.forecast.stopping_rules import Floats, Function, Never, StopRule


def check_counts(**given: object) -> None:
    """Raise ValueError for anything but None and whole numbers from 1."""
    for name, count in given.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, numbers.Integral) or count < 1):
            raise ValueError(f"{name}={count!r} must be a whole number, 1 or more.")


def check_positive(**values: object) -> None:
    """Raise ValueError for anything but None and finite numbers above 0."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
            raise ValueError(f"{name}={value!r} must be a number above 0.")


def stop_rule(rule: StopRule | Callable[[list[float]], object] | None) -> StopRule:
    """Return the stopping rule for an argument. Raises TypeError."""
    if rule is None:
        return Never()
    if isinstance(rule, StopRule):
        return rule
    if callable(rule) and not isinstance(rule, type):
        return Function(rule)
    raise TypeError(f"rule={rule!r:.60} must be a rule such as Patience(5), or a function of the list of all errors.")


def callables(**given: object) -> None:
    """Raise TypeError for anything but None and functions."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}={function!r:.60} must be a function.")


def seed_of(seed: object) -> int:
    """Return ``seed``. Raises ValueError if no random generator accepts it."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed={seed!r:.60} must be a whole number, 0 or more.")
    return int(seed)


def rates_of(rates: Sequence[float] | None) -> Floats | None:
    """Return the learning rates as an array. Raises ValueError.

    They must be numbers of 0 or more, the first above 0.
    """
    if rates is None:
        return None
    found = _numbers(rates)
    if found is None or not len(found) or not found[0] > 0 or not (np.isfinite(found) & (found >= 0)).all():
        raise ValueError(
            f"rates={rates!r:.60} must be a list of learning rates, the mean one before each validation, of which the "
            "first is above 0 and none below."
        )
    return found


def earlier_from(history: Sequence[Sequence[float]]) -> list[Floats]:
    """Return the curves of earlier runs. Raises ValueError."""
    curves = [_numbers(curve) for curve in history] if isinstance(history, Iterable) else [None]
    if any(curve is None for curve in curves):
        raise ValueError(f"history={history!r:.60} must be a list of curves, each a list of what a run validated.")
    return newest_curves([curve for curve in curves if curve is not None])


def _numbers(values: object) -> Floats | None:
    """Return a list of numbers as an array; None if it is not one."""
    try:
        found = np.asarray(None if isinstance(values, str) else values, float)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 1 else None


def as_float(value: Any) -> float:
    """Return ``value`` as a number; NaN if it is not one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def ignored_rule(rule: StopRule, point: int) -> str:
    """Return the note on a loop that trains on after its ``rule`` has fired."""
    kind = type(rule).__name__
    return (
        f"{kind} stopped the run at validation {point}, but the loop continues: early stopping is no longer "
        "forecast. End the loop when validated() returns True, or declare the rule that ends it."
    )
