"""Export streams to CSV, Parquet and TensorBoard, one page of values at a time."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import socket
import time
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from looptap.protocol.files.regular_files import open_for_writing
from looptap.protocol.values.number_checks import unboxed
from looptap.store.errors import StoreError
from looptap.store.exchange.tensorboard_events import ScalarPoint, write_points
from looptap.streams.stream.buffer import Record
from looptap.streams.stream.cells import about_names, as_cell_value, column_elements, column_names, table_columns
from looptap.streams.stream.stream import Stream
from looptap.streams.text import as_cell

_ROWS_PER_SLICE = 4096
_count = itertools.count()


def to_csv(stream: Stream, place: Path | IO[bytes]) -> int:
    """Write ``stream`` as CSV to a path, or a file to close; return the count.

    The columns are number, event, rank, time, wall, and the fields (of dicts, the keys of all) or ``value``. Values
    other than numbers, text, dates and times are JSON. Text that a spreadsheet would run as a formula is prefixed with
    an apostrophe.
    """
    count, columns = 0, table_columns(stream.fields, (record.value for record in _values(stream)))
    opened = open_for_writing(place) if isinstance(place, Path) else place
    with TextIOWrapper(opened, encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.writer(file)
        table.writerow(map(_cell, [*about_names(columns), *columns]))
        for record in _values(stream):
            cells = map(_cell, column_elements(record.value, columns))
            table.writerow([record.number, record.event, record.rank, record.time, record.wall, *cells])
            count += 1
    return count


def to_parquet(stream: Stream, path: Path) -> int:
    """Write a stream as Parquet with the columns of `to_arrow`; return the count.

    Values other than numbers, text, dates and times are JSON. Raises StoreError if pyarrow is not installed.
    """
    try:
        table = stream.to_arrow()
        import pyarrow.parquet
    except ImportError:
        raise StoreError("Parquet files need pyarrow: pip install 'looptap[parquet]'") from None
    with open_for_writing(path) as file:
        pyarrow.parquet.write_table(table, file)
    return int(table.num_rows)


def to_tensorboard(streams: Iterable[Stream], directory: Path) -> int:
    """Write the numbers of ``streams`` as an event file; return the number of points.

    A number is a point of the stream's curve; a number in a row or a dict is a point of the curve stream/field.
    Anything else is left out. The step is the event number. Raises StoreError if there are no numbers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"
    points = (point for stream in streams for point in _points(stream))
    first = next(points, None)
    if first is None:
        raise StoreError("There are no numbers to export, and TensorBoard's curves need numbers.")
    with (directory / name).open("xb") as file:
        return write_points(file, first.wall, itertools.chain([first], points))


def _points(stream: Stream) -> Iterator[ScalarPoint]:
    for record in _values(stream):
        names = column_names(stream.fields, record.value)
        for name, element in zip(names, column_elements(record.value, names), strict=True):
            number = _number(element)
            if number is not None:
                tag = stream.name if names == ["value"] else f"{stream.name}/{name}"
                yield ScalarPoint(tag, record.event, record.wall, number)


def _values(stream: Stream) -> Iterator[Record]:
    """Yield the records of a stream except errors, without holding all of them."""
    for page in stream.pages(_ROWS_PER_SLICE):
        yield from (record for record in page.records() if record.error is None)


def _number(element: Any) -> float | None:
    number = unboxed(element)
    with contextlib.suppress(OverflowError):
        return float(number) if isinstance(number, bool | int | float) else None
    return None


def _cell(element: Any) -> Any:
    """Return a cell of a text table."""
    text = as_cell_value(element)
    return as_cell(text) if isinstance(text, str) else text
