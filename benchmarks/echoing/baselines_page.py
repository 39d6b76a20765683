"""The last section of docs/echoing-benchmarks.md, and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HEADING = "## Echoing and its alternatives"
HEAD = f"""{HEADING}

This section compares `Echo` with the other ways to feed a loop from slow data: more workers, and a cache. `make
bench-echo PART=latency`, `PART=processor` and `PART=auto`, each run alone, write it. The digits and the CNN are the
same as above. All rows of a table have the same wall time, counted from the first batch, and take turns, seed by
seed. Accuracy is measured with the averaged weights of the last steps, on distorted digits that were not trained on."""
TITLES = {
    "latency": "A reader that waits: files from a slow server",
    "processor": "A reader that computes: large JPEG files, in memory",
}


def write(into: Path, found: dict[str, Any]) -> None:
    """Write the measurements so far: pictures, and the last section."""
    if parts := {part: found[part] for part in TITLES if part in found}:
        _draw(into / "echoing-baselines.png", parts)
    if "auto" in found:
        _draw_auto(into / "echoing-auto.png", found["auto"])
    page = into / "echoing-benchmarks.md"
    above = page.read_text().partition(HEADING)[0] if page.exists() else ""
    page.write_text(above + "\n".join(lines(found)) + "\n")


def lines(found: dict[str, Any]) -> list[str]:
    """Return the section."""
    made = [HEAD, *(_verdict(found) if found.keys() & TITLES else [])]
    for part, title in TITLES.items():
        if part in found:
            made += _table(part, title, found[part])
    if found.keys() & TITLES:
        made.append("\n![Accuracy over wall time, one seed](echoing-baselines.png)")
    return [*made, *(_auto(found["auto"]) if "auto" in found else [])]


def last(runs: Sequence[dict[str, Any]]) -> float:
    """Return the median accuracy at the end."""
    return median(run["scores"][-1][1] for run in runs)


def _verdict(found: dict[str, Any]) -> list[str]:
    lines = ["\n### Where echoing loses\n"]
    for part in TITLES:
        if part not in found:
            continue
        rows, seconds = found[part]["rows"], found[part]["seconds"]
        echo = last(rows["`auto`, 2 workers"])
        better = {name: last(runs) for name, runs in rows.items() if "auto" not in name and last(runs) > echo}
        by_accuracy = sorted(better.items(), key=lambda one: -one[1])
        said = ", ".join(f"{name} ({accuracy:.1%})" for name, accuracy in by_accuracy)
        kind = "waits" if part == "latency" else "computes"
        line = f"- If the reader {kind}, `auto` with 2 workers reaches {echo:.1%} after {seconds:g} s; "
        line += f"better without echoing: {said}." if said else "nothing without echoing is better."
        for name, runs in rows.items():
            alone = name.removeprefix("`auto`, ").removesuffix(" (tuned)")
            if alone in rows and last(runs) < last(rows[alone]):
                named = name.removesuffix(" (tuned)")
                line += f" {named} reaches {last(runs):.1%}, and {last(rows[alone]):.1%} without echoing."
        lines.append(line)
    return lines


def _table(part: str, title: str, found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    made = ["| | accuracy | steps | fresh examples | factor at the end |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, runs in rows.items():
        ends = [run["scores"][-1][1] for run in runs]
        cells = [
            name, f"{median(ends):.1%} ({min(ends):.1%}–{max(ends):.1%})",
            *(f"{median(run[key] for run in runs):,.0f}" for key in ("steps", "fresh")),
            f"{median(run['factor'] for run in runs):.3g}",
        ]  # fmt: skip
        made.append(f"| {' | '.join(cells)} |")
    what = (
        f"Each answer of the server takes {found['wait'] * 1e3:.2f} ms. At the start, with two workers, a fresh batch "
        f"took {found['up'] * 1e3:.0f} ms and a step of the loop {found['down'] * 1e3:.1f} ms "
        f"(R = {found['up'] / found['down']:.1f})."
        if part == "latency"
        else f"Decoding 64 of them takes {found['up'] * 1e3:.0f} ms of processor time."
    )
    return [
        f"\n### {title}\n", f"{what} {found['seconds']:g} s per run, {len(next(iter(rows.values())))} seeds. Decoded "
        "data is cached as it is read, in memory that all workers share. Caching a quarter of it stands for a data set "
        f"four times as large as its cache. Load of the machine at the end: {found['load']:.1f}.\n", *made,
    ]  # fmt: skip


def _auto(found: dict[str, Any]) -> list[str]:
    made = [
        "| load | factor (median) | least | most | within 20% of the median |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    made += [
        f"| {busy} processes | {one['median']:.2f} | {one['least']:.2f} | {one['most']:.2f} | {one['inside']:.0%} |"
        for busy, one in found["steady"].items()
    ]
    filling = {name: median(one["seconds"] for one in some) for name, some in found["filling"].items()}
    steps = {name: median(one["steps"] for one in some) for name, some in found["filling"].items()}
    return [
        "\n### Is `auto` steady?\n",
        "A reader that waits the same time for each item; 400 batches, after the first 200:\n",
        *made,
        f"\nA cache that fills as the data is read was full after {filling['1.0']:.1f} s without echoing "
        f"({steps['1.0']:.0f} steps) and after {filling['auto']:.1f} s with `auto` ({steps['auto']:.0f} steps).",
        "\nA reader that becomes three times as slow, then as fast as before:\n",
        "| reader | factor at the end (median of 100 batches) | within 20% of it after |", "| --- | ---: | ---: |",
        *_changes([factor for _, factor, _ in found["changes"]]),
        f"\nApart from these processes, the load of the machine was {found['load']:.1f} at the end.",
        "\n![The factor, without and with load, and where R changes](echoing-auto.png)",
    ]  # fmt: skip


def _changes(factors: Sequence[float]) -> list[str]:
    """Return a row for each third: where the factor went, and when it was there."""
    rows, third = [], len(factors) // 3
    for number, name in enumerate(("at first", "three times as slow", "as at first")):
        part = factors[number * third : (number + 1) * third]
        usual = median(part[-100:])
        there = next((at for at, factor in enumerate(part) if abs(factor - usual) <= 0.2 * usual), third)
        rows.append(f"| {name} | {usual:.2f} | {there} batches |")
    return rows


def _draw(path: Path, parts: dict[str, Any]) -> None:
    figure = Figure(figsize=(16, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (part, found) in zip(
        figure.subplots(1, max(len(parts), 1), squeeze=False)[0], parts.items(), strict=False
    ):
        for name, runs in found["rows"].items():
            style = "-" if "auto" in name else "--" if "cached" in name else ":"
            times, scores = zip(*runs[0]["scores"], strict=True)
            axes.plot(times, scores, style, lw=1.4, label=name.replace("`", ""))
        axes.set(xlabel="seconds", ylabel="test accuracy", title=TITLES[part])
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=80)


def _draw_auto(path: Path, found: dict[str, Any]) -> None:
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    steady, changing = figure.subplots(1, 2)
    for busy, one in found["steady"].items():
        steady.plot(one["factors"], lw=1.2, label=f"{busy} processes beside it")
    steady.set(xlabel="batch", ylabel="factor", title="R is constant", ylim=(0, None))
    steady.legend(fontsize=8)
    _, factors, ratios = zip(*found["changes"], strict=True)
    changing.plot(factors, lw=1.4, label="factor")
    changing.plot(ratios, ":", lw=1, label="R as measured")
    for at in (250, 500):
        changing.axvline(at, color="#999999", lw=0.8)
    changing.set(xlabel="batch", title="the reader becomes 3 times as slow, then as fast as before", ylim=(0, None))
    changing.legend(fontsize=8)
    figure.savefig(path, dpi=80)
