"""`csv_of`: the numbers of a picture as a table, with a row for each x.

What stands over another x, and each further panel, has a table of its own, after an empty line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from looptap.streams.text import as_cell
from looptap.visualizers.drawing.layouts import Panel, panels
from looptap.visualizers.drawing.picture import (
    Axis,
    Band,
    Bars,
    Grid,
    Images,
    Line,
    Mark,
    Picture,
    Pie,
    Points,
    Table,
    Text,
)

Rows = Iterable[Sequence[Any]]


def csv_of(picture: Picture) -> str:
    """Return the table of a picture; NaN is an empty cell.

    >>> import numpy as np
    >>> csv_of(Picture((Line(np.array([1.0, 2.0]), np.array([0.5, np.nan]), name="loss"),)))
    'x,loss\\r\\n1,0.5\\r\\n2,\\r\\n'
    """
    return "\r\n".join(_text(rows) for panel in panels(picture) for rows in _tables(panel, picture))


def _text(rows: Rows) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerows([_cell(cell) for cell in row] for row in rows)
    return file.getvalue()


def _cell(cell: Any) -> Any:
    if isinstance(cell, str):
        return as_cell(cell)
    if not isinstance(cell, float):
        return cell
    return "" if cell != cell else int(cell) if cell.is_integer() and abs(cell) < 1e15 else cell


def _tables(panel: Panel, picture: Picture) -> Iterator[Rows]:
    match panel.marks[0] if panel.marks else None:
        case Table(titles=titles, rows=rows):
            yield [titles, *rows]
        case Text(lines=lines):
            yield [[line] for line in lines]
        case Pie(shares=shares, labels=labels):
            yield zip(labels, shares.tolist(), strict=False)
        case Images(captions=captions, images=images):
            yield [["image"], *([caption] for caption in captions or map(str, range(len(images))))]
        case Grid(cells=cells, rows=rows, columns=columns):
            names = columns or range(cells.shape[1])
            yield [
                ["", *names],
                *([name, *row] for name, row in zip(rows or range(len(cells)), cells.tolist(), strict=False)),
            ]
        case None:
            return
        case _:
            for edge in ("bottom", "top"):
                if marks := [mark for mark in panel.marks if mark.across == edge]:
                    yield _over(marks, picture, picture.edges.get(edge, Axis()).title or "x")


def _over(marks: Iterable[Mark], picture: Picture, title: str) -> Rows:
    """Return the numbers of the marks over one x axis, which is sorted."""
    ridges: dict[Any, str] = dict(picture.y.ticks)
    names: list[str] = []
    table: dict[Any, dict[int, float]] = {}
    for mark in marks:
        for name, xs, ys in _columns(mark, ridges):
            names.append(name)
            for x, y in zip(xs, ys, strict=False):
                table.setdefault(x, {})[len(names)] = y
    order = sorted(table) if all(isinstance(x, float) for x in table) else list(table)
    return [
        [title, *names],
        *([x, *(table[x].get(place, float("nan")) for place in range(1, len(names) + 1))] for x in order),
    ]


def _columns(mark: Mark, ridges: dict[Any, str]) -> Iterator[tuple[str, list[Any], list[float]]]:
    """Yield name, x and numbers of each column of a mark that has a name."""
    name = ridges.get(getattr(mark, "filled", None), getattr(mark, "name", ""))
    match mark:
        case Bars():
            x = list(mark.labels) if mark.edges is None else mark.edges[:-1].tolist()
            yield name, x, mark.heights.tolist()
        case Band():
            yield f"{name} low", mark.x.tolist(), mark.low.tolist()
            yield f"{name} high", mark.x.tolist(), mark.high.tolist()
        case Line() | Points() if name:
            yield name, mark.x.tolist(), mark.y.tolist()
            if mark.z is not None:
                yield f"{name} z", mark.x.tolist(), mark.z.tolist()
