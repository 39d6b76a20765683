"""The estimators under comparison, and the runs they are compared on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from judge import Verdict, judge
from published_methods import FormerEstimator, PaperEstimator
from record import EPOCHS, RULE, jobs, rates
from simulated import KINDS, LOADS, Run, make, stretches

from looptap.training.progress.clock_ledger import Ledger
from looptap.training.progress.estimate import Estimator
from looptap.training.progress.forecast.earlier_runs import newest_curves
from looptap.training.progress.forecast.stopping_rules import Never
from looptap.training.progress.plan import TrainingPlan, insertion

ESTIMATORS = ("linear", "former", "paper", "ours", "stop known")
CURVES = Path(__file__).with_name("curves.json")
PROCESSORS_COST = 40_000  # C of the paper, for one CPU and one GPU


class Case(NamedTuple):
    """A run and its groups; ``earlier`` are curves of other runs of the job."""

    run: Run
    group: str
    load: str
    earlier: Sequence[Sequence[float]]


def simulated(seeds: Sequence[int]) -> Iterator[Case]:
    """Yield synthetic runs: each seed with each kind of curve, the loads in turn."""
    for seed in seeds:
        for index, kind in enumerate(KINDS):
            load = LOADS[(seed + index) % len(LOADS)]
            yield Case(make(seed, kind, load), kind, load, ())


def recorded(seeds: Sequence[int]) -> Iterator[Case]:
    """Yield recorded curves at the pace of synthetic runs; smaller seeds are earlier."""
    curves = json.loads(CURVES.read_text())
    for index, curve in enumerate(curves):
        if curve["seed"] not in seeds:
            continue
        load = LOADS[(curve["seed"] + index % len(list(jobs()))) % len(LOADS)]
        run = make(1000 + index, "power", load)
        errors = np.maximum(np.array(curve["errors"]), 0.002)
        run.last, run.errors, run.point = EPOCHS, errors, 50_000.0
        kernel = np.ones(5) / 5
        run.smooth = np.convolve(np.pad(errors, 2, mode="edge"), kernel, mode="valid")
        run.rates = np.array(rates(curve["schedule"], curve["rate"])) if curve["schedule"] != "constant" else None
        same = [other["errors"] for other in curves if _job(other) == _job(curve) and other["seed"] < curve["seed"]]
        yield Case(run, f"{curve['optimizer']}, {curve['schedule']}", load, same)


def _job(curve: dict[str, Any]) -> tuple[object, ...]:
    """Return the key of a job; even and odd seeds have different pictures."""
    tokens = curve["optimizer"].startswith(("transformer", "LSTM"))
    return curve["optimizer"], curve["schedule"], 0 if tokens else curve["seed"] % 2


def stop_of(run: Run) -> int:
    """Return the raw point at which the run ends."""
    return RULE.stops(run.errors) or run.last


def verdicts(case: Case, which: Sequence[str] = ESTIMATORS) -> dict[str, Verdict]:
    """Return the verdict on each estimator; the paper's has validations inserted."""
    return {name: _verdict(case, name) for name in which}


def _verdict(case: Case, name: str) -> Verdict:
    run, stop = case.run, stop_of(case.run)
    ahead: list[int] = []
    subset = 0
    if name == "paper":
        first, subset = insertion(run.point, 128, run.validation, 128, PROCESSORS_COST)
        ahead = [round(0.8**j * first) for j in range(run.last)]
    earlier = newest_curves([np.array(c) for c in case.earlier]) if name == "ours, history" else []

    def made(ledger: Ledger) -> Estimator:
        plan = TrainingPlan(run.point, run.point * run.last, run.validation, subset, ahead)
        match name:
            case "linear":
                return Estimator(plan, Never(), ledger)
            case "former":
                return FormerEstimator(plan, RULE, ledger)
            case "paper":
                return PaperEstimator(plan, RULE, ledger)
            case "stop known":
                return Estimator(TrainingPlan(run.point, run.point * stop, run.validation), Never(), ledger)
        return Estimator(plan, RULE, ledger, rates=run.rates, earlier=earlier)

    return judge(stretches(run, stop, ahead, subset), made)


def mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN of nothing."""
    return float(np.mean(values)) if len(values) else math.nan
