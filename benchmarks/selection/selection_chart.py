"""Figures: accuracy over instances and over time, training loss over time.

Other figures of trainings use its panels and its legend, which lies below all panels and so covers no curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from selection_arithmetic import smooth
from selection_promises import Figures
from selection_runs import DEFAULT, PLAIN, TIMED, Curve

_COLORS = {
    PLAIN: "#444444", DEFAULT: "#d62728", "infobatch": "#1f77b4", "autoassist": "#2ca02c", "oracle": "#9467bd",
    "loss": "#ff7f0e", "spl": "#8c564b", "selective-backprop": "#17becf", "rho": "#e377c2", "screener": "#bcbd22",
}  # fmt: skip


def over_instances(path: Path, figures: Figures, methods: Sequence[str]) -> None:
    """Draw accuracy over instances, one panel a task, the mean of the judged seeds."""
    tasks = [task for task in figures.tuned if figures.judged(task, PLAIN)]
    figure, axes = panels(min(3, len(tasks)), math.ceil(len(tasks) / 3))
    for axis, task in zip(axes, tasks, strict=False):
        for method in methods:
            _draw(axis, list(figures.judged(task, method).values()), "cost", "accuracy", method)
        _targets(axis, figures, task)
        longest = max(curve.cost[-1] for curve in figures.judged(task, PLAIN).values())
        axis.set(title=task, xlabel="instances trained on (thousands)", ylabel="test accuracy")
        in_thousands(axis)
        axis.set_xlim(0, 1.2 * longest)  # methods that reach no target go on for long
    save(figure, axes, path)


def over_time(path: Path, figures: Figures, methods: Sequence[str]) -> None:
    """Draw accuracy over seconds, and the training loss below, four tasks a row."""
    tasks = [task for task in figures.tuned if figures.judged(task, PLAIN, TIMED)]
    columns = max(1, min(4, len(tasks)))
    figure, axes = panels(columns, 2 * math.ceil(len(tasks) / columns))
    for at, task in enumerate(tasks):
        above = at + at // columns * columns
        accuracy, loss = axes[above], axes[above + columns]
        for method in methods:
            curves = list(figures.judged(task, method, TIMED).values())
            _draw(accuracy, curves, "seconds", "accuracy", method)
            _draw(loss, curves, "seconds", "loss", method)
        _targets(accuracy, figures, task)
        accuracy.set(title=task, ylabel="test accuracy")
        loss.set(xlabel="seconds", ylabel="training loss", yscale="log")
        for scale in (loss.yaxis.set_major_formatter, loss.yaxis.set_minor_formatter):
            scale("{x:g}")
        loss.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    save(figure, axes, path)


def panels(columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row; four columns fill a page."""
    figure = Figure(figsize=(3.0 * max(1, columns), 2.6 * max(1, rows) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(max(1, rows), max(1, columns), squeeze=False).flat)


def in_thousands(axis: Axes) -> None:
    """Write the numbers below a panel in thousands, so that they do not touch."""
    axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}")


def _draw(axis: Axes, curves: list[Curve], across: str, up: str, method: str) -> None:
    if not curves:
        return
    places = [getattr(curve, across) for curve in curves]
    grid = np.linspace(max(one[0] for one in places), min(one[-1] for one in places), 60)
    heights = [smooth(getattr(curve, up)) if up == "accuracy" else getattr(curve, up) for curve in curves]
    found = [np.interp(grid, one, height) for one, height in zip(places, heights, strict=True)]
    axis.plot(grid, np.mean(found, 0), color=_COLORS.get(method), lw=1.3, label=method)


def _targets(axis: Axes, figures: Figures, task: str) -> None:
    for target in figures.tuned[task].targets:
        axis.axhline(target, color="#bbbbbb", lw=0.7, zorder=0)
    axis.set_ylim(bottom=figures.tuned[task].targets[0] - 0.12)


def save(figure: Figure, axes: Sequence[Axes], path: Path) -> None:
    """Write the figure without empty panels, and with one legend for all."""
    for axis in axes:
        axis.set_visible(axis.has_data())
    names = {name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    if names:
        columns = int(figure.get_figwidth() / 1.9)
        figure.legend(names.values(), names, loc="outside lower center", ncols=columns, fontsize=9)
    figure.savefig(path, dpi=120)
