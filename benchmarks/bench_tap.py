"""The cost of an event with the compiled tap and in pure Python.

Two processes, one with each, run the same blocks in turns, so that a slow moment of the machine affects both. Each has
its own baseline.

- Idle: events without a query; `epoch` ends the open group of `batch`. The baseline is an empty method with the same
  arguments.
- In a row: 20,000 events with one mapped query, until another process has the last value. The baseline is 20,000 calls
  of an empty method.
- After a training step of a millisecond, with its loss, a tensor, and one or five streams: the median of single calls.
  The baseline is `loss.item()` at the same place.

Left out: the work of the I/O thread between such calls, which `small_loop` measures as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from harness import Row, ask, helper, in_units, interleave, main
from tap_process import COUNTS, MAPPED, STREAMS

ROUNDS = 20
PURE = {"compiled tap": "0", "pure Python": "1"}
IDLE, MAPPED_IN_A_ROW, AFTER_A_STEP = 0.6, 2.0, 0.8
"""What is promised of the compiled tap, as ratios to the baselines."""
PURE_IDLE, PURE_IDLE_FEW, PURE_IN_A_ROW, PURE_AFTER_A_STEP = 1.5, 1.6, 10.0, 2.0


def lines() -> list[tuple[str, str, str, float, float]]:
    """Return what each line measures: words, block, baseline, and both promises."""
    found = []
    for event in ("batch", "epoch"):
        for count in COUNTS:
            bound = PURE_IDLE if count >= 4 else PURE_IDLE_FEW
            words = f"idle emit of {event!r} with {count} observables (baseline: an empty method)"
            found.append((words, f"{event} {count}", f"empty {count}", IDLE, bound))
    for name, query in MAPPED.items():
        words = f"{query}: an event in a row, delivered (baseline: an empty method)"
        found.append((words, name, "empty, row", MAPPED_IN_A_ROW, PURE_IN_A_ROW))
    for count in STREAMS:
        words = f"emit after a training step, loss a tensor, {count} stream{'s' * (count > 1)} (baseline: loss.item())"
        found.append((words, f"of {count}", "item", AFTER_A_STEP, PURE_AFTER_A_STEP))
    return found


def rows() -> Iterator[Row]:
    names = {block for _, ours, baseline, *_ in lines() for block in (ours, baseline)}
    with (
        helper("tap_process.py", PURE["compiled tap"]) as compiled,
        helper("tap_process.py", PURE["pure Python"]) as pure,
    ):
        processes = {ask(process): process for process in (compiled, pure)}
        assert set(processes) == set(PURE), f"the tap was not built: {[*processes]}"
        blocks = {
            f"{which}, {name}": partial(ask, process, block=name)
            for which, process in processes.items() for name in sorted(names)
        }  # fmt: skip
        seen = interleave(blocks, ROUNDS, settle=0.02)
        for process in processes.values():
            process.stdin.close()
            assert process.wait(60) == 0  # all values came
    for words, ours, baseline, promise, promise_pure in lines():
        for which, bound in (("compiled tap", promise), ("pure Python", promise_pure)):
            ratio = seen.ratio(f"{which}, {ours}", f"{which}, {baseline}")
            yield Row(
                f"{which}: {words}",
                in_units(seen.median(f"{which}, {baseline}")),
                in_units(seen.median(f"{which}, {ours}")),
                str(ratio),
                f"≤ {bound:g}",
                ratio.at_most(bound),
                figures={"baseline": seen.seconds[f"{which}, {baseline}"], "ours": seen.seconds[f"{which}, {ours}"]},
            )


if __name__ == "__main__":
    main(rows, __doc__)
