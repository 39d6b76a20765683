"""The page and its figures: what it saves, then the paper figure by figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

import pgd_chart
import priority_cost
import ranks
from pgd_paper import AGES, BUDGET, CNN, CNN_BUDGET, CNN_SHARES, DIMENSIONS, PGD_A, PGD_S, POINTS, SGD, Paper, Run
from pgd_runs import METHODS, PrioritizedResults
from selection_arithmetic import Paired, change, crossing, targets
from selection_promises import SHORTEST_STEP_MS, Figures, step_of
from selection_runs import DEFAULT, PLAIN, Curve, Job
from selection_stages import Tuned
from selection_tasks import TASKS

PROMISED_TASKS = ("easy-heavy", "imbalanced")
LOSS_WORK_SHARE, ACCURACY_WORK_SHARE = 0.12, 0.15
"""Promised to be saved, up to the second loss target and to the second accuracy target."""
LONG_STEP_MS = 10.0
"""From which on the default is to be sooner."""
MAX_SECONDS_FACTOR, MIN_SPEED_FACTOR = 1.03, 1.15
"""Promised: beside uniform sampling in each row, and with such long steps."""
INITIAL_PASSES = 2
"""Of PGD, in gradients for each point."""
ALIKE_FACTOR = 1.01
"""How far apart two losses may be and count as alike."""


class Work:
    """The gradients that methods need on a task."""

    def __init__(self, results: PrioritizedResults, task: str) -> None:
        self.results, self.task, self.tuned = results, task, Tuned(results, task)
        budget = results.protocol.budget
        evaluations = budget * TASKS[task].epochs * TASKS[task].evaluations
        first = results.curves(task, PLAIN, self.tuned.rate(PLAIN), results.protocol.tuned)
        self.accuracies = self.tuned.targets
        low = targets([[-loss for loss in curve.loss] for curve in first], evaluations)
        self.losses = -low[0], -low[1]

    def curves(self, method: str) -> dict[int, Curve]:
        """Return the judged runs by seed."""
        if not self.tuned.tried(method):
            return {}
        rate, budget = self.tuned.rate(method), self.results.protocol.budget
        every = {seed: Job(self.task, method, rate, seed, budget) for seed in self.results.protocol.judged}
        return {seed: self.results.found[job] for seed, job in every.items() if job in self.results.found}

    def changes(self, method: str) -> list[Paired]:
        """Return by which part the gradients to both accuracies and both losses are more."""
        base, other = self.curves(PLAIN), self.curves(method)
        seeds = sorted(base.keys() & other.keys())
        end = max(curve.cost[-1] for curve in base.values())
        return [
            change(
                [_reached(base[seed], *what) for seed in seeds], [_reached(other[seed], *what) for seed in seeds], end
            )
            for what in self._wanted()
        ]

    def base(self) -> list[float]:
        """Return the median gradients that uniform sampling needs."""
        return [median(_reached(curve, *what) for curve in self.curves(PLAIN).values()) for what in self._wanted()]

    def _wanted(self) -> list[tuple[str, float]]:
        return [*(("accuracy", one) for one in self.accuracies), *(("loss", one) for one in self.losses)]


def write(results: PrioritizedResults, paper: Paper, into: Path, tasks: Sequence[str]) -> None:
    """Write what is there."""
    works = [Work(results, task) for task in tasks if Tuned(results, task).tried(PLAIN)]
    works = [work for work in works if work.curves(PLAIN)]
    lines = [*_head(results, works), *_promises(results, works), *_tables(works)]
    if paper.runs:
        lines += [*_figure_1(paper), *_figure_5(paper), *_figures_6_to_9(paper), *_figure_8b(paper)]
        pgd_chart.paper(into / "prioritized-paper.png", paper)
    if works:
        pgd_chart.work(into / "prioritized-work.png", works)
    for title, name, table in (
        ("What exact priorities cost", "prioritized-cost.json", priority_cost.table),
        ("Several ranks", "prioritized-ranks.json", ranks.table),
    ):
        if (measured := into / name).exists():
            lines += ["", f"## {title}", "", *table(json.loads(measured.read_text()))]
    (into / "prioritized-benchmarks.md").write_text("\n".join(lines) + "\n")


def _head(results: PrioritizedResults, works: Sequence[Work]) -> list[str]:
    seeds = results.protocol.judged
    fewest = min((count for work in works for method in METHODS if (count := len(work.curves(method)))), default=0)
    return [
        f"""# What prioritized gradient descent saves

`make bench-prioritized` writes this page. It counts how many gradients of single examples each method computes until it
reaches an accuracy or a loss of uniform sampling. All gradients count, including those of initial passes; scoring from
stored losses computes none. [Prioritized gradient descent](prioritized.md) (PGD) explains the methods.

- Tasks, learning-rate grid and evaluation are the same as in [the selection benchmark](selection-benchmarks.md).
  Targets are the accuracies and training losses that uniform sampling has after one third and two thirds of its budget.
  Rates are tuned separately for each method, on separate seeds. The figures come from {len(seeds)} other seeds, paired
  with uniform sampling (at least {fewest} of them in each row): the median, with the 95% interval of the mean in
  parentheses. Momentum is 0.9.
- A rate "at an edge" is the best, but also the lowest or highest, of the rates that were tried.
- A target that is not reached within the budget of uniform sampling counts as reached at its end. Such a figure is a
  lower bound and is marked ≥.
- `PGD-A` and `PGD-S` are the two variants of `published`, with k = r = 1% and the guard against divergence off;
  `loss, unbiased` is `loss`. The default is `norm` with its switch on.
- The CNN was trained on another processor than for the selection page. Rounding makes these trainings differ from the
  first epoch on: with the same seeds, `norm` saves 17 and 26% here, and 20 and 40% there.
"""
    ]


def _promises(results: PrioritizedResults, works: Sequence[Work]) -> list[str]:
    made = []
    for work in works:
        if work.task in PROMISED_TASKS and work.curves(DEFAULT):
            found = work.changes(DEFAULT)
            for what, one, share in (("loss", found[3], LOSS_WORK_SHARE), ("accuracy", found[1], ACCURACY_WORK_SHARE)):
                held = _held(one.median <= -share)
                made.append(
                    [f"default, gradients to a late {what}, {work.task}", f"≥ {share:.0%} fewer", _shown(one), held]
                )
    made += _on_the_clock(Figures(results))
    return ["## Promises\n", *_table(["", "promised", "measured", "held"], made)] if made else []


def _on_the_clock(figures: Figures) -> list[list[str]]:
    """Return rows on the seconds of the default, by the selection's benchmark."""
    made = []
    for task in figures.tuned:
        every = [one for target in (0, 1) if (one := figures.seconds(task, DEFAULT, target))]
        if len(every) < 2 or (step := step_of(figures, task)) < SHORTEST_STEP_MS:
            continue
        where = f"{task}, {step:.1f} ms a step"
        factors = "; ".join(f"{1 + one.median:.2f} × ({1 + one.low:.2f}–{1 + one.high:.2f})" for one in every)
        held = max(1 + one.median for one in every) <= MAX_SECONDS_FACTOR
        made.append(
            [f"default, seconds to both accuracies, {where}", f"≤ {MAX_SECONDS_FACTOR} ×", factors, _held(held)]
        )
        if step >= LONG_STEP_MS:
            speeds = [1 / (1 + one.median) for one in every]
            shown = "; ".join(f"{speed:.2f} ×" for speed in speeds)
            held = min(speeds) >= MIN_SPEED_FACTOR
            made.append([f"default, sooner at both accuracies, {where}", f"≥ {MIN_SPEED_FACTOR} ×", shown, _held(held)])
    return made


def _held(good: bool) -> str:
    return "yes" if good else "**no**"


def _tables(works: Sequence[Work]) -> list[str]:
    lines = ["\n## Gradients to equal accuracy and loss\n", "![Accuracy and loss over gradients](prioritized-work.png)"]
    for work in works:
        named = [f"to {one:.1%}" for one in work.accuracies] + [f"to loss {one:.3g}" for one in work.losses]
        base = [f"{value:,.0f}" for value in work.base()]
        made = [[PLAIN, f"{work.tuned.rate(PLAIN):g}", *base]]
        for method in METHODS[1:]:
            if work.curves(method):
                rate = f"{work.tuned.rate(method):g}{'' if work.tuned.inside(method) else ', at an edge'}"
                made.append([method, rate, *(_shown(one) for one in work.changes(method))])
        lines += [f"\n### {work.task}\n", *_table(["", "rate", *named], made)]
    return lines if works else []


def _figure_1(paper: Paper) -> list[str]:
    made = [[f"{age}", *(f"{share:.0%}" for share in found["top"]), f"{found['negative']:.0%}"]
            for age in AGES if (found := paper.priorities.get(str(age)))]  # fmt: skip
    return ["\n## The paper's figures\n", "![Priorities, rates, and sweeps of k and r](prioritized-paper.png)",
            "\n### Fig. 1: few examples have most of the priority\n",
            "Exact priorities of all 9,600 easy-heavy images along the gradient of the whole data set, for the MLP "
            "after some epochs of uniform sampling: the top examples' share of all positive priority, and the share of "
            "examples with a negative one.\n",
            *_table(["epochs", "top 1%", "top 5%", "top 10%", "negative"], made)]  # fmt: skip


def _figure_5(paper: Paper) -> list[str]:
    """Return lines on the speed beside SGD, at each rate and at the best ones."""
    target = paper.target(1 / 3)
    loose = (target + math.log(2)) / 2
    made = []
    for rate in paper.rates:
        sgd, a, s = (_needed(paper, method, rate, loose) for method in (SGD, PGD_A, PGD_S))
        doubled = _needed(paper, PGD_A, 2 * rate, loose) if 2 * rate in paper.rates else math.inf
        ratios = [_ratio(sgd, a), _ratio(sgd, a - INITIAL_PASSES), _ratio(sgd, doubled - INITIAL_PASSES)]
        made.append([f"{rate:.3g}", *(_gradients(one) for one in (sgd, a, s)), *ratios])
    rows = []
    for method in (SGD, PGD_A, PGD_S):
        rate = paper.best(method)
        ends = [paper.final(method, 0.01, 0.01, rate, [seed]) for seed in paper.final_seeds]
        needed_by_seed = [paper.needed(method, rate, seed, target) for seed in paper.final_seeds]
        reached = sum(math.isfinite(one) for one in needed_by_seed)
        rows.append([_name(method), f"{rate:g}", f"{median(ends):.4f}", f"{min(ends):.4f} to {max(ends):.4f}",
                     _gradients(median(needed_by_seed)), f"{reached} of {len(needed_by_seed)}"])  # fmt: skip
    return ["\n### Fig. 5: against SGD\n",
            f"Logistic regression on the paper's synthetic data, {POINTS:,} points in {DIMENSIONS:,} dimensions, "
            f"{BUDGET} gradients per point, batches of 200, k = r = 1%, no momentum. The first columns are the "
            f"gradients per point to a loss of {loose:.3f}, which is halfway to the loss of SGD with its best rate "
            "after a third of the budget. The last columns say how much faster PGD-A is than SGD with the same rate: "
            "with all gradients counted, without the two initial passes, and without them but with the doubled step of "
            "the authors' code.\n",
            *_table(["rate", "SGD", "PGD-A", "PGD-S", "PGD-A faster", "uncounted", "uncounted, doubled"], made),
            f"\nEach method with its best rate, on {len(paper.final_seeds)} other seeds; gradients per point to a loss "
            f"of {target:.3f}:\n",
            *_table(["", "rate", "loss at the end", "from, to", "gradients to the loss", "reached"], rows)]  # fmt: skip


def _figures_6_to_9(paper: Paper) -> list[str]:
    lines = ["\n### Fig. 6 to 9: k, r, and PGD-A against PGD-S\n",
             f"The same data, with the best rate of PGD-A at k = r = 1% ({paper.best(PGD_A):g}). Means over "
             f"{len(paper.grid_seeds)} seeds: the lowest loss of the run → the final loss, bold if it is 20% above. "
             f"The loss starts at ln 2 = {math.log(2):.3f}. The guard is off."]  # fmt: skip
    for method in (PGD_A, PGD_S):
        made = [[f"k = {k:.1%}", *(_cell(paper, method, k, r) for r in paper.shares)] for k in paper.shares]
        lines += [f"\n{_name(method)}\n", *_table(["", *(f"r = {r:.1%}" for r in paper.shares)], made)]
    better = [[f"{k:.1%}", *(_better(paper, k, r) for r in paper.shares)] for k in paper.shares]
    lines += ["\nFig. 9: the variant with the lower final loss\n",
              *_table(["k", *(f"r = {r:.1%}" for r in paper.shares)], better)]  # fmt: skip
    return lines


def _figure_8b(paper: Paper) -> list[str]:
    made = []
    for method in (SGD, PGD_A):
        for k in CNN_SHARES:
            try:
                rate = paper.best(method, k, CNN)
                curves = [paper.runs[Run(method, k, 0.01, rate, seed, CNN)] for seed in paper.grid_seeds]
            except KeyError:  # not done
                return []
            ends = [curve.loss[-1] for curve in curves]
            least = mean(min(curve.loss) for curve in curves)
            made.append([_name(method), f"{k:.0%}", f"{rate:.3g}", f"{least:.3f} → {mean(ends):.3f}",
                         f"{min(ends):.3f} to {max(ends):.3f}"])  # fmt: skip
    return ["\n### Fig. 8b: a CNN\n",
            f"The small CNN on the easy-heavy images: {CNN_BUDGET} gradients per image, all counted, r = 1%, no "
            "momentum, each method with its best rate, batches of (k + r) N for both. Means over "
            f"{len(paper.grid_seeds)} seeds: the lowest loss of the run → the final loss, and the range of the latter. "
            f"Rates from {min(paper.cnn_rates):.3g} to {max(paper.cnn_rates):g} were tried.\n",
            *_table(["", "k", "rate", "loss", "from, to"], made)]  # fmt: skip


def _needed(paper: Paper, method: str, rate: float, target: float) -> float:
    return mean(paper.needed(method, rate, seed, target) for seed in paper.rate_seeds)


def _cell(paper: Paper, method: str, k: float, r: float) -> str:
    curves = paper.sweep(method, k, r)
    least, end = mean(min(curve.loss) for curve in curves), mean(curve.loss[-1] for curve in curves)
    return f"{least:.3f} → {_bold(f'{end:.3g}', end > 1.2 * least)}"


def _better(paper: Paper, k: float, r: float) -> str:
    ends = {method: paper.final(method, k, r, paper.best(PGD_A), paper.grid_seeds) for method in (PGD_A, PGD_S)}
    if max(ends.values()) <= ALIKE_FACTOR * min(ends.values()):
        return "alike"
    return _name(min(ends, key=lambda method: ends[method]))


def _reached(curve: Curve, what: str, target: float) -> float:
    return crossing(curve.cost, curve.accuracy, target) if what == "accuracy" else crossing(
        curve.cost, [-loss for loss in curve.loss], -target)  # fmt: skip


def _shown(found: Paired) -> str:
    missed = f", {found.missed} of {found.seeds} not reached" if found.missed else ""
    interval = f" ({found.low:+.0%} to {found.high:+.0%}{missed})" if math.isfinite(found.high) else ""
    return f"{'≥ ' if found.missed else ''}{found.median:+.0%}{interval}"


def _gradients(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not reached"


def _ratio(base: float, other: float) -> str:
    return f"{base / other:.2f} ×" if math.isfinite(base) and math.isfinite(other) and other > 0 else ""


def _name(method: str) -> str:
    return method if method == SGD else f"PGD-{method}"


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text


def _table(names: Sequence[str], made: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---", *["---:"] * (len(names) - 1)], *made)]
