"""Plays recorded runs to `Progress`, as a loop would, and judges what it showed.

Every curve is judged with three rules of stopping: one of little patience, one of some, and one of much; min_delta is 0
for every other one. Recorded processor time is played as wall time, stretched so that all validations of a run would
take half an hour: a step then takes about a second, of which the paper's window has ten. Nothing is inserted, and each
method is looked at `LOOKS` times a run, at the same moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from kind_curves import PARTS, UNIT_SECONDS, KindCurve
from published_methods import FormerProgress, PaperProgress

from looptap.training.progress import Patience, Progress
from looptap.training.progress.forecast.metrics import Metric

METHODS = ("linear", "former", "paper", "ours", "ours, rates", "stop known")
"""What is judged; "ours, rates" is given the learning rates, where they are known ahead and change."""
RIVALS = METHODS[:3]
LOOKS = 150
PLAYED_SECONDS = 1800.0
PATIENCES = ((3, 5), (8, 10, 15), (20, 30, 40))
PHASES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Where the phases of a run begin and end, as shares of its time."""
MARKS = (0.1, 0.25, 0.5)
"""Shares of the time at which the error of the forecast is published."""
JUMP_SHARE, BACK_SHARE = 0.10, 0.02
"""Of the run: a move of the shown end that needs a reason; how far the shown progress may run back."""


class KindCase(NamedTuple):
    """A recorded run with one rule of stopping."""

    curve: KindCurve
    rule: Patience
    earlier: tuple[list[float], ...] = ()
    """What earlier runs of the job have validated."""

    @property
    def stop(self) -> int:
        """The validation after which the run ends."""
        return self.fired or len(self.curve.values)

    @property
    def fired(self) -> int:
        """The validation at which the rule stops the run; 0 if it never does."""
        return self.rule.stops(Metric(self.curve.metric).compared(np.array(self.curve.values)).tolist())

    @property
    def with_rates(self) -> bool:
        """Whether the learning rates are known ahead, and change."""
        rates = self.curve.rates
        return rates is not None and max(rates) > min(rates)


class Look(NamedTuple):
    """What was shown at a moment: seconds since the start, and what remains."""

    at: float
    remaining: float
    low: float
    high: float
    fraction: float
    reason: str


class KindVerdict(NamedTuple):
    """How wrong a method was on a case, over the run and by phase.

    ``error`` is the area between shown and true remaining time over that of the true one; ``marks`` are the errors at
    `MARKS` as shares of the run. Of each phase: the mean error as a share of the run, the looks, and at how many of
    them the truth lay below the band, below the median, and above the band. ``jumps`` were not explained, ``named``
    were; ``back`` is how far the shown progress ran back at most.
    """

    error: float
    marks: list[float]
    off: list[float]
    looks: list[int]
    low: list[int]
    under: list[int]
    high: list[int]
    jumps: int
    named: int
    back: float


def cases(curves: Sequence[KindCurve]) -> list[KindCase]:
    """Return each curve with three rules, which differ from curve to curve."""
    found = []
    for curve in curves:
        first = crc32(curve.kind.encode())
        turn = first + curve.seed
        for place, some in enumerate(PATIENCES):
            delta = curve.min_delta if (first + curve.seed // 2 + place) % 2 else 0.0
            found.append(KindCase(curve, Patience(some[turn % len(some)], delta)))
    return found


def with_earlier(case: KindCase, curves: Sequence[KindCurve]) -> KindCase:
    """Return ``case`` with the runs of other seeds, until its rule has stopped each."""
    others = [KindCase(one, case.rule) for one in curves if one.kind == case.curve.kind and one.seed != case.curve.seed]
    return case._replace(earlier=tuple(list(one.curve.values[: one.stop]) for one in others))


def methods(case: KindCase) -> tuple[str, ...]:
    """Return the methods that are judged on a case; rates are given with one rule."""
    known = case.with_rates and case.rule.patience in PATIENCES[1]
    return tuple(name for name in METHODS if known or name != "ours, rates")


def follow(case: KindCase, method: str) -> Iterator[Look]:
    """Play a case to a method; yield what it shows at equal steps of time."""
    curve, stop = case.curve, case.stop
    clock = [0.0]
    progress = _made(case, method, lambda: clock[0])
    total, looked = seconds(case), 0.0
    train, check = _seconds(curve)

    def look() -> Iterator[Look]:
        nonlocal looked
        progress.estimator.took = 0.0  # forecasts are not put off because this machine is slow
        if clock[0] - looked >= total / LOOKS and (found := progress.estimate()) is not None:
            looked = clock[0]
            yield Look(looked, found.remaining, found.low, found.high, progress.fraction, progress.reason)

    for point in range(stop):
        batches, taken = _steps(curve, point, train)
        for _, second in zip(progress.train(batches), taken, strict=True):
            clock[0] += second
            yield from look()
        for _ in progress.validate([_batch(curve.checked)]):
            clock[0] += check[point]
        progress.validated(curve.values[point])
        if point < stop - 1:
            yield from look()


def _made(case: KindCase, method: str, clock: Callable[[], float]) -> Progress:
    curve = case.curve
    more: dict[str, Any] = {"rule": case.rule, "epochs": len(curve.values)}
    kind = {"former": FormerProgress, "paper": PaperProgress}.get(method, Progress)
    match method:
        case "linear":
            more["rule"] = None
        case "ours, rates":
            more["rates"] = curve.rates
        case "stop known":
            more |= {"rule": None, "epochs": case.stop}
    return kind(curve.steps[0], validation=curve.checked, metric=curve.metric, clock=clock, **more)


def seconds(case: KindCase) -> float:
    """Return how long the case takes, as played."""
    train, check = _seconds(case.curve)
    return float(train[: case.stop].sum() + check[: case.stop].sum())


def _seconds(curve: KindCurve) -> tuple[np.ndarray, np.ndarray]:
    """Return the played seconds of training, by point and part, and of validation."""
    train = np.maximum(np.array(curve.train, float).reshape(-1, PARTS), 1.0) * UNIT_SECONDS
    check = np.maximum(np.array(curve.check, float), 1.0) * UNIT_SECONDS
    stretch = PLAYED_SECONDS / (train.sum() + check.sum())
    return train * stretch, check * stretch


def _steps(curve: KindCurve, point: int, train: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
    """Return the batches of the steps before a validation, and the seconds of each."""
    edges = np.linspace(0, curve.steps[point], PARTS + 1).round().astype(int)
    batches: list[np.ndarray] = []
    taken: list[float] = []
    for part, count in enumerate(np.diff(edges).tolist()):
        batches += [_batch(round(curve.sizes[point * PARTS + part]))] * count
        taken += [float(train[point, part]) / max(1, count)] * count
    return batches, taken


@lru_cache
def _batch(size: int) -> np.ndarray:
    return np.empty((size, 0))


def judge(case: KindCase, method: str) -> KindVerdict:
    """Return how wrong a method was on a case."""
    total = seconds(case)
    looks = list(follow(case, method))
    at = np.array([look.at for look in looks])
    shown, low, high, done = (np.array([getattr(look, name) for look in looks])
                              for name in ("remaining", "low", "high", "fraction"))  # fmt: skip
    true = total - at
    wrong = np.abs(shown - true)
    phase = np.clip(np.searchsorted(PHASES, at / total, side="right") - 1, 0, len(PHASES) - 2)
    chosen = [phase == index for index in range(len(PHASES) - 1)]
    moves = np.abs(np.diff(at + shown)) > JUMP_SHARE * total
    named = np.array([bool(look.reason) for look in looks[1:]], bool)
    marks = [float(wrong[min(np.searchsorted(at, mark * total), len(at) - 1)] / total) for mark in MARKS]
    return KindVerdict(
        round(float((wrong * np.diff(at, prepend=0.0)).sum() / (total**2 / 2)), 4),
        [round(mark, 4) for mark in marks],
        [round(float(wrong[some].mean() / total), 4) if some.any() else 0.0 for some in chosen],
        [int(some.sum()) for some in chosen],
        *([int(missed[some].sum()) for some in chosen] for missed in (true < low, true < shown, true > high)),
        jumps=int((moves & ~named).sum()),
        named=int((moves & named).sum()),
        back=round(float((np.maximum.accumulate(done) - done).max()), 4),
    )
