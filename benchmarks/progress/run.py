"""How good are the estimates? `make bench-progress`, in half an hour.

Measures recorded runs of many kinds, synthetic runs, recorded curves, costs and real jobs, or with ``--part`` some of
them, and prints the first. Writes docs/progress-benchmarks.md and .json, and the figures beside them: a part that is
not measured keeps its text. The kept runs are judged by judge_kinds.py --kept alone; their tables are made from what it
found.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import figures
import judge_kinds
import kind_history
import kind_tables
import numpy as np
from cases import ESTIMATORS, RULE, Case, mean, recorded, simulated, stop_of, verdicts
from judge import Verdict, judge
from kind_cases import cases
from kind_curves import DEVELOPMENT_FILE, read
from overhead import overheads
from real_clock import jobs
from record import HELD_OUT
from rich.progress import track
from simulated import Run, make, stretches

from looptap.training.progress.clock_ledger import Ledger
from looptap.training.progress.estimate import Estimator
from looptap.training.progress.forecast.stopping_rules import Never
from looptap.training.progress.plan import TrainingPlan

DOCS = Path(__file__).resolve().parents[2] / "docs"
SEEDS = range(200, 226)  # 26 seeds of five kinds: 130 runs; smaller seeds were used in development
OURS = "ours"
_WORSE = 1.05  # times the paper's error
_RESAMPLED = 300
_SHORT_SEEDS, _SHORT_EVERY = 4, 11  # with --short: how many seeds of synthetic runs, and every which of recorded ones
_PARTS = ("kinds", "history", "curves", "costs", "jobs")
KEPT_TITLE = ("Many kinds of training, kept runs", "They were judged once, after the last choice.")
DEVELOPMENT_TITLE = ("Many kinds of training, development runs", "The method was chosen on these.")
_ORDER = (KEPT_TITLE[0], DEVELOPMENT_TITLE[0], kind_history.TITLE, "Synthetic runs", "Recorded curves",
          "Without early", "What it costs", "Real jobs")  # fmt: skip


def main() -> None:
    """Measure all parts or some, and write the page."""
    arguments = argparse.ArgumentParser(description="Measure how good the estimates are.")
    arguments.add_argument("--part", choices=_PARTS, nargs="*", default=list(_PARTS))
    arguments.add_argument("--short", action="store_true", help="fewer curves and real jobs")
    options = arguments.parse_args()
    kept = judge_kinds.kept_rows()
    lines = kind_tables.section(kept, *KEPT_TITLE) + [judge_kinds.FIGURES] * bool(kept)
    if "kinds" in options.part:
        lines += kind_tables.section(judge_kinds.judged(cases(read(DEVELOPMENT_FILE))), *DEVELOPMENT_TITLE)
        print("\n".join(lines))
    if "history" in options.part:
        lines += kind_history.section()
    if "curves" in options.part:
        lines += _curves(short=options.short) + _exact()
        figures.draw(DOCS / "progress-estimates.png")
    if "costs" in options.part:
        lines += overheads()
    if "jobs" in options.part:
        lines += jobs(short=options.short)
    page = DOCS / "progress-benchmarks.md"
    found = _sections(page.read_text()) | _sections("\n".join(lines))
    order = sorted(found, key=lambda title: next(n for n, start in enumerate(_ORDER) if title.startswith(start)))
    page.write_text("\n\n".join([_HEAD, *(found[title].strip() for title in order)]) + "\n")


def _sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their headings, without what they count."""
    found = ["## " + part for part in ("\n" + page).split("\n## ")[1:]]
    return {part.partition("\n")[0][3:].partition(":")[0]: part for part in found}


def _curves(*, short: bool) -> list[str]:
    """Measure synthetic runs and recorded curves; return their lines."""
    made, held_out = (SEEDS[:_SHORT_SEEDS], HELD_OUT[::_SHORT_EVERY]) if short else (SEEDS, HELD_OUT)
    parts = {
        "Synthetic runs": _measured(list(simulated(made)), "synthetic runs"),
        "Recorded curves": _measured(list(recorded(held_out)), "recorded curves"),
    }
    rows = [{"part": title, "group": case.group, "load": case.load, "seed": case.run.seed,
             **{name: [round(number, 4) for number in verdict] for name, verdict in found_of.items()}}
            for title, found in parts.items() for case, found_of in found]  # fmt: skip
    (DOCS / "progress-benchmarks.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return [line for title, found in parts.items() for line in _part(title, found)]


Found = Sequence[tuple[Case, dict[str, Verdict]]]


def _measured(cases: Sequence[Case], what: str) -> Found:
    with ProcessPoolExecutor() as pool:
        found = pool.map(verdicts, cases)
        return list(zip(cases, track(found, f"{len(cases)} {what}", total=len(cases)), strict=True))


def _part(title: str, found: Found) -> list[str]:
    names = [name for name in ESTIMATORS if name != "ours, history" or any(case.earlier for case, _ in found)]
    groups: dict[str, list[dict[str, Verdict]]] = defaultdict(list)
    for case, verdict in found:
        groups[case.group].append(verdict)
        groups[f"load: {case.load}"].append(verdict)
    every = [verdict for _, verdict in found]
    lines = [
        f"\n## {title}: {len(found)} runs\n\n{_RULE_TEXT}\n",
        _row(["", *names, "ours / paper"]), _row(["---", *["---:"] * (len(names) + 1)]),
    ]  # fmt: skip
    for group in sorted(groups, key=lambda name: (name.startswith("load"), name)):
        lines.append(_row([f"{group} ({len(groups[group])})", *_errors(groups[group], names), _within(groups[group])]))
    lines.append(_row(["**all**", *_errors(every, names), _within(every)]))
    former, ours, paper = (mean([v[name].error for v in every]) for name in ("former", OURS, "paper"))
    covered = mean([v[OURS].covered for v in every])
    worst = max(groups, key=lambda g: _ratio(groups[g]))
    stops = [RULE.stops(case.run.errors) for case, _ in found]
    lines.append(
        f"\nEarly stopping ended {mean([stop > 0 for stop in stops]):.0%} of the runs, after "
        f"{mean([stop_of(case.run) / case.run.last for case, _ in found]):.0%} of the maximum number of epochs."
    )
    if "ours, history" in names:
        known = [v for case, v in found if case.earlier]
        before, after = (mean([v[name].first for v in known]) for name in (OURS, "ours, history"))
        lines.append(
            f"\nWith earlier runs ({len(known)} of the runs have some), the estimates in the first tenth of a run are "
            f"off by {after:.2f} of its length instead of {before:.2f}, and the band held the truth "
            f"{mean([v['ours, history'].covered for v in known]):.0%} of the time."
        )
    lines.append(
        f"\nCompared with the former method, the paper's has an error {1 - paper / former:.0%} lower, and ours "
        f"{1 - ours / former:.0%} lower. Our 80% band held the truth {covered:.0%} of the time. Compared with the "
        f"paper's method, ours is worst in the group “{worst}”, with {_ratio(groups[worst]):.2f} times its error."
    )
    return lines + _combinations(found)


def _combinations(found: Found) -> list[str]:
    """Return lines on where ours is more than 5% worse, and how likely by chance."""
    cells: dict[str, list[dict[str, Verdict]]] = defaultdict(list)
    for case, verdict in found:
        cells[f"{case.group}, {case.load}"].append(verdict)
    worse = {name: _ratio(runs) for name, runs in cells.items() if _ratio(runs) > _WORSE}
    every, rng = [verdict for _, verdict in found], np.random.default_rng(0)
    sizes = [len(runs) for runs in cells.values()]
    chance = [
        sum(_ratio([every[i] for i in rng.integers(len(every), size=size)]) > _WORSE for size in sizes)
        for _ in range(_RESAMPLED)
    ]
    least, most = min(sizes), max(sizes)
    lines = [
        f"\nOf the {len(cells)} combinations of curve, schedule and load, of {least}{f' to {most}' * (most > least)} "
        f"runs each, ours is more than 5% worse than the paper's in {len(worse)}; chance alone would give "
        f"{mean(chance):.1f} if all runs were alike."
    ]
    if worse:
        lines[0] += " If the interval includes 1, this may well be chance."
        lines += ["", _row(["more than 5% worse", "runs", "ours / paper"]), _row(["---", "---:", "---:"])]
        lines += [_row([name, str(len(cells[name])), _within(cells[name])]) for name in sorted(worse)]
    return lines


def _within(verdicts: Sequence[dict[str, Verdict]]) -> str:
    """Return the ratio to the paper's method, and its range in 90% of resamples."""
    rng, count = np.random.default_rng(0), len(verdicts)
    drawn = [_ratio([verdicts[i] for i in rng.integers(count, size=count)]) for _ in range(_RESAMPLED)]
    low, high = np.quantile(drawn, [0.05, 0.95])
    return f"{_ratio(verdicts):.2f} ({low:.2f} to {high:.2f})"


def _exact() -> list[str]:
    """Return lines on runs on steady machines, where the estimate has to be right."""
    errors = []
    for seed in SEEDS:
        run = make(seed, "power", "steady")

        def made(ledger: Ledger, run: Run = run) -> Estimator:
            return Estimator(TrainingPlan(run.point, run.point * run.last, run.validation), Never(), ledger)

        errors.append(judge(stretches(run, run.last), made).error)
    return [
        f"\n## Without early stopping\n\n{len(errors)} synthetic runs under steady load: average prediction error "
        f"{mean(errors):.3f}, at most {max(errors):.3f}."
    ]


def _ratio(verdicts: Iterable[dict[str, Verdict]]) -> float:
    verdicts = list(verdicts)
    return mean([v[OURS].error for v in verdicts]) / mean([v["paper"].error for v in verdicts])


def _errors(verdicts: Sequence[dict[str, Verdict]], names: Sequence[str]) -> list[str]:
    return [f"{mean([v[name].error for v in verdicts]):.2f}" for name in names]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_RULE_TEXT = """\
The stopping rule is that of the paper, with patience 9 and min_delta 0.0082. Intervals are 90%, over runs.
All choices, including the width of the band, were made on other seeds."""
_HEAD = """# Progress: how good the estimates are

`make bench-progress` writes this page; [progress](progress.md) says how to use the estimates. The average prediction
error is the area between the predicted and the true remaining time over the whole run, divided by the area below the
true one (Dong & Luo 2024, V.B): 0 is perfect, and a constant prediction of 0 has an error of 1.

- *linear*: tqdm's estimate for the maximum number of epochs.
- *former*, *paper*: the published methods, reconstructed from the paper; they are baselines, in
  `benchmarks/progress/published_methods.py`. *best of*: the best of these three for each run, which is known only
  afterwards.
- *ours*: looptap's estimate. *ours, rates*: the same, given the learning rates in advance.
- *stop known*: looptap's estimate if it knew where the run stops, so that only the speed can be wrong.

Runs of many kinds were recorded with small torch models, up to their last epoch and with the processor time of each
step. They are played back to `Progress` with a clock that stretches the whole recording to half an hour. Each recording
is judged with three rules of `Patience`: one of 3 or 5 validations, one of 8, 10 or 15, and one of 20, 30 or 40, with
and without a `min_delta`. No validations are inserted. All methods are read 150 times, at the same moments.

- *ours / paper*: the ratio of the mean errors, with its 95% interval over resampled curves. The three runs of a curve
  stay together.
- *in the band*: how often the truth lay within the 80% band. *below, above*: how often it lay below and above.
- *jumps*: how often the predicted end moved by over 10% of the run from one reading to the next without a reason in
  `progress.reason`. Reasons are a new best, another learning rate, another speed, or that the run will now most likely
  stop without a further improvement.
- *back*: the share of runs in which `progress.fraction` went back by over 2%.
- *significantly*: the whole interval lies beyond the bound."""


if __name__ == "__main__":
    main()
