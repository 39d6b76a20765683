"""Predicted and true remaining time over some runs, like the paper's Fig. 9-11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cases import RULE, recorded, stop_of
from judge import follow
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from published_methods import FormerEstimator
from record import HELD_OUT
from simulated import stretches

from looptap.training.progress.clock_ledger import Ledger
from looptap.training.progress.estimate import Estimator
from looptap.training.progress.forecast.stopping_rules import Never
from looptap.training.progress.plan import TrainingPlan

_SHOWN = ("SGD, constant", "RMSprop, exponential", "AdaGrad, step", "transformer, AdamW, constant")


def draw(path: Path) -> None:
    """Write the figure to ``path``."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2).ravel()
    cases = {case.group: case for case in recorded(HELD_OUT[:1])}
    for axis, group in zip(axes, _SHOWN, strict=True):
        run = cases[group].run
        happened = stretches(run, stop_of(run))
        total = sum(stretch.seconds for stretch in happened)

        def plan(run=run):  # type: ignore[no-untyped-def]
            return TrainingPlan(run.point, run.point * run.last, run.validation)

        made = {
            "linear": lambda ledger, plan=plan: Estimator(plan(), Never(), ledger),
            "former": lambda ledger, plan=plan: FormerEstimator(plan(), RULE, ledger),
            "ours": lambda ledger, plan=plan, run=run: Estimator(plan(), RULE, ledger, rates=run.rates),
        }
        hours = 3600.0
        for name, color in (("linear", "#7f7f7f"), ("former", "#ff7f0e"), ("ours", "#1f77b4")):
            times, found = _curve(happened, made[name])
            axis.plot(times / hours, found[:, 0] / hours, color=color, label=name, lw=1.2)
            if name == "ours":
                axis.fill_between(times / hours, found[:, 1] / hours, found[:, 2] / hours, color=color, alpha=0.2, lw=0)
        axis.plot([0, total / hours], [total / hours, 0], "k--", lw=1, label="true")
        axis.set(title=group, xlabel="hours since the start", ylabel="hours that remain", ylim=(0, 2.5 * total / hours))
    axes[0].legend()
    figure.savefig(path, dpi=80)


def _curve(happened, make):  # type: ignore[no-untyped-def]
    def made(ledger: Ledger) -> Estimator:
        return make(ledger)  # type: ignore[no-any-return]

    found = [(at, e.remaining, e.low, e.high) for at, e in follow(happened, made)]
    columns = np.array(found)
    return columns[:, 0], columns[:, 1:]
