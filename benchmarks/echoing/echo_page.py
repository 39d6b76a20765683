"""The written page: tables of the measurements, with baselines beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from echoed_training import DIGITS, LANGUAGE, Outcome
from fresh_to_target import (
    DEVELOPMENT,
    FEW,
    FINAL,
    LIMITS,
    RATES,
    Job,
    Row,
    base,
    best,
    fewer,
    fresh_of,
    needed,
    rows,
)
from promises import Costs, Fast, Promise, final_of, spread
from promises import times as times_less
from time_to_target import FACTORS, RATIO, Timed, before, expected, named, pace, seconds, speed_up

Found = dict[Job, Outcome]


def kept(promises: Sequence[Promise]) -> list[str]:
    """Return lines on the promises."""
    made = [[p.what, p.baseline, p.measured, "yes" if p.held else "**no**"] for p in promises]
    return ["\n## Promises\n", *_table(["promise", "baseline", "measured", "held"], made)]


def times(timed: Timed, latency: float) -> list[str]:
    """Return lines on the time to target."""
    made = []
    for factor in FACTORS:
        name, every = named(factor), timed[named(factor)]
        sooner, faster = (speed_up(timed, name, what) for what in (seconds, pace))
        made.append([
            f"{name}, which settled at {spread([one.factor for one in every], '.1f')}" if name == "auto" else name,
            spread([seconds(one) for one in every], ".1f"), times_less(*sooner),
            f"{median(one.fresh for one in every):,.0f}", f"{median(one.steps for one in every):.0f}",
            f"{median(map(pace, every)) * 1e3:.1f}", f"{faster[0]:.2f}×",
            f"{expected(timed, factor):.2f}×" if isinstance(factor, float) else "",
            f"{expected(timed, factor, before(factor)):.2f}×" if isinstance(factor, float) else "", _reached(every),
        ])  # fmt: skip
    up, down = (median(getattr(one, name) for one in timed["1"]) for name in ("up", "down"))
    busy = median(one.down for one in timed["8"])
    head = ["e", "seconds to target", "sooner", "fresh examples", "steps", "ms a step", "steps a second",
            "predicted at e = 1", "at the next lower e", "reached"]  # fmt: skip
    return [
        f"\n## Time to {DIGITS.target:.0%}, from a slow server\n",
        *_table(head, made),
        f"\nThe intended R was {RATIO:g}: each answer of the server takes {latency * 1e3:.2f} ms, two at a "
        f"time. In the runs with e = 1 the loop saw R = {up / down:.2f} ({up * 1e3:.1f} ms per fresh batch, "
        f"{down * 1e3:.1f} ms per step; {busy * 1e3:.1f} ms at e = 8, where the loop never waits). "
        "In all rows, the reader, the server and the loop share the processors.",
        "\n![Accuracy over time, speed-up by factor, fresh examples by factor](echoing-speedup.png)",
    ]


def fed(fast: Fast) -> list[str]:
    """Return lines on a loader that is faster than the loop."""
    made = [
        [{"bare": "bare `DataLoader`", "1": "e = 1", "auto": "`auto`"}[name],
         spread([one[name][0] * 1e3 for one in fast], ".2f")] for name in ("bare", "1", "auto")
    ]  # fmt: skip
    return [
        "\n## If data arrives in time\n",
        f"The same files without the server, R = {median(one['1'][1] for one in fast):.2f}: echoing saves nothing.\n",
        *_table(["", "ms a step"], made),
    ]


def tables(found: Found) -> list[str]:
    """Return lines on fresh examples to the target."""
    every = rows()
    lines = ["\n## Fresh examples to the target\n", _FRESH]
    lines += ["\n### By insertion point (as Fig. 3 of the paper), B = 64\n"]
    lines += _fresh(found, every["points"])
    lines += ["\n### Larger batches (Fig. 6), B = 256\n", *_fresh(found, every["sizes"])]
    lines += ["\n### By shuffle buffer (Fig. 7), B = 64, e = 4\n", *_fresh(found, every["buffers"])]
    lines += [f"\n### The transformer, to a loss of {-LANGUAGE.target:g}, e up to 16 (Fig. 5)\n"]
    lines += _fresh(found, every["language"])
    poor = [row for part in every.values() for row in part if fewer(found, row)[0] < 1.15]
    if poor:
        said = "; ".join(f"{_called(row)} ({_gained(found, row)})" for row in poor)
        lines.append(f"\n**Where echoing does not pay off** (less than 1.15 times fewer fresh examples): {said}.")
    return lines


def _fresh(found: Found, wanted: Sequence[Row]) -> list[str]:
    made = []
    for row in dict.fromkeys(one for each in wanted for one in (base(each), each)):
        needs = fresh_of(found, row)
        reached = sum(math.isfinite(value) for value in needs)
        part = times_less(*fewer(found, row)) if row.factor != 1.0 else "1"
        point = row.mode if row.factor != 1.0 else "none"
        made.append([point, f"{row.factor:g}", str(row.size), str(row.buffer), spread(needs, ",.0f"), part,
                     f"{reached} of {len(needs)}"])  # fmt: skip
    return _table(["echo", "e", "B", "buffer", "fresh examples", "times fewer", "reached"], made)


def equal(finals: Found) -> list[str]:
    """Return lines on what is learnt from equal fresh data."""
    made = [[f"{e:g}", spread([value * 100 for value in final_of(finals, e)], ".1f")] for e in (1.0, 2.0, 5.0)]
    return [
        f"\n## Test accuracy after {FINAL:,} fresh examples\n",
        "The learning rate falls to zero as the fresh data is used up, so each run is complete. With echoing it takes "
        "e times as many steps.\n",
        *_table(["e", "accuracy, %"], made),
    ]


def cost(costs: Costs) -> list[str]:
    """Return lines on what the stage costs."""
    made = [
        [f"{mode}, {workers} worker{'s' * (not workers)}", f"{plain * 1e3:.2f}", f"{ours * 1e3:.2f}", f"{off:+.1%}",
         f"{(ours - plain) / 64 * 1e6:.1f}"]
        for (mode, workers), (off, plain, ours) in costs.items()
    ]  # fmt: skip
    return ["\n## What the stage costs at e = 1\n", "Medians of steps of the small CNN, in turn with a bare loader and "
            "with an echoed one, data in memory. The cost is a few microseconds per example, whatever a step takes.\n",
            *_table(["", "bare, ms a step", "echoed, ms", "", "µs an example"], made)]  # fmt: skip


def tuned(found: Found) -> list[str]:
    """Return lines on the learning rates."""
    lines = [
        "\n## Learning rates\n",
        f"Chosen without echoing on the development seeds {', '.join(map(str, DEVELOPMENT))}, for the fewest fresh "
        "examples to the target (mean), and used for all rows of that task and batch size.\n",
    ]  # fmt: skip
    made = []
    for (task, size), rates in RATES.items():
        chosen = best(found, task, size)
        needs = {rate: needed(found, task, size, rate) for rate in rates}
        texts = [f"{e:g}: " + ("not reached" if math.isinf(need) else f"{need:,.0f}") for e, need in needs.items()]
        marked = zip(needs, texts, strict=True)
        made.append([f"{task}, B = {size}", *(f"**{text}**" if rate == chosen else text for rate, text in marked)])
    return [*lines, *_table(["", "rate: examples", "", ""], made), ""]


def _called(row: Row) -> str:
    return f"{row.task}, {row.mode}, e = {row.factor:g}, B = {row.size}, buffer {row.buffer}"


def _gained(found: Found, row: Row) -> str:
    ratio = fewer(found, row)[0]
    return f"{ratio:.2f}×" if ratio else f"not reached within {LIMITS[row.task, row.size]:,} steps"


def _reached(every: Sequence[Outcome]) -> str:
    return f"{sum(one.reached for one in every)} of {len(every)}"


def _table(head: Sequence[str], made: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *made)]


def head(seeds: Sequence[int]) -> str:
    """Return how it was measured."""
    return f"""# What echoing saves

`make bench-echo` writes this page. [Data echoing](echoing.md) explains the factor e, the insertion points and R.

All figures come from one run, in which the factors take turns, seed by seed, on {len(seeds)} seeds
({min(FEW, len(seeds))} for the comparison with a bare loader, and where the last column of a table says so). Figures
are medians with the range over the seeds. Ratios are ratios of medians; their range pairs the runs of each seed with
and without echoing.

- **Digits**: 1,500 of scikit-learn's digits as PNG files of 24 × 24 pixels, distorted at random (rotated, sheared,
  scaled, shifted, a hole, noise), and a CNN with three convolutions; B = 64, SGD with momentum 0.9. The target is
  {DIGITS.target:.0%} on the other 297, each distorted twice. In the timed runs a local HTTP server delivers the files,
  each after a delay; two worker processes fetch one file at a time and decode it.
- **Language**: sequences of 16 tokens of an artificial language, none seen twice, and a transformer with two layers and
  Adam. The target is a loss of {-LANGUAGE.target:g} on unseen sequences.

The target is reached when two evaluations in a row reach it. The averaged weights of the last steps are evaluated every
{DIGITS.every} steps ({LANGUAGE.every} for the language), but not during timed runs. A timed run takes as many steps as
the same run took in memory (`auto` more than it can need), keeps its weights at each evaluation, and is evaluated at
the end. The data is one long stream of shuffled epochs."""


_FRESH = """\
The data is in memory, and nothing slows it down. Each example that is read counts once, even if it is still in the
buffer. "Times fewer" compares with the same seeds without echoing. `batch` is batch echoing as in the paper: the copies
of a batch follow one another."""
