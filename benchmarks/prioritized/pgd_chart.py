"""Figures: accuracy and loss over gradients, and those of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pgd_paper import PGD_A, PGD_S, SGD, Paper
from pgd_runs import METHODS
from selection_arithmetic import smooth
from selection_chart import in_thousands, panels, save

_COLORS = dict(zip(METHODS, ("#444444", "#d62728", "#1f77b4", "#17becf", "#2ca02c", "#ff7f0e"), strict=True))


def work(path: Path, works: Sequence[Any]) -> None:
    """Draw accuracy and training loss over gradients, one column a task."""
    figure, axes = panels(len(works), 2)
    for at, one in enumerate(works):
        for method in METHODS:
            curves = list(one.curves(method).values())
            if curves:
                grid = np.linspace(max(curve.cost[0] for curve in curves), min(curve.cost[-1] for curve in curves), 60)
                for row, heights in enumerate(
                    ([smooth(curve.accuracy) for curve in curves], [curve.loss for curve in curves])
                ):
                    found = [np.interp(grid, curve.cost, height) for curve, height in zip(curves, heights, strict=True)]
                    axis = axes[row * len(works) + at]
                    axis.plot(grid, np.mean(found, 0), color=_COLORS[method], lw=1.3, label=method)
        axes[at].set(title=one.task, ylabel="test accuracy", ylim=(one.accuracies[0] - 0.3, None))
        axes[len(works) + at].set(xlabel="gradients computed (thousands)", ylabel="training loss", yscale="log")
        in_thousands(axes[at])
        in_thousands(axes[len(works) + at])
    save(figure, axes, path)


def paper(path: Path, paper: Paper) -> None:
    """Draw the paper's figures."""
    figure, (first, fifth, a, s) = panels(2, 2)
    for age, found in paper.priorities.items():
        after = f"after {age} epoch{'s' * (int(age) > 1)}"
        first.plot(np.linspace(0, 100, len(found["sorted"])), found["sorted"], lw=1.3, label=after)
    first.set(title="Fig. 1: priorities", xlabel="% of the examples", ylabel="priority / mean", yscale="symlog")
    first.legend(fontsize=8)
    for method in (SGD, PGD_A, PGD_S):
        ends = [paper.final(method, 0.01, 0.01, rate, paper.rate_seeds) for rate in paper.rates]
        fifth.plot(paper.rates, ends, "o-", lw=1.3, ms=3, label=method if method == SGD else f"PGD-{method}")
    fifth.set(
        title="Fig. 5: learning rates",
        xlabel="learning rate",
        ylabel="loss at the end",
        xscale="log",
        ylim=(0.2, 1),
    )
    fifth.legend(fontsize=8)
    for axis, method in ((a, PGD_A), (s, PGD_S)):
        for k in paper.shares:
            for r, style in zip(paper.shares, (":", "--", "-"), strict=False):
                runs = paper.sweep(method, k, r)
                if runs:
                    many = min(len(curve.cost) for curve in runs)
                    loss = np.mean([curve.loss[:many] for curve in runs], 0)
                    color = f"C{paper.shares.index(k)}"
                    axis.plot(runs[0].cost[:many], loss, style, color=color, lw=1.2, label=f"k {k:.1%}, r {r:.1%}")
        axis.set(title=f"Fig. 6 to 9: PGD-{method}", xlabel="gradients for each point", ylabel="loss", ylim=(0.2, 1.2))
    save(figure, [a, s], path)
