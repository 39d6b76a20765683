"""`Summary`: final and best values of streams, for rich, pandas and notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from looptap.client.line_figures import largest_is_best
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.legends import label_of, run_of
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.data.numbers import MISSING, Floats, in_floats, missing, number
from looptap.visualizers.data.words import shown_text

if TYPE_CHECKING:
    import pandas


class Summary(list[dict[str, Any]]):
    """A row per line: run, stream, values, final, best, at, best_is.

    ``at`` is the step of the best, ``best_is`` min or max. ``pandas.DataFrame(summary)`` makes a table of it, and so
    does rich.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame. Raises ImportError if pandas is not installed."""
        import pandas

        return pandas.DataFrame(list(self))

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(*self._titles())
        for row in self._texts():
            table.add_row(*map(Text, row))
        return table

    def _repr_html_(self) -> str:
        def line(tag: str, cells: Sequence[str]) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        return f"<table>{line('th', self._titles())}{''.join(line('td', row) for row in self._texts())}</table>"

    def __repr__(self) -> str:
        lines = [self._titles(), *self._texts()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = (zip(line, widths, strict=True) for line in lines)
        return "\n".join("  ".join(text.ljust(width) for text, width in line).rstrip() for line in padded)

    def _titles(self) -> list[str]:
        return list(self[0]) if self else ["nothing to summarize"]

    def _texts(self) -> Iterator[list[str]]:
        for row in self:
            yield ["" if cell is None else shown_text(cell) for cell in row.values()]


def summary_rows(streams: Sequence[Stream], names: Mapping[int, str] | None = None) -> Summary:
    """Return a row for each stream of numbers; ``names`` has the legends by ``id()``.

    >>> from looptap.streams.stream.stream import stream_of
    >>> summary_rows([stream_of([(1, 0.5), (2, 0.25), (3, 0.3)], fields=("step", "loss"), name="train")])
    run  stream  values  final  best  at  best_is
         train   3       0.3    0.25  2   min
    """
    found = Summary()
    for stream in streams:
        run = run_of(stream)
        label = (names or {}).get(id(stream), "").removesuffix(stream.name).strip() or (label_of(run) if run else "")
        for name, at, values in _lines(stream):
            there = ~missing(values)  # a row of an outer join may lack some
            at, values = at[there], values[there]
            finite = np.flatnonzero(np.isfinite(values))
            if not len(finite):
                continue
            largest = largest_is_best(name)
            best = finite[np.argmax(values[finite]) if largest else np.argmin(values[finite])]
            found.append(
                {
                    "run": label,
                    "stream": name,
                    "values": len(values),
                    "final": float(values[-1]),
                    "best": float(values[best]),
                    "at": _whole(float(at[best])),
                    "best_is": "max" if largest else "min",
                }
            )
    return found


def _whole(at: float) -> float | int:
    return int(at) if at.is_integer() else at


def _lines(stream: Stream) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield each line of a stream of numbers: its name, x and numbers."""
    columns = stream.columns()
    events = columns.events.astype(np.float64)
    first = stream.first()
    if isinstance(first, tuple | list | Mapping):
        names = schemas.names_of(first, stream.fields or (), stream.text)
        width = len(first)
        keys: list[Any] = list(first) if isinstance(first, Mapping) else list(range(width))
        parts = dict(enumerate(_parts(columns.values, keys)))
        bare = width == 2 and not isinstance(first, Mapping) and not schemas.tells(names, stream.text)
        x = 0 if bare else schemas.x_of(names)
        drawn = [place for place in parts if place != x]
        for place in drawn:
            own = names[place] if names else f"v{place}"
            name = f"{stream.name} {own}".strip() if len(drawn) > 1 else stream.name or own
            yield name, events if x is None else parts[x], parts[place]
    else:
        yield stream.name, events, _parts(columns.values, [None])[0]


def _parts(values: Sequence[Any], keys: Sequence[Any]) -> Sequence[Floats]:
    """Return the part of each value for each key, NaN where it is no number."""
    if isinstance(values, ValueColumns) and len(values.columns) == len(keys):
        return list(in_floats(values))
    return [np.array([_part(value, key) for value in values]) for key in keys]


def _part(value: Any, key: Any) -> float:
    try:
        return number(value if key is None or value is None else value[key])
    except LookupError:
        return MISSING
    except (TypeError, ValueError):
        return np.nan
