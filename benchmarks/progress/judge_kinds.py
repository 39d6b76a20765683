"""Judges the recorded runs of many kinds; see kind_cases.py for how.

python benchmarks/progress/judge_kinds.py [--only NAME] [--rivals FILE] [--jobs N] [--kept]    prints the tables.

``--rivals FILE`` keeps the verdicts on all methods that are not ours in a file, so that another try costs less.
``--kept`` judges the runs that no choice was made on, draws their figures, and writes docs/progress-kept.json, from
which the page is made. They are judged once, at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import kind_figures
from kind_cases import KindCase, KindVerdict, cases, judge, methods
from kind_curves import DEVELOPMENT_FILE, KEPT_FILE, read
from kind_tables import Row, section
from rich.progress import track

DOCS = Path(__file__).resolve().parents[2] / "docs"
KEPT_ROWS = DOCS / "progress-kept.json"
FIGURES = """
![How often the run ended before the low end, the median and the high end of the band](progress-reliability.png)

How often the truth was below the low end, the median and the high end of the band (stated: 10, 50 and 90%), by phase.

![Shown and true remaining time of 20 runs](progress-unpicked.png)

The first 20 of the kept runs, in an order shuffled with a fixed seed: the true remaining time, ours with its band, and
the paper's method. The runs were not selected in any other way."""


def judged(found: Sequence[KindCase], *, known: dict[str, list[object]] | None = None, jobs: int = 2) -> list[Row]:
    """Judge cases; ``known`` are verdicts by name, and gets those on the rivals."""
    known = {} if known is None else known
    missing = [(case, name) for case in found for name in methods(case)
               if name.startswith("ours") or _name(case, name) not in known]  # fmt: skip
    with ProcessPoolExecutor(jobs) as pool:
        made = pool.map(_judged, missing, chunksize=4)
        verdicts = {
            _name(*one): verdict
            for one, verdict in zip(missing, track(made, "recorded kinds", total=len(missing)), strict=True)
        }
    for (case, name), verdict in zip(missing, list(verdicts.values()), strict=True):
        if not name.startswith("ours"):
            known[_name(case, name)] = list(verdict)
    verdicts |= {name: KindVerdict(*verdict) for name, verdict in known.items()}  # type: ignore[arg-type]
    return [
        Row(case.curve.kind, case.curve.seed, case.curve.reports, case.curve.schedule, case.rule.patience,
            case.rule.min_delta, case.fired, len(case.curve.values),
            {name: verdicts[_name(case, name)] for name in methods(case)})
        for case in found
    ]  # fmt: skip


def _judged(one: tuple[KindCase, str]) -> KindVerdict:
    return judge(*one)


def _name(case: KindCase, method: str) -> str:
    return f"{case.curve.name}, {case.rule.patience}, {case.rule.min_delta}: {method}"


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows to a file, one per line."""
    found = [{**row._asdict(), "verdicts": {name: list(one) for name, one in row.verdicts.items()}} for row in rows]
    path.write_text("[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in found) + "\n]\n")


def kept_rows() -> list[Row]:
    """Return the rows of the kept runs, as judged once; none before."""
    if not KEPT_ROWS.exists():
        return []
    found = json.loads(KEPT_ROWS.read_text())
    return [Row(**{**one, "verdicts": {name: KindVerdict(*v) for name, v in one["verdicts"].items()}}) for one in found]


def main() -> None:
    """Judge, and print the tables."""
    arguments = argparse.ArgumentParser(description="Judge the recorded runs of many kinds.")
    arguments.add_argument("--only", default="", help="judge only kinds with this in their name")
    arguments.add_argument("--rivals", type=Path, help="where the verdicts on the rivals are kept")
    arguments.add_argument("--jobs", type=int, default=2, help="processes")
    arguments.add_argument("--kept", action="store_true", help="judge the kept runs")
    options = arguments.parse_args()
    found = [case for case in cases(read(KEPT_FILE if options.kept else DEVELOPMENT_FILE))
             if options.only in case.curve.kind]  # fmt: skip
    known = json.loads(options.rivals.read_text()) if options.rivals and options.rivals.exists() else {}
    rows = judged(found, known=known, jobs=options.jobs)
    if options.rivals:
        options.rivals.write_text(json.dumps(known))
    if options.kept and not options.only:
        write(KEPT_ROWS, rows)
        kind_figures.reliability(rows, DOCS / "progress-reliability.png")
        kind_figures.unpicked(found, DOCS / "progress-unpicked.png")
    print("\n".join(section(rows, "Kept runs" if options.kept else "Development runs")))


if __name__ == "__main__":
    main()
