"""The page: promises first, then each method on each task."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import numpy as np
from selection_arithmetic import SMOOTHED, smooth
from selection_promises import SHORTEST_STEP_MS, Figures, Promise, shown, step_of
from selection_runs import DEFAULT, PLAIN, TIMED, Curve
from selection_stages import GRID_FACTOR, TIMES
from selection_tasks import LENGTH, TASKS, UNSEEN, WINDOWS

_DIGITS = ("1,200 of scikit-learn's 1,797 scans of handwritten digits, each copied several times to 12 × 12 pixels and "
           "turned, scaled, sheared and moved, with noise: once, by a fixed seed, not in each epoch. The test images "
           "are made in the same way of the other 597 scans")  # fmt: skip
DATA = {
    "easy-heavy": "9,600 images, four fifths of them hardly distorted, one fifth much; the test alike; an MLP of two "
    "hidden layers of 128",
    "imbalanced": "7,600 images, the most frequent class with 60 times as many as the rarest, geometrically between; "
    "the test has all classes alike; the MLP",
    "noisy": "9,600 images, 8 % of them with a label of another class, chosen by the seed of the run; the test has the "
    "right labels; the MLP",
    "balanced": "9,600 images; the MLP",
    "cnn": "the balanced images, a CNN of two convolutions (16 and 32 channels), judged on 1,800 test images",
    "characters": f"{WINDOWS:,} windows of {LENGTH} characters of Python's language reference, as its module "
    f"`pydoc_data` has it, {UNSEEN} of the last tenth for the test; a transformer of two layers, 48 wide, with Adam, "
    "B = 32; accuracy of the next character",
    "wide-cnn": "3,600 easy-heavy images, the CNN with 72 and 144 channels, judged on 900 test images; on the clock "
    "only",
}


def head(figures: Figures) -> list[str]:
    """Return lines on how it was measured."""
    first, *_, last = figures.protocol.tuned
    longest = figures.protocol.longest
    used = max((len(figures.judged(task, PLAIN)) for task in figures.tuned), default=0)
    rows = [f"- **{task}**: {DATA[task]}; {TASKS[task].epochs} epochs." for task in figures.tuned]
    return [f"""# What selection saves

Made by `make bench-assistant`. How many instances, and how many seconds, a method needs to the test accuracy of uniform
sampling.

- **Targets** were fixed beforehand: what uniform sampling reaches after one third and two thirds of its budget, on
  seeds {first} to {last}. **Learning rates** were tuned on the same seeds, for each method, by the geometric mean of
  its cost to both targets: on a grid of factor {GRID_FACTOR:.2f} that is extended until both neighbours of the
  best rate are worse. **Figures** are those of {used} other seeds, paired with uniform sampling: the median, and in
  brackets the 95 % interval of the mean (t, on logarithms of ratios). A target that is not reached in {longest:g}
  budgets counts as if it had been reached there.
- **Cost**: an instance that is trained on is 1, one that only goes forward is 1/3. The seconds of timed runs hold all
  that a method does, and nothing of the evaluation. The oracle knows the present loss of each instance, renewed ten
  times an epoch, for nothing. `rho` compares with a model that learned 1,000 of the instances in 8 epochs; this, and
  its pass over all, is counted.
- **Accuracy** is that of the mean of the weights over the last steps (decay 0.95), as the mean of {SMOOTHED}
  evaluations in a row, {TASKS["easy-heavy"].evaluations} of which are in an epoch (in others fewer); between two it is
  interpolated. The training loss is that of the same weights on a uniform sample.
- Instances to equal accuracy do not depend on how busy the machine is. {_timing(figures)}
- The rate is constant, B = 64, momentum 0.9, no plan is given, the switch is on; in timed runs, and only there, it acts
  by itself.
- **Chosen after a look at judged seeds**: the small CNN had 8 epochs at first (+6 % and −27 %), then 12; the
  decaying rate had a floor of 0.2 and 22 epochs at first (−0.64 points on easy-heavy), then 12 epochs and a floor
  chosen on seeds 100 to 102. Both were judged again on the same 8 seeds, so they are flattered.
- **The switch** turned on from a net gain of 1.10 and off below 1.05 at first, and selected too late. 1.05 and 1.02
  were chosen on seeds 100 to 102 of wide-cnn, by processor time to both targets: 0.90 and 0.74 times uniform sampling,
  where it was 1.03 and 0.95.
  It was tested every 50 steps, on scores of any age, which made the gain look too low where few steps are scored
  (easy-heavy, half of the steps scored, fourth epoch, seed 100: 1.57, where selecting measured 2.07 and fresh scores
  alone 1.87). It is tested every 25 steps now, on fresh scores. On seeds 100 to 103 of wide-cnn, with 17 ms a step and
  0.25 ms for selection as given times, it then takes 0.92 and 0.84 times uniform sampling to the two targets (geometric
  means; 0.93 and 0.92 if it is tested every 50 steps). Selecting in every step from the second epoch on takes 0.89 and
  0.82, from the third 0.90 and 0.79: that is the most that any switch can gain there.
  The gain was that of weights 1/P, and half of it was believed. It is that of the weights in use now, P^−0.5 without a
  plan, and all of it is believed. On seeds 100 to 103, with 3 ms a step and 0.3 ms for selection as given times, the
  instances that the small CNN needs to the two targets are then 0.89 and 0.79 times those of uniform sampling
  (geometric means; 0.98 and 1.01 before), on in 36 to 68 % of the steps (2 to 3 % before); noisy data 1.00 and 0.97,
  balanced images (MLP) 1.02 and 0.89. On characters (seed 100) it stays off: the gain is at most 1.01.
  While it is off, scores of up to 16 steps are computed together now, so that most instances have one at the end of the
  first epoch, where one in ten had. On seeds 100 to 103 the instances that the small CNN needs to the two targets are
  then 0.92 and 0.75 times those of uniform sampling (geometric means; 0.98 and 0.76 with the switch of before, run
  beside it). **Seconds below were measured with the switch of before.**
- **AUC** compares ratings of about the same time. It compared those of a whole epoch before, as multiples of the mean
  score, which falls while what was stored an epoch ago does not: in the second epoch it was up to 0.02 too low. The
  columns of other methods than `norm`, and all of cnn, are from before.
- **Tried, and not built**: an assistant inside `norm`, which rates the instances that were not seen yet once its AUC on
  uniformly drawn ones is 0.7. On seeds 100 to 102, with pixels and the class, its AUC in the first epoch was 0.53 to
  0.61 on easy-heavy, noisy and balanced images with the authors' rate, and 0.57 to 0.69 with ten times that: it was
  never used. On imbalanced ones it was 0.61 to 0.73 and the instances to the two targets 1.00 and 1.01 times those
  without it; with ten times the rate 0.82 to 0.86, and 0.97 and 1.04 times. On noisy data, the moving average of an
  instance's scores (half of it the newest) in place of the newest: 1.02 and 1.00 times the instances, seeds 100 to 105.
- **Two orders of draws**: by the present sampler a seed draws other batches than by that of before. `norm`,
  `infobatch`, `loss` and the oracle were counted with the present one, with rates tuned on it for `norm` on
  easy-heavy, imbalanced and noisy data, and so were all runs with a decaying rate. `autoassist`, `spl`, `screener`,
  `selective-backprop` and `rho` are from before. On balanced images and the CNN only uniform sampling and `norm` were
  judged, on characters no method was counted.

The images: {_DIGITS}. The seed of a run makes the model and the order of the data.
""", *rows]  # fmt: skip


def kept(promises: Sequence[Promise]) -> list[str]:
    """Return lines of the promises, those that do not hold first."""
    marks = {True: "yes", False: "**no**", None: ""}
    made = [[one.what, one.measured, marks[one.firm], marks[one.stretch]] for one in promises]
    return ["\n## Promises\n", *_table(["promise", "measured", "held", "stretch"], made)]


def tables(figures: Figures, methods: Sequence[str]) -> list[str]:
    """Return lines on the instances to both targets, task by task."""
    lines = ["\n## Instances to equal accuracy\n", "![Accuracy over instances](selection-instances.png)"]
    for task, tuned in figures.tuned.items():
        plain = figures.judged(task, PLAIN)
        if not plain:
            continue
        one, two = (f"{target:.1%}" for target in tuned.targets)
        base = [median(figures.reached(curve, task, target, curve.cost) for curve in plain.values())
                for target in (0, 1)]  # fmt: skip
        made = [[PLAIN, f"{tuned.rate(PLAIN):g}", *(f"{value:,.0f}" for value in base), "100 %", ""]]
        for method in methods:
            curves = list(figures.judged(task, method).values())
            if curves and method != PLAIN:
                changes = [figures.instances(task, method, target) for target in (0, 1)]
                made.append([
                    f"**`{method}`**" if method == DEFAULT else f"`{method}`", f"{tuned.rate(method):g}",
                    *(shown(change) if change else "" for change in changes),
                    f"{mean(curve.kept for curve in curves):.0%}", _auc(curves),
                ])  # fmt: skip
        lines += [f"\n### {task}\n", *_table(["", "rate", f"to {one}", f"to {two}", "kept", "AUC"], made)]
    return lines


def times(figures: Figures) -> list[str]:
    """Return lines on the seconds to both targets."""
    made = []
    for task in figures.tuned:
        for method in TASK_METHODS:
            curves = list(figures.judged(task, method, TIMED).values())
            changes = [figures.seconds(task, method, target) for target in (0, 1)]
            if curves and all(changes):
                made.append([task, f"`{method}`", f"{step_of(figures, task):.2f}",
                             *(shown(change) for change in changes if change),
                             f"{mean(curve.selected for curve in curves):.0%}", str(len(curves))])  # fmt: skip
    if not made:
        return []
    columns = ["task", "", "ms a step, uniform", "to the first target", "to the second", "selected in", "seeds"]
    return ["\n## Seconds to equal accuracy\n",
            "Methods in turn, one process, one thread, nothing else running. `norm` has its switch and the rate tuned "
            "for uniform sampling, which draws in the same order: both train alike while the switch is off. "
            f"Of rows with steps under {SHORTEST_STEP_MS:g} ms nothing is promised.\n",
            *_table(columns, made), "\n![Accuracy and training loss over seconds](selection-time.png)"]  # fmt: skip


def paper(figures: Figures, methods: Sequence[str]) -> list[str]:
    """Return lines with the columns of the paper's Table 2."""
    made = []
    for task, tuned in figures.tuned.items():
        size, budget = len(tuned.task.split(0).inputs), tuned.task.epochs * figures.protocol.budget
        for method in methods:
            curves = figures.judged(task, method).values()
            if not curves:
                continue
            share = mean(curve.kept for curve in curves)
            third = mean(_reached(curve, size * budget / 3) for curve in curves)
            timed = figures.judged(task, method, TIMED).values() if method in TIMES[task][0] else ()
            acts = [curve for curve in timed if method == PLAIN or curve.selected]  # else it was plain sampling
            pace = mean(curve.seconds[-1] / curve.cost[-1] for curve in acts) * size * share if acts else 0.0
            made.append([task, f"`{method}`", f"{size * share:,.0f}", f"{pace:.2f}" if pace else "", f"{third:.1%}"])
    if not made:
        return []
    return ["\n## The paper's columns\n",
            "Table 2 of the paper has tokens an epoch 112.1M → 72.6M (base) and 70.8M (big), seconds 1115 → 973 and "
            "1190 → 1016, BLEU 27.25 → 27.42 and 27.41 → 27.63: a third of the tokens saved is 13 to 15 % of the "
            "time. Here an epoch is once through the data, `kept` a free choice of the floor; seconds are those of "
            "timed runs in which the method acted. Accuracy is that after a third of the budget in instances, not at "
            "the end of a run, which is where the second target is reached.\n",
            *_table(["task", "", "instances an epoch", "seconds an epoch", "accuracy"], made)]  # fmt: skip


def decaying(figures: Figures, less: Sequence[float]) -> list[str]:
    """Return lines on the accuracy with a rate that falls to 0."""
    made = []
    for task in figures.tuned:
        found = [figures.accuracy(task, share) for share in less]
        if all(found):
            chosen = figures.tuned[task]
            ends = chosen.final(PLAIN, 1.0, chosen.peak(PLAIN, 1.0)[0], figures.protocol.judged)
            made.append([task, f"{median(ends):.1%}", *(f"{one.median:+.2f} ({one.low:+.2f} to {one.high:+.2f})"
                                                        for one in found if one)])  # fmt: skip
    if not made:
        return []
    return ["\n## Accuracy on fewer instances, with a decaying rate\n",
            "The rate falls linearly to 0 at the end of each run, from a peak tuned for itself. Points against uniform "
            "sampling on the whole budget. The epochs are as many, and the floor is turned up to leave out as much.\n",
            *_table(["", "uniform", *(f"`{DEFAULT}` on {1 - share:.0%} fewer" for share in less)], made)]  # fmt: skip


def tuned(figures: Figures, methods: Sequence[str]) -> list[str]:
    """Return lines on the learning rates that were tried."""
    made = []
    for task, found in figures.tuned.items():
        for method in methods:
            rates = found.tried(method)
            if rates:
                best = found.rate(method)
                marked = (f"**{rate:g}**" if rate == best else f"{rate:g}" for rate in rates)
                made.append([task, f"`{method}`", " · ".join(marked), "" if found.inside(method) else "at an edge"])
    return ["\n## Learning rates that were tried\n", *_table(["task", "", "rates", ""], made)]


TASK_METHODS = (PLAIN, DEFAULT, "infobatch", "autoassist")
"""Those that are timed."""


def _timing(figures: Figures) -> str:
    """Return a sentence on the machine while the clock ran."""
    if (load := figures.results.load) is not None:
        return f"The load of the machine was {load:g} when the clock was started; 0 is one that does nothing else."
    return (
        "**Seconds are from before** the gain was that of the weights in use, all of it believed "
        "(`make bench-assistant PART=wall BENCH=--again` measures them again)."
    )


def _reached(curve: Curve, cost: float) -> float:
    """Return the smoothed accuracy at a cost, interpolated."""
    return float(np.interp(cost, curve.cost, smooth(curve.accuracy)))


def _auc(curves: Sequence[Curve]) -> str:
    found = [median(curve.auc) for curve in curves if curve.auc]
    return f"{median(found):.2f}" if found else ""


def _table(names: Sequence[str], made: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---", *["---:"] * (len(names) - 1)], *made)]
