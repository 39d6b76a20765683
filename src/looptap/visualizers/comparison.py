"""`compare` and `RunTable`: runs as a table, or as lines on shared axes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from looptap.client.compared_run import FACTS, ComparedRun, ComparedSource, compared_runs
from looptap.client.run_expressions import UNKNOWN, Expression
from looptap.streams.durations import duration
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.forwarding import check_options
from looptap.streams.stream.stream import Stream, stream_of
from looptap.visualizers.charts.legends import label_of
from looptap.visualizers.data.words import shown_text
from looptap.visualizers.first_curves import SPEED
from looptap.visualizers.plot import Plot

if TYPE_CHECKING:
    import pandas

MAX_COLUMNS = 14
"""Columns of a table as text; `RunTable.columns` are all."""
MAX_AXES = 10
"""Axes of `RunTable.parallel` if none are named."""
_MAX_CELL_CHARACTERS = 32


class RunTable(Sequence[ComparedRun]):
    """Runs as rows: settings, final and best numbers, duration, state.

    ``columns`` are the settings in which the runs differ, then of each line of numbers its best and its final value;
    the speed, ``final(events_per_second)``, is there for expressions. `where` and `sort` return another table;
    `parallel` draws it.
    """

    def __init__(self, rows: Iterable[ComparedRun], ways: Mapping[str, str]) -> None:
        self.rows, self.ways = tuple(rows), dict(ways)

    # ------------------------------------------------------------ columns

    @property
    def settings(self) -> list[str]:
        """The names of all settings."""
        return list(dict.fromkeys(name for row in self.rows for name in row.config))

    @property
    def lines(self) -> list[str]:
        """The names of all lines of numbers."""
        return list(dict.fromkeys(name for row in self.rows for name in row.lines))

    @property
    def columns(self) -> list[str]:
        """The expressions of the columns after name, state and duration."""
        differing = [name for name in self.settings if len({_key(row, name) for row in self.rows}) > 1]
        lines = [line for line in self.lines if line != SPEED]
        figures = [f"{what}({_quoted(line)})" for line in lines for what in ("best", "final")]
        return [_quoted_setting(name) for name in differing] + figures

    def axes(self, last: str = "") -> tuple[str, ...]:
        """Return the columns that `parallel` draws, ``last`` at the end if one is given.

        They are the settings in which the runs differ, and the best of each line but its speed.
        """
        bests = [one for one in self.columns if not one.startswith("final(") and one not in (f"best({SPEED})", last)]
        room = MAX_AXES - 1
        return (*bests[:room], *([last] if last else bests[room:][-1:]))

    # ------------------------------------------------------------ rows

    def where(self, expression: str) -> RunTable:
        """Return the runs for which an expression is true.

        ``"lr < 0.01 and best(acc) > .9"``: settings by name, the facts name, id, state, started, duration, host and
        commit, and of the lines of numbers best, final, first, min, max and count. ``"isnan(final(loss))"`` are the
        runs that ended with NaN. A run that lacks a name is left out. Raises QueryError for anything else: nothing is
        executed.
        """
        wanted = self._expression(expression)
        found = [(row, wanted.of(row)) for row in self.rows]
        return RunTable((row for row, value in found if value is not UNKNOWN and value), self.ways)

    def sort(self, expression: str, *, descending: bool | None = None) -> RunTable:
        """Return the runs in order of an expression, the best first.

        Numbers come in rising order, ``best(acc)`` and the like in falling order where the largest is best, unless
        ``descending`` says. Runs whose value is NaN come after all others, and runs without a value are last.
        """
        if not self.rows:
            return self
        wanted = self._expression(expression)
        falling = self._falling(expression) if descending is None else descending
        values = [(row, wanted.of(row)) for row in self.rows]
        known = [(row, value) for row, value in values if value is not UNKNOWN and value is not None]
        known.sort(key=lambda pair: _order(pair[1]), reverse=falling)
        known.sort(key=lambda pair: _is_nan(pair[1]))  # the worst, whichever end is the best
        ordered = [row for row, _ in known]
        return RunTable([*ordered, *(row for row, value in values if value is UNKNOWN or value is None)], self.ways)

    def values(self, expression: str) -> list[Any]:
        """Return the value of an expression for each run; None where it has none."""
        wanted = self._expression(expression)
        return [None if (value := wanted.of(row)) is UNKNOWN else value for row in self.rows]

    def _expression(self, text: str) -> Expression:
        aliases = [alias for row in self.rows for alias in row.aliases]
        return Expression(text, [*self.settings, *FACTS], list(dict.fromkeys([*self.lines, *aliases])))

    def _falling(self, expression: str) -> bool:
        name, _, rest = expression.strip().partition("(")
        line = rest.removesuffix(")").strip("'\" ")
        if name not in ("best", "final") or not rest.endswith(")"):
            return False
        return any(row.largest_is_best(line) for row in self.rows if row.line(line) is not None)

    # ------------------------------------------------------------ other forms

    def parallel(self, *columns: str, **how: Any) -> Plot:
        """Draw each run as a line across an axis for each column.

        ``columns`` are expressions; by default the settings in which the runs differ, and the best of each line. The
        colour of a line is its place on the last axis. ``how`` is what `looptap.plot` takes besides. Raises QueryError.
        """
        if not columns:
            columns = self.axes()
        if len(columns) < 2 or not self.rows:
            raise QueryError("lines across axes need two columns and a run, as in parallel('lr', 'best(loss)').")
        values = {column: self.values(column) for column in columns}
        rows = [
            {"run": row.name, **{column: values[column][place] for column in columns}}
            for place, row in enumerate(self.rows)
        ]
        return Plot(stream_of([rows], name="runs"), chart="parallel", **how)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as plain data, with all settings and figures."""
        return [row.plain() for row in self.rows]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a DataFrame. Raises ImportError if pandas is not installed."""
        import pandas

        columns = {column: self.values(column) for column in self.columns}
        facts = {name: [getattr(row, name) for row in self.rows] for name in ("name", "id", "state", "duration")}
        return pandas.DataFrame(facts | columns)

    def texts(
        self, columns: Sequence[str] | None = None, values: Mapping[str, Sequence[Any]] | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Return the titles and the rows as texts, of these ``columns``."""
        columns = self.columns if columns is None else columns
        known = values or {column: self.values(column) for column in columns}
        cells = [[_cell(value) for value in known[column]] for column in columns]
        titles = ["name", "state", "duration", *columns]
        rows = [
            [
                row.name,
                row.state,
                "" if row.duration is None else duration(row.duration),
                *(column[place] for column in cells),
            ]
            for place, row in enumerate(self.rows)
        ]
        return titles, rows

    def __getitem__(self, index: Any) -> Any:
        return RunTable(self.rows[index], self.ways) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ComparedRun]:
        return iter(self.rows)

    def __repr__(self) -> str:
        titles, rows = self.texts()
        width = min(len(titles), MAX_COLUMNS)
        lines = [titles[:width], *(row[:width] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
        more = f"\n… and {len(titles) - width} columns more: table.columns" if len(titles) > width else ""
        return (text if rows else "<no runs>") + more

    def _repr_html_(self) -> str:
        titles, rows = self.texts()

        def line(tag: str, cells: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        return f"<table>{line('th', titles)}{''.join(line('td', row) for row in rows)}</table>"


def table_of(runs: Iterable[ComparedSource], best: Mapping[str, str] | None = None) -> RunTable:
    """Return the table of runs: see `looptap.client.compared_run.compared_runs`.

    Raises QueryError for ``best`` that is neither min nor max.
    """
    ways = dict(best or {})
    if wrong := [f"{name}={way}" for name, way in ways.items() if way not in ("min", "max")]:
        raise QueryError(f"best: {', '.join(wrong)} must be min or max.")
    return RunTable(compared_runs(runs, ways), ways)


def _key(row: ComparedRun, name: str) -> str:
    return repr(row.config.get(name, UNKNOWN))


def _quoted(line: str) -> str:
    return line if all(part.isidentifier() for part in line.split(".")) else repr(line)


def _quoted_setting(name: str) -> str:
    return name if all(part.isidentifier() for part in name.split(".")) else f"config[{name!r}]"


def _order(value: Any) -> tuple[int, Any]:
    """Return a key by which values of several types can be sorted."""
    return (0, value) if isinstance(value, bool | int | float) else (1, str(value))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _cell(value: Any) -> str:
    return "" if value is None else "NaN" if _is_nan(value) else shown_text(value, _MAX_CELL_CHARACTERS)


@overload
def compare(runs: Sequence[ComparedSource], /, *, best: Mapping[str, str] | None = None) -> RunTable: ...


@overload
def compare(*sources: Any, x: str = "step", **how: Any) -> Plot: ...


def compare(*sources: Any, x: str = "step", best: Mapping[str, str] | None = None, **how: Any) -> Plot | RunTable:
    """Return a table of runs, or draw their streams on shared axes over ``x``.

    ``looptap.compare(runs)`` takes a list of live or stored runs, of paths, folders and patterns of stored runs, or of
    the results of `looptap.runs`. It returns a `RunTable` with settings, final and best numbers, duration and state,
    which you can sort, filter and draw.

    ``looptap.compare(old, run, "loss", "error")`` draws a chart for each name with a line for each run. Instead of runs
    and names you can pass streams, which then share one chart. `Plot.summary` is the table of final and best values. A
    run without a stream of that name is left out, with a note on the chart; if no run has it, an error is raised.

    Args:
        sources: A list of runs, or runs and the names of their streams.
        x: For charts, the x axis: "step", "epoch", "time" (seconds since the start of each run), "wall" or a field.
        best: For the table, which value of a line is the best, as in ``{"margin": "max"}``; by default its name decides
            between the largest and the smallest.
        how: Other arguments of `plot`.

    >>> import looptap
    >>> one, two = (looptap.stream_of([0.5, rest], name="loss") for rest in (0.25, 0.125))
    >>> looptap.compare(one, two).summary()[1]["final"]
    0.125
    """
    if len(sources) == 1 and isinstance(sources[0], list | tuple):
        if how or x != "step":
            given = ", ".join([*how, *["x"] * (x != "step")])
            raise TypeError(f"a table of runs accepts only best=, not {given}.")
        return table_of(sources[0], best)
    check_options("compare", how, Plot)
    names = [one for one in sources if isinstance(one, str)]
    streams = [one for one in sources if isinstance(one, Stream)]
    runs = [one for one in sources if not isinstance(one, str | Stream)]
    for run in runs:
        if not hasattr(run, "stream"):
            raise TypeError(
                f"looptap.compare takes runs, names of their streams, and streams, not {type(run).__name__}: "
                "looptap.open(path) opens a stored run."
            )
    if bool(names) != bool(runs):
        raise ValueError(
            "looptap.compare takes runs and names of their streams: looptap.compare(old, new, 'loss'); a list of runs "
            "makes a table: looptap.compare([old, new])."
        )
    groups: list[list[Stream]] = [streams] if streams else []
    missing: list[dict[str, str]] = [{}] if streams else []
    for name in names:
        found, without = _of_runs(runs, name)
        groups.append(found)
        missing.append(without)
    made = Plot(*groups, x=x, **how)
    for cell, without in zip(made.cells, missing, strict=True):
        cell.refused.update(without)
    return made


def _of_runs(runs: Sequence[Any], name: str) -> tuple[list[Stream], dict[str, str]]:
    """Return the streams ``name`` of runs, and why runs lack it. Raises if all do."""
    found: list[Stream] = []
    without: dict[str, str] = {}
    for run in runs:
        try:
            found.append(run.stream(name))
        except LooptapError as error:
            without[label_of(run)] = f"{label_of(run)} is left out: {error}"
            failed = error
    if not found:
        raise failed
    return found, without
