"""What a host hands to `Progress`, checked, and what it reads, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from looptap.training.progress.ensemble import Earlier
from looptap.training.progress.history import earlier_of
from looptap.training.progress.metrics import Metric
from looptap.training.progress.rules import Function, Never, StopRule


def counts(**given: object) -> None:
    """Raise ValueError for what is neither None nor a whole number from 1 on."""
    for name, count in given.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(f"{name}={count!r}: it is a whole number, 1 or more.")


def positive(**values: object) -> None:
    """Raise ValueError for what is neither None nor a finite number above 0."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r}: it is a number above 0.")


def rule_of(rule: StopRule | Callable[[list[float]], object] | None) -> StopRule:
    """The rule that is meant; raises TypeError."""
    if rule is None:
        return Never()
    if isinstance(rule, StopRule):
        return rule
    if callable(rule):
        return Function(rule)
    raise TypeError(f"rule={rule!r:.60}: it is a rule such as Patience(5), or a function of the list of all errors.")


def earlier_from(history: Sequence[Sequence[float]], metric: Metric) -> list[Earlier]:
    """The curves of earlier runs, as errors."""
    return earlier_of([metric.errors(np.asarray(curve, float)) for curve in history])


def number_of(value: Any) -> float:
    """``value`` as a number, NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def words(seconds: float) -> str:
    """A length of time as people say it.

    >>> words(4000)
    '67 min'
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
