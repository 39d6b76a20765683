"""The figure: accuracy over time, speed-up by factor, fresh examples by factor."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from echoed_training import DIGITS, Outcome
from fresh_to_target import SIZES, Job, Row, fewer
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from time_to_target import FACTORS, FIXED, Timed, expected, named, seconds, speed_up

from looptap.training.echoing import AFTER


def draw(path: Path, timed: Timed, found: dict[Job, Outcome]) -> None:
    """Write the figure to ``path``."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, by_factor, deep = figure.subplots(1, 3)
    for factor in FACTORS:
        curve = timed[named(factor)][0].scores
        style = "k--" if factor == "auto" else "-"
        over_time.plot([at for at, _ in curve], [score for _, score in curve], style, lw=1.3, label=f"e = {factor}")
    over_time.axhline(DIGITS.target, color="#999999", lw=0.8)
    over_time.set(xlabel="seconds", ylabel="test accuracy", title="digits from a slow server, one seed", xscale="log")
    over_time.legend(fontsize=8)
    ratios = [speed_up(timed, named(e), seconds) for e in FIXED]
    bars = [[r - low for r, low, _ in ratios], [high - r for r, _, high in ratios]]
    by_factor.errorbar(FIXED, [r for r, _, _ in ratios], bars, fmt="o-", capsize=3, label="sooner at the target")
    by_factor.plot(FIXED, [expected(timed, e) for e in FIXED], "k:", label="steps a second, foretold")
    auto = speed_up(timed, "auto", seconds)[0]
    at = median(one.factor for one in timed["auto"])
    by_factor.plot([at], [auto], "s", color="#d62728", label="auto")
    by_factor.plot([5], [3.25], "x", color="#7f7f7f", label="paper, e = 5")
    by_factor.set(xlabel="e", ylabel="times faster than e = 1", title="time to target, median and range of the seeds")
    by_factor.legend(fontsize=8)
    factors = (1.0, 2.0, 4.0, 8.0, 16.0)
    for size in SIZES["language"]:
        saved = {e: fewer(found, Row("language", size, AFTER, e, 8 * size))[0] for e in factors}
        reached = {e: times for e, times in saved.items() if times}
        missed = "".join(f", not reached with {e:g}" for e in saved if e not in reached)
        deep.plot(list(reached), list(reached.values()), "o-", label=f"B = {size}{missed}")
    deep.plot(factors, factors, "k:", lw=0.8, label="as good as fresh data")
    deep.set(xlabel="e", ylabel="times fewer fresh sequences", title="transformer, no sequence seen twice",
             xscale="log", yscale="log")  # fmt: skip
    for axis in (deep.xaxis, deep.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    deep.set_xticks(factors, labels=[f"{e:g}" for e in factors])
    deep.legend(fontsize=8)
    figure.savefig(path, dpi=80)
