"""Export streams to CSV, Parquet and TensorBoard, one page of values at a time."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from looptap.protocol.files.regular_files import open_for_writing
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_events import ScalarPoint, write
from looptap.streams.stream.buffer import Record
from looptap.streams.stream.stream import Stream
from looptap.streams.text import as_cell

_ROWS_PER_SLICE = 4096
_ABOUT = ("number", "event", "rank", "time", "wall")
_count = itertools.count()


def to_csv(stream: Stream, path: Path) -> int:
    """Write ``stream`` as CSV; return the count.

    The columns are number, event, rank, time, wall, and the fields (those of the first dict) or ``value``. Values
    other than numbers and text are written as JSON. Text that a spreadsheet would run as a formula is prefixed with an
    apostrophe.
    """
    count, columns = 0, None
    with TextIOWrapper(open_for_writing(path), encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.writer(file)
        for record in _values(stream):
            if columns is None:
                columns = _columns(stream.fields, record.value)
                table.writerow(map(_cell, [*_about(columns), *columns]))
            cells = map(_cell, _elements(record.value, columns))
            table.writerow([record.number, record.event, record.rank, record.time, record.wall, *cells])
            count += 1
        if columns is None:
            table.writerow(map(_cell, [*_ABOUT, *(stream.fields or ("value",))]))
    return count


def to_parquet(stream: Stream, path: Path) -> int:
    """Write a stream as Parquet with the columns of `to_pandas`; return the count.

    Values other than numbers and text are written as JSON. Raises StoreError if pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise StoreError("Parquet files need pyarrow: pip install 'looptap[parquet]'") from None
    records = list(_values(stream))
    columns = _columns(stream.fields, records[0].value) if records else list(stream.fields or ("value",))
    elements = [_elements(record.value, columns) for record in records]
    table: dict[str, Any] = {
        name: [getattr(record, field) for record in records]
        for name, field in zip(_about(columns), _ABOUT, strict=True)
    }
    for index, name in enumerate(columns):
        table[name] = _one_type([row[index] for row in elements])
    with open_for_writing(path) as file:
        pyarrow.parquet.write_table(pyarrow.table(table), file)
    return len(records)


def to_tensorboard(streams: Iterable[Stream], directory: Path) -> int:
    """Write the numbers of ``streams`` as an event file; return the number of points.

    A number is a point of the stream's curve; a number in a row or a dict is a point of the curve stream/field.
    Anything else is left out. The step is the event number. Raises StoreError if there are no numbers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_count)}.looptap"
    points = (point for stream in streams for point in _points(stream))
    first = next(points, None)
    if first is None:
        raise StoreError("There are no numbers to export, and TensorBoard's curves are of numbers.")
    with (directory / name).open("xb") as file:
        return write(file, first.wall, itertools.chain([first], points))


def _points(stream: Stream) -> Iterator[ScalarPoint]:
    for record in _values(stream):
        names = _columns(stream.fields, record.value)
        for name, element in zip(names, _elements(record.value, names), strict=True):
            number = _number(element)
            if number is not None:
                tag = stream.name if names == ["value"] else f"{stream.name}/{name}"
                yield ScalarPoint(tag, record.event, record.wall, number)


def _values(stream: Stream) -> Iterator[Record]:
    """Yield the records of a stream except errors, without holding all of them."""
    for page in stream.pages(_ROWS_PER_SLICE):
        yield from (record for record in page.records() if record.error is None)


def _columns(fields: Sequence[str] | None, value: Any) -> list[str]:
    if fields and isinstance(value, tuple) and len(value) == len(fields):
        return [name if name not in fields[:index] else f"{name}_{index}" for index, name in enumerate(fields)]
    if isinstance(value, Mapping) and value:
        return list(dict.fromkeys(map(str, value)))
    return ["value"]


def _elements(value: Any, columns: list[str]) -> list[Any]:
    """Return the element of ``value`` for each column; None where it has none."""
    if columns == ["value"]:
        return [value]
    if isinstance(value, Mapping):
        by_name = {str(name): item for name, item in value.items()}
        return [by_name.get(name) for name in columns]
    if isinstance(value, tuple) and len(value) == len(columns):
        return list(value)
    return [value, *[None] * (len(columns) - 1)]


def _about(columns: list[str]) -> list[str]:
    """Return the names of the other columns, with an underscore on a conflict."""
    return [f"{name}_" if name in columns else name for name in _ABOUT]


def _number(element: Any) -> float | None:
    if isinstance(element, bool | int | float):
        try:
            return float(element)
        except OverflowError:
            return None
    if hasattr(element, "item") and getattr(element, "ndim", 1) == 0:  # an array or tensor of one number
        return _number(element.item())
    return None


def _cell(element: Any) -> Any:
    """Return a cell of a text table."""
    text = _column(element)
    return as_cell(text) if isinstance(text, str) else text


def _column(element: Any) -> Any:
    """Return a number or a text as it is, anything else as JSON."""
    if element is None or isinstance(element, int | float | str):
        return element
    return json.dumps(_plain(element), ensure_ascii=False)


def _plain(element: Any) -> Any:
    if isinstance(element, Mapping):
        return {str(name): _plain(item) for name, item in element.items()}
    if isinstance(element, list | tuple | set | frozenset):
        return [_plain(item) for item in element]
    if hasattr(element, "tolist"):
        try:
            return _plain(element.tolist())
        except (TypeError, RuntimeError):  # a dtype without numbers in Python, such as 8-bit floats
            return _plain(element.float().tolist())
    return element if element is None or isinstance(element, bool | int | float | str) else repr(element)


def _one_type(column: list[Any]) -> list[Any]:
    """Convert a column for Parquet: one type, floats for mixed numbers, else JSON."""
    kinds = {type(element) for element in column if element is not None}
    if len(kinds) <= 1 and kinds <= {bool, float}:
        return column
    if kinds == {int} and all(element is None or -(1 << 63) <= element < 1 << 63 for element in column):
        return column
    if kinds == {int, float}:
        with contextlib.suppress(OverflowError):
            return [None if element is None else float(element) for element in column]
    return [None if element is None else _text(str(_column(element))) for element in column]


def _text(text: str) -> str:
    """Return ``text`` with characters that UTF-8 lacks escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
