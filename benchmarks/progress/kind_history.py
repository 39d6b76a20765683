"""What the earlier runs of a job are worth, on recorded runs of other seeds.

The kept runs have been judged, so these are runs for development, on which the method was chosen. The forecast of the
stop alone is judged, at `MOMENTS` validations of each run: the times of steps play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from kind_cases import KindCase, cases, with_earlier
from kind_curves import DEVELOPMENT_FILE, read
from kind_tables import Share, grouped, share
from rich.progress import track

from looptap.training.progress.forecast.earlier_runs import newest_curves
from looptap.training.progress.forecast.metrics import Metric
from looptap.training.progress.forecast.stop_forecast import StopForecast

TITLE = "Earlier runs of the same job"
SEEDS, EARLIER_SEEDS = (0, 1), range(4)
"""Of the runs that are judged, and of those of which the others are the earlier ones."""
MOMENTS = 8
PHASES = (0.0, 0.25, 0.5, 1.0)


class HistoryRow(NamedTuple):
    """The forecasts of a run, without its earlier runs and with them.

    For each moment: the share of the run that is over, how far the median is from the stop as a share of the run, and
    whether the band held the stop.
    """

    kind: str
    seed: int
    alone: list[tuple[float, float, bool]]
    known: list[tuple[float, float, bool]]

    @property
    def curve(self) -> tuple[str, int]:
        """The recorded run."""
        return self.kind, self.seed


def section(jobs: int = 2) -> list[str]:
    """Judge the forecast with and without earlier runs; return the lines of the page."""
    curves = [curve for curve in read(DEVELOPMENT_FILE) if curve.seed in EARLIER_SEEDS]
    found = [with_earlier(case, curves) for case in cases(curves) if case.curve.seed in SEEDS]
    with ProcessPoolExecutor(jobs) as pool:
        rows = [*track(pool.map(judged, found, chunksize=4), TITLE, total=len(found))]
    return _lines(rows)


def judged(case: KindCase) -> HistoryRow:
    """Judge the forecasts on a run with one rule."""
    alone, known = (_forecasts(case, earlier) for earlier in ((), case.earlier))
    return HistoryRow(case.curve.kind, case.curve.seed, alone, known)


def _forecasts(case: KindCase, earlier: Sequence[list[float]]) -> list[tuple[float, float, bool]]:
    curves = newest_curves([np.array(one) for one in earlier])
    made = StopForecast(case.rule, Metric(case.curve.metric), earlier=curves)
    wanted = {round(place) for place in np.linspace(0, case.stop - 1, MOMENTS)}
    found = []
    for done in range(case.stop):
        if done in wanted:
            at = made.make(len(case.curve.values))
            off = abs(at.median - case.stop) / case.stop
            found.append((done / case.stop, off, bool(at.low <= case.stop <= at.high)))
        made.see(done + 1.0, case.curve.values[done], 0.0)
    return found


def _lines(rows: Sequence[HistoryRow]) -> list[str]:
    kinds = grouped(rows, lambda row: row.kind)
    ratios = {kind: _ratio(some) for kind, some in kinds.items()}
    worse = sorted((kind for kind in ratios if ratios[kind].value > 1.0), key=lambda kind: -ratios[kind].value)
    lines = [
        f"\n## {TITLE}: {len(rows)} runs\n",
        "Earlier runs make the estimate worse on: "
        f"{'; '.join(f'{kind} {ratios[kind]}' for kind in worse) or 'no kind'}.\n",
        f"These are the development runs, on which the method was chosen: {len({row.seed for row in rows})} seeds of "
        f"{len(kinds)} kinds, each with three rules. The earlier runs have the three other seeds and another split of "
        "the data, and end where the same rule stops them. Only the prediction of the stop is judged, at "
        f"{MOMENTS} validations of each run: the error is the distance of its median, in validations, as a share of "
        "the run.\n",
        "| kind | runs | without | with | with / without | in the band, without | in the band, with |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, some in (*kinds.items(), ("**all**", list(rows))):
        alone, known = ([one for row in some for one in getattr(row, name)] for name in ("alone", "known"))
        lines.append(
            f"| {kind} | {len(some)} | {_error(alone)} | {_error(known)} | {_ratio(some)} | {_held(alone)} | "
            f"{_held(known)} |"
        )
    phases = [*pairwise(PHASES)]
    names = [f"{begin:.0%} to {end:.0%}" for begin, end in phases]
    lines += ["", f"| error in the phase | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for name, title in (("alone", "without"), ("known", "with")):
        every = [one for row in rows for one in getattr(row, name)]
        errors = [_error([one for one in every if begin <= one[0] < end]) for begin, end in phases]
        lines.append(f"| {title} | {' | '.join(errors)} |")
    return lines


def _error(found: Sequence[tuple[float, float, bool]]) -> str:
    return f"{np.mean([off for _, off, _ in found]):.2f}"


def _held(found: Sequence[tuple[float, float, bool]]) -> str:
    return f"{np.mean([held for _, _, held in found]):.0%}"


def _ratio(rows: Sequence[HistoryRow]) -> Share:
    return share(rows, lambda row: _sum(row.known), lambda row: _sum(row.alone))


def _sum(found: Sequence[tuple[float, float, bool]]) -> float:
    return sum(off for _, off, _ in found)
