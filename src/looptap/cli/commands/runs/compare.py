"""`looptap compare`: a table of runs, sorted and filtered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Argument, Option

from looptap.cli.formats import printable, several, stated
from looptap.cli.options import Place, only_with
from looptap.cli.output import DONE, MISTYPED, complain, console, remark, say, say_json
from looptap.client.attach import resolve, runs
from looptap.store.layout.run_path import SUFFIX, folder_of_runs, kept
from looptap.streams.errors import LooptapError, QueryError
from looptap.visualizers.comparison import RunTable, table_of


def compare_command(
    run: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN",
            show_default=False,
            help="Runs by name, live and stored in looptap-runs; files of stored runs, or folders of them; patterns of "
            "either in quotes. Without: all live runs, and the stored ones of looptap-runs.",
        ),
    ] = None,
    where: Annotated[
        str, Option("--where", metavar="EXPR", show_default=False, help="Only runs for which this is true.")
    ] = "",
    sort: Annotated[str, Option("--sort", metavar="EXPR", show_default=False, help="The best first.")] = "",
    reverse: Annotated[bool, Option("--reverse", help="With --sort: in reverse order.")] = False,
    best: Annotated[
        list[str] | None,
        Option(
            "--best",
            metavar="NAME=min|max",
            show_default=False,
            help="What the best number of a line is, where its name does not say.",
        ),
    ] = None,
    columns: Annotated[
        str, Option("--columns", metavar="A,B", show_default=False, help="These columns only, each an expression.")
    ] = "",
    parallel: Annotated[
        bool, Option("--parallel", help="Draw each run as a line across an axis for each column.")
    ] = False,
    save: Annotated[
        str, Option("--save", metavar="FILE", show_default=False, help="Write the chart of --parallel to a file.")
    ] = "",
    place: Place = "",
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each run.")] = False,
) -> int:
    """Compare runs: their settings, final and best numbers.

    \b
      looptap compare
      looptap compare digits-cnn
      looptap compare looptap-runs --where "lr < 0.01 and best(acc) > .9" --sort "best(acc)"
      looptap compare "sweep/*.looptap" --columns "lr,model.width,best(val_loss)" --parallel

    An expression has settings by name (those of looptap.Agent(config=...)), name, id, state, started, duration, host
    and commit, and of the lines of numbers best, final, first, min, max and count. Whether the smallest or the largest
    is best follows from the name (loss, acc), or from --best. isnan(final(loss)) finds the runs that ended with NaN.
    """
    only_with("--sort", bool(sort), reverse=reverse)
    try:
        everything = table_of(_named(run or []), _ways(best or []))
        table = _sorted(everything, where, sort, reverse)
        named = _split(columns) or table.columns
        cells = {column: table.values(column) for column in named}
    except QueryError as error:
        complain(str(error))
        return MISTYPED
    for text in stated(*((f"{row.name}: {row.problem}", row.problem) for row in table)):
        remark(text)
    if as_json:
        return say_json(
            [
                {**row.plain(), "columns": {column: cells[column][place] for column in named}}
                for place, row in enumerate(table)
            ]
        )
    if parallel or save:
        return _draw(table, _split(columns), save, place)
    if table:
        _print(table, named, cells)
    elif everything:
        say(f"None of {several(len(everything), 'run')} has {where}.")
    else:
        say(f"No run to compare. Jobs with looptap.Agent(..., config=...) leave files in {folder_of_runs()}.")
    return DONE


def _named(names: list[str]) -> list[Any]:
    """Return the runs that are meant; without names, all."""
    found: list[Any] = []
    for name in names:
        if Path(name).expanduser().exists() or name.endswith(SUFFIX):
            found.append(name)
        else:
            found += _called(name) or [resolve(name)]
    return found if names else _called("*")


def _called(name: str) -> list[Any]:
    """Return the live and the stored runs of a name, or whose names match a pattern."""
    there = [one for one in runs() if not one.problem and one.alive is not False]
    live = [one for one in there if fnmatchcase(one.name, name) or fnmatchcase(one.id, name)]
    ids = {one.id for one in live}
    stored = dict.fromkeys([*kept(name), *kept(f"{name}-[0-9]*-[0-9]*")])  # by id, and by name
    return [*live, *(path for path in stored if "-rank" not in path.stem and path.stem not in ids)]


def _ways(best: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in best]
    if wrong := [f"{name}{sign}{way}" for name, sign, way in pairs if way not in ("min", "max")]:
        raise QueryError(f"--best {wrong[0]}: write NAME=min or NAME=max.")
    return {name.strip(): way for name, _, way in pairs}


def _sorted(table: RunTable, where: str, sort: str, reverse: bool) -> RunTable:
    if sort:
        table = table.sort(sort)
    if sort and reverse:
        table = RunTable(reversed(table.rows), table.ways)
    return table.where(where) if where else table  # last: of no run nothing is known to sort by


def _split(columns: str) -> list[str]:
    """Return the expressions between commas outside of brackets and texts."""
    found, depth, quote = [""], 0, ""
    for letter in columns:
        quote = "" if letter == quote else quote or (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([") - (letter in ")]")
        if letter == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += letter
    return [column.strip() for column in found if column.strip()]


def _draw(table: RunTable, columns: list[str], save: str, place: str) -> int:
    from looptap.visualizers.surfaces.capabilities import NoPlace
    from looptap.visualizers.surfaces.showing import show

    try:
        plot = table.parallel(*columns)
        if save:
            plot.save(save)
            say(f"saved: {save}")
        else:
            with suppress(KeyboardInterrupt):  # enough seen
                show(plot, place=place, block=True, report=remark)
    except (LooptapError, NoPlace, ValueError, ImportError) as error:
        return complain(str(error))
    return DONE


def _print(table: RunTable, columns: list[str], cells: dict[str, list[Any]]) -> None:
    out = console()
    titles, rows = table.texts(columns, cells)
    lines = [[printable(cell) for cell in line] for line in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = _fitting(titles, widths, out.width) if out.is_terminal else [*range(len(titles))]
    for number, line in enumerate(lines):
        text = "  ".join(line[place].ljust(widths[place]) for place in shown).rstrip()
        out.print(Text(text, "" if number else "dim"))
    if len(shown) < len(titles):
        out.print(Text(f"… and {len(titles) - len(shown)} columns more: --columns, --json", "dim"))


def _fitting(titles: Sequence[str], widths: Sequence[int], width: int) -> list[int]:
    """Return the columns that fit into a width.

    Settings are left out before results.
    """
    shown = [*range(len(titles))]
    while len(shown) > 1 and sum(widths[place] + 2 for place in shown) > width:
        settings = [place for place in shown if place > 2 and "(" not in titles[place]]
        shown.remove((settings or shown)[-1])
    return shown
