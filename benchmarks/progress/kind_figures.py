"""Figures of the judged recorded runs: reliability, and runs drawn unpicked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from kind_cases import PHASES, KindCase, follow, seconds
from kind_tables import OURS, PAPER, Row
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

UNPICKED = 20
"""How many runs are drawn: the first of an order that was shuffled with a fixed seed."""
_NOMINAL = {"low": 0.1, "under": 0.5, "high": 0.9}
_HIGHEST = 3.0  # times the length of the run, where the axis ends


def reliability(rows: Sequence[Row], path: Path) -> None:
    """Draw in what share of looks the truth was below the low end, median, high end."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], "k--", lw=1, label="as stated")
    for index, (begin, end) in enumerate(pairwise(PHASES)):
        looks, low, under, high = (sum(getattr(row.verdicts[OURS], what)[index] for row in rows)
                                   for what in ("looks", "low", "under", "high"))  # fmt: skip
        observed = np.array([low, under, looks - high]) / looks
        color = colormaps["viridis"](index / (len(PHASES) - 1))
        axis.plot(list(_NOMINAL.values()), observed, "o-", color=color, label=f"{begin:.0%} to {end:.0%} of the run")
    axis.set(xlabel="stated probability that the run ends before", ylabel="share of looks in which it did",
             xlim=(0, 1), ylim=(0, 1))  # fmt: skip
    axis.legend()
    figure.savefig(path, dpi=80)


def unpicked(cases: Sequence[KindCase], path: Path) -> None:
    """Draw shown and true remaining time of the first runs in a shuffled order."""
    order = sorted(cases, key=lambda case: (case.curve.name, case.rule.patience))
    random.Random(0).shuffle(order)
    figure = Figure(figsize=(15, 11), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, UNPICKED // 4, sharex=True, sharey=True).ravel()
    for axis, case in zip(axes, order[:UNPICKED], strict=False):
        total = seconds(case)
        for method, color in ((PAPER, "#ff7f0e"), (OURS, "#1f77b4")):
            looks = list(follow(case, method))
            at, shown, low, high = (np.array([getattr(look, name) for look in looks]) / total
                                    for name in ("at", "remaining", "low", "high"))  # fmt: skip
            axis.plot(at, shown, color=color, lw=1.2, label=method)
            if method == OURS:
                axis.fill_between(at, low, high, color=color, alpha=0.2, lw=0)
        axis.plot([0, 1], [1, 0], "k--", lw=1, label="true")
        end = f"stops after {case.fired}" if case.fired else f"reaches its last, {case.stop}"
        axis.set_title(f"{case.curve.name}\nPatience({case.rule.patience}, {case.rule.min_delta:g}), {end}", fontsize=9)
        axis.set(ylim=(0, _HIGHEST))
    axes[0].legend(fontsize=8)
    figure.supxlabel("time since the start, as a share of the run")
    figure.supylabel("time that remains, as a share of the run")
    figure.savefig(path, dpi=70)
