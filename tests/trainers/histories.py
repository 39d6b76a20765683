"""Random histories of a metric and rules of early stopping for them, by seed."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from looptap.training.progress.forecast.stopping_rules import Patience

COUNT = 10_000


class Case(NamedTuple):
    """A history, a rule's arguments, and whether the metric should fall or rise."""

    history: list[float]
    mode: str
    patience: int
    delta: float
    warm_up: int
    baseline: float | None
    check_finite: bool
    good: float | None
    diverged: float | None


def case(seed: int) -> Case:
    """Return the case of a seed: a random walk with ties, NaNs and infinities."""
    dice, level, history = random.Random(seed), 1.0, []
    for _ in range(dice.randint(1, 40)):
        level += dice.choice([-0.1, -0.05, 0, 0.05, 0.1, dice.gauss(-0.02, 0.05)])
        odd = dice.random()
        even = round(level, 2) if dice.random() < 0.5 else level
        history.append(math.nan if odd < 0.01 else math.inf if odd < 0.015 else even)
    return Case(
        history, dice.choice(["min", "max"]), dice.randint(1, 6), dice.choice([0, 0, 0.05, 0.1, 0.013]),
        dice.choice([0, 0, 3]), dice.choice([None, None, 0.8]), dice.random() < 0.5, dice.choice([None, 0.4]),
        dice.choice([None, 1.3]),
    )  # fmt: skip


def ours(case: Case, like: str) -> int:
    """Return where our rule, deciding like a trainer, stops; 0: nowhere."""
    sign = 1 if case.mode == "min" else -1
    more: dict[str, object] = {}
    if like == "keras":
        more = {"warm_up": case.warm_up, "baseline": _times(sign, case.baseline)}
    if like == "lightning":
        more = {"check_finite": case.check_finite, "good": _times(sign, case.good)}
        more["diverged"] = _times(sign, case.diverged)
    return Patience(case.patience, case.delta, like, **more).stops([sign * value for value in case.history])


def _times(sign: int, value: float | None) -> float | None:
    return None if value is None else sign * value
