"""Tables of the judged recorded runs, and whether the promises hold.

Intervals are of 95%, over as many curves drawn from the same ones with replacement; the cases of one curve, which
differ in the rule alone, stay together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from kind_cases import BACK_SHARE, JUMP_SHARE, MARKS, PHASES, RIVALS, KindVerdict

OURS, WITH_RATES, PAPER, BEST = "ours", "ours, rates", "paper", "best of"
_SHOWN = (*RIVALS, BEST, OURS, "stop known")
_RESAMPLED = 1000
_BELOW_PAPER, _WORSE_KIND = 0.70, 1.10  # times the error of the paper's
_BAND, _BAND_OF_KIND = (0.75, 0.85), 0.65
_UNEVEN = 0.05  # by how much the shares of misses below and above the band may differ
_BEYOND_TQDM = 0.05  # of the run


class OfCurve(Protocol):
    """What was found on a recorded run."""

    @property
    def curve(self) -> tuple[str, int]:
        """The recorded run."""


AnyRow = TypeVar("AnyRow", bound=OfCurve)


class Row(NamedTuple):
    """A judged case: what it was, and the verdict on each method."""

    kind: str
    seed: int
    reports: str
    schedule: str
    patience: int
    min_delta: float
    fired: int
    points: int
    verdicts: dict[str, KindVerdict]

    @property
    def curve(self) -> tuple[str, int]:
        """The recorded run."""
        return self.kind, self.seed

    def error(self, method: str) -> float:
        """Return the error of a method; that of the best of the rivals for "best of"."""
        return min(self.verdicts[name].error for name in RIVALS) if method == BEST else self.verdicts[method].error


class Share(NamedTuple):
    """A quotient of sums and the range in which 95% of resamples have it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def percent(self) -> str:
        """The same in per cent."""
        return f"{self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


def share(rows: Sequence[AnyRow], above: Callable[[AnyRow], float], below: Callable[[AnyRow], float]) -> Share:
    """Return the quotient of the sums of ``above`` and ``below`` over ``rows``."""
    sums: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.zeros(2))
    for row in rows:
        sums[row.curve] += above(row), below(row)
    parts = np.array(list(sums.values()))
    drawn = parts[np.random.default_rng(0).integers(len(parts), size=(_RESAMPLED, len(parts)))].sum(1)
    quotients = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-12)
    low, high = np.quantile(quotients, [0.025, 0.975])
    return Share(float(parts[:, 0].sum() / max(parts[:, 1].sum(), 1e-12)), float(low), float(high))


def to_paper(rows: Sequence[Row], method: str = OURS, other: str = PAPER) -> Share:
    """Return the quotient of the mean errors of two methods."""
    return share(rows, lambda row: row.error(method), lambda row: row.error(other))


def held(rows: Sequence[Row], method: str = OURS) -> Share:
    """Return in what share of looks the band held the truth."""

    def inside(row: Row) -> float:
        verdict = row.verdicts[method]
        return sum(verdict.looks) - sum(verdict.low) - sum(verdict.high)

    return share(rows, inside, lambda row: sum(row.verdicts[method].looks))


def missed(rows: Sequence[Row], side: str) -> float:
    """Return in what share of looks the truth was below ("low") or above the band."""
    found = share(rows, lambda row: sum(getattr(row.verdicts[OURS], side)), lambda row: sum(row.verdicts[OURS].looks))
    return found.value


def grouped(rows: Sequence[AnyRow], key: Callable[[AnyRow], Any]) -> dict[Any, list[AnyRow]]:
    """Return the rows by a key, in the order of keys."""
    found: dict[Any, list[AnyRow]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(sorted(found.items()))


def section(rows: Sequence[Row], title: str, text: str = "") -> list[str]:
    """Return all tables on the rows; nothing without rows."""
    if not rows:
        return []
    curves, fired = len({row.curve for row in rows}), sum(row.fired > 0 for row in rows)
    lines = [
        f"\n## {title}: {len(rows)} runs\n",
        f"{curves} recorded curves of {len({row.kind for row in rows})} kinds, each with three rules. "
        f"The rule ended {fired / len(rows):.0%} of the runs; the others reached their last epoch. {text}\n",
        *promises(rows),
    ]
    keys: dict[str, Callable[[Row], Any]] = {
        "kind": lambda row: row.kind, "rule": lambda row: (row.patience, row.min_delta > 0),
        "metric": lambda row: row.reports, "schedule": lambda row: row.schedule,
    }  # fmt: skip
    for name, key in keys.items():
        lines += _by(rows, name, key)
    return lines + _phases(rows) + _marks(rows) + _rates(rows)


def promises(rows: Sequence[Row]) -> list[str]:
    """Return a table of what was promised, what was found, and whether it holds."""
    kinds = grouped(rows, lambda row: row.kind)
    ratio, band = to_paper(rows), held(rows)
    worse = [f"{kind} {to_paper(some)}" for kind, some in kinds.items() if to_paper(some).low > _WORSE_KIND]
    narrow = [f"{kind} {held(some).percent}" for kind, some in kinds.items() if held(some).high < _BAND_OF_KIND]
    low, high = missed(rows, "low"), missed(rows, "high")
    jumpy = share(rows, lambda row: row.verdicts[OURS].jumps > 1, lambda row: 1.0)
    back = share(rows, lambda row: row.verdicts[OURS].back > BACK_SHARE, lambda row: 1.0)
    jumps = share(rows, lambda row: row.verdicts[OURS].jumps, lambda row: 1.0)
    named = share(rows, lambda row: row.verdicts[OURS].named, lambda row: 1.0)
    found = [
        ("mean error at least 30% below the paper's", f"{ratio} of it", ratio.value <= _BELOW_PAPER),
        ("no kind significantly more than 10% worse than with the paper's", "; ".join(worse) or "none", not worse),
        ("the 80% band holds the truth 75 to 85% of the time", f"{band.value:.1%} ({band.low:.0%} to {band.high:.0%})",
         _BAND[0] <= band.value <= _BAND[1]),
        ("and in no kind significantly below 65% of the time", "; ".join(narrow) or "none below", not narrow),
        ("it misses below and above about equally often (within 5 points)",
         f"truth below {low:.0%}, above {high:.0%}", abs(low - high) <= _UNEVEN),
        *_never(rows),
        (f"the predicted end moves by over {JUMP_SHARE:.0%} of the run at most once without a reason",
         f"{jumps.value:.1f} times a run, {named.value:.1f} with one; more than once in {jumpy.percent} of runs",
         jumpy.value == 0),
        (f"progress never goes back by over {BACK_SHARE:.0%}", f"it does in {back.percent} of runs", back.value == 0),
        *_harm(rows),
    ]  # fmt: skip
    return [
        "| promise | found | |", "| --- | --- | --- |",
        *(f"| {what} | {result} | {'held' if right else '**not held**'} |" for what, result, right in found),
    ]  # fmt: skip


def _never(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    silent = [row for row in rows if not row.fired]
    if not silent:
        return []
    beyond = share(silent, lambda row: (row.error(OURS) - row.error("linear")) / 2, lambda row: 1.0)
    result = f"mean error {beyond.value:+.1%} of the run ({beyond.low:+.1%} to {beyond.high:+.1%}), {len(silent)} runs"
    promise = "where the rule never fires, worse than tqdm by at most 5% of the run"
    return [(promise, result, beyond.value <= _BEYOND_TQDM)]


def _harm(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    known = [row for row in rows if WITH_RATES in row.verdicts]
    if not known:
        return []
    ratio = to_paper(known, WITH_RATES, OURS)
    worse = [
        f"{name} {to_paper(some, WITH_RATES, OURS)}" for name, some in grouped(known, lambda row: row.schedule).items()
        if to_paper(some, WITH_RATES, OURS).low > 1.0
    ]  # fmt: skip
    result = f"{ratio} of the error without" + "".join(f"; {one}" for one in worse)
    return [("knowing the schedule does not hurt overall, nor significantly with any schedule", result,
             ratio.value <= 1.0 and not worse)]  # fmt: skip


def _by(rows: Sequence[Row], name: str, key: Callable[[Row], Any]) -> list[str]:
    lines = [
        f"\n| by {name} | runs | {' | '.join(_SHOWN)} | ours / paper | in the band | below, above | jumps | back |",
        "| --- |" + " ---: |" * (len(_SHOWN) + 6),
    ]
    for value, some in (*grouped(rows, key).items(), ("**all**", list(rows))):
        errors = " | ".join(f"{np.mean([row.error(method) for row in some]):.2f}" for method in _SHOWN)
        jumps = np.mean([row.verdicts[OURS].jumps for row in some])
        back = np.mean([row.verdicts[OURS].back > BACK_SHARE for row in some])
        lines.append(
            f"| {_named(value)} | {len(some)} | {errors} | {to_paper(some)} | {held(some).percent} | "
            f"{missed(some, 'low'):.0%}, {missed(some, 'high'):.0%} | {jumps:.1f} | {back:.0%} |"
        )
    return lines


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"Patience({value[0]}), min_delta {'> 0' if value[1] else '0'}"
    return str(value)


def _phases(rows: Sequence[Row]) -> list[str]:
    methods = (*RIVALS, OURS, "stop known")
    lines = [
        "\nThe mean error in each phase of a run, as a share of the whole run:\n",
        f"| phase | {' | '.join(methods)} | in the band | below, above | below the median |",
        "| --- |" + " ---: |" * (len(methods) + 3),
    ]
    for index, (begin, end) in enumerate(pairwise(PHASES)):
        errors = " | ".join(
            f"{np.mean([row.verdicts[name].off[index] for row in rows if row.verdicts[name].looks[index]]):.2f}"
            for name in methods
        )
        low, under, high, looks = (sum(getattr(row.verdicts[OURS], what)[index] for row in rows)
                                   for what in ("low", "under", "high", "looks"))  # fmt: skip
        lines.append(
            f"| {begin:.0%} to {end:.0%} | {errors} | {1 - (low + high) / looks:.0%} | {low / looks:.0%}, "
            f"{high / looks:.0%} | {under / looks:.0%} |"
        )
    return lines


def _marks(rows: Sequence[Row]) -> list[str]:
    methods = (*RIVALS, OURS, "stop known")
    lines = [
        "\nThe error of the estimate at some moments, as a share of the run (mean, median):\n",
        f"| after | {' | '.join(methods)} |", "| --- |" + " ---: |" * len(methods),
    ]  # fmt: skip
    for index, mark in enumerate(MARKS):
        cells = []
        for name in methods:
            errors = [row.verdicts[name].marks[index] for row in rows]
            cells.append(f"{np.mean(errors):.2f}, {np.median(errors):.2f}")
        lines.append(f"| {mark:.0%} of the run | {' | '.join(cells)} |")
    return lines


def _rates(rows: Sequence[Row]) -> list[str]:
    known = [row for row in rows if WITH_RATES in row.verdicts]
    if not known:
        return []
    lines = [
        "\nWith the learning rates given (`rates=`), for schedules that are known in advance and change the rate:\n",
        "| schedule | runs | ours | ours, rates | with / without |", "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, some in (*grouped(known, lambda row: row.schedule).items(), ("**all**", known)):
        ours, other = (np.mean([row.error(method) for row in some]) for method in (OURS, WITH_RATES))
        lines.append(f"| {name} | {len(some)} | {ours:.2f} | {other:.2f} | {to_paper(some, WITH_RATES, OURS)} |")
    return lines
