"""A stream's values as a table: columns, numpy arrays or a pandas frame."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looptap.streams.columns.value_columns import Column, TextColumn, ValueColumns, joined_columns
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.cells import about_names, rounded
from looptap.streams.text import did_you_mean
from looptap.streams.values.rows import Row
from looptap.streams.values.torch_interop import is_tensor

if TYPE_CHECKING:
    import pandas

_MAX_NANOSECOND_SECONDS = 9e9  # seconds since 1970 that are an int64 of nanoseconds


class Columns(NamedTuple):
    """The values of a stream with their metadata in equal columns, without errors.

    ``numbers``, ``events`` and ``ranks`` are int64; ``times`` (the host's monotonic clock) and ``walls`` (seconds
    since the epoch) are float64. ``values`` are a list, or as `ValueColumns` equal one without its rows having been
    made.
    """

    numbers: NDArray[np.int64]
    events: NDArray[np.int64]
    ranks: NDArray[np.int64]
    times: NDArray[np.float64]
    walls: NDArray[np.float64]
    values: Sequence[Any]


def columns_of(batches: Sequence[Batch]) -> Columns:
    """Return one table of all values in ``batches``."""
    numbers, events, ranks, times, clocks, values = [], [], [], [], [], []
    for batch in batches:
        count = len(batch.values)
        keep = slice(None) if not batch.flags else np.frombuffer(batch.flags, np.uint8) & ERROR == 0
        numbers.append(np.arange(batch.first, batch.first + count)[keep])
        events.append(np.frombuffer(batch.events, np.int64)[keep])
        times.append(np.frombuffer(batch.times, np.float64)[keep])
        good = batch.good()
        ranks.append(batch.rank if batch.ranks is None else np.frombuffer(batch.ranks, np.int64)[keep])
        clocks.append(batch.clock)
        values.append(good)
    counts = list(map(len, values))
    time = _joined(times, np.float64)
    return Columns(
        numbers=_joined(numbers, np.int64),
        events=_joined(events, np.int64),
        ranks=_repeated(ranks, counts, np.int64),
        times=time,
        walls=time + _repeated(clocks, counts, np.float64),
        values=_joined_values(values),
    )


def _repeated(items: list[Any], counts: list[int], dtype: Any) -> Any:
    """Return a number for each value of each part, which has one for all or one each."""
    if all(isinstance(item, int | float) for item in items) and len(set(items)) == 1:
        return np.full(sum(counts), items[0], dtype)
    return _joined([np.broadcast_to(item, count) for item, count in zip(items, counts, strict=True)], dtype)


def _joined_values(parts: list[Sequence[Any]]) -> Sequence[Any]:
    columns = joined_columns(parts)
    return list(chain.from_iterable(parts)) if columns is None else columns


def _joined(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)


def values_as_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return the values as an array: numbers, stacked rows and arrays, or objects.

    >>> values_as_array([(0, 0.5), (1, 0.25)]).shape
    (2, 2)
    """
    if isinstance(values, ValueColumns) and "str" not in values.types:
        return np.array(values)
    if "torch" in sys.modules and any(map(is_tensor, values)):
        values = [_of_tensor(value) if is_tensor(value) else value for value in values]
    plain = [tuple(v) if isinstance(v, Row) else v for v in values]  # numpy is five times slower with subclasses
    try:
        try:
            array = np.array(plain)
        except (TypeError, RuntimeError):  # tensors in rows or lists of which numpy makes none
            array = np.array(_with_arrays(plain))
    except (ValueError, TypeError, RuntimeError):  # arrays or rows of different shapes, or sparse tensors
        array = np.empty(0, object)
    if array.dtype.kind == "f" and plain and all(type(value) is int for value in plain):  # some beyond int64
        array = np.array(plain, object)
        with contextlib.suppress(OverflowError):
            array = array.astype(np.uint64)
    elif array.dtype.kind == "f" and any(map(rounded, plain)):
        array = np.array(plain, object)
    if len(array) == len(values) and array.dtype.kind != "O" and not _turned_into_text(array, values):
        return array
    array = np.empty(len(values), object)
    for index, value in enumerate(values):  # not array[:] = values, which would look into arrays
        array[index] = value
    return array


def _with_arrays(value: Any) -> Any:
    """Return a value with an array in place of each tensor."""
    if isinstance(value, list | tuple):
        return [_with_arrays(item) for item in value]
    return _of_tensor(value) if is_tensor(value) else value


def _of_tensor(value: Any) -> Any:
    """Return a tensor's array; a tensor without one (sparse, meta) as it is."""
    try:
        return value.numpy(force=True)
    except Exception:  # bfloat16, the 8-bit floats and complex32, which numpy lacks
        try:
            return (value.cfloat() if value.is_complex() else value.float()).numpy(force=True)
        except Exception:
            return value


def _turned_into_text(array: NDArray[Any], values: Sequence[Any]) -> bool:
    """Return True if numpy made texts of other values, or cut off a final NUL."""
    return array.dtype.kind in "US" and not all(
        isinstance(value, str | bytes) and value[-1:] not in ("\0", b"\0") for value in values
    )


def arrays_of(batches: Sequence[Batch], fields: Sequence[str] | None, names: Sequence[str]) -> tuple[NDArray[Any], ...]:
    """Return columns of batches as arrays. Raises ValueError for unknown names."""
    values = _joined_values([batch.good() for batch in batches])
    known = _column_names(values, fields) if isinstance(values, ValueColumns) else []
    if isinstance(values, ValueColumns) and set(names) <= set(known) and len(set(known)) == len(known):
        found = [values.columns[known.index(name)] for name in names]
        arrays = [column for column in found if not isinstance(column, TextColumn)]
        if len(arrays) == len(found):  # no other column is made
            own = len(batches) > 1 and len(set(names)) == len(names)  # joined to new arrays
            return tuple(arrays if own else map(np.copy, arrays))
    columns = columns_of(batches)
    table = {"number": columns.numbers, **_table(columns, fields)}
    if not columns.values and not fields:  # the fields are not known yet
        table = dict.fromkeys(names, np.empty(0)) | table
    for name in names:
        if name not in table:
            hint = did_you_mean(name, table)
            raise ValueError(f"There is no column {name!r}; the columns are: {', '.join(table)}.{hint}")
    return tuple(values_as_array(column) if isinstance(column := table[name], list) else column for name in names)


def as_frame(columns: Columns, fields: Sequence[str] | None) -> pandas.DataFrame:
    """Return a pandas DataFrame indexed by number: event, rank, time, wall, fields."""
    import pandas

    walls = columns.walls
    if len(walls) and np.abs(walls).max() < _MAX_NANOSECOND_SECONDS:  # as pandas computes it, in a third of the time
        whole = walls.astype(np.int64)
        nanoseconds = whole * 10**9 + (np.round(walls - whole, 9) * 1e9).astype(np.int64)
        dates: Any = pandas.DatetimeIndex(nanoseconds.view("M8[ns]")).tz_localize("UTC")
    else:
        dates = pandas.to_datetime(walls, unit="s", utc=True)
    table, index = _table(columns._replace(walls=dates), fields), pandas.Index(columns.numbers, name="number")
    try:
        return pandas.DataFrame(table, index=index)
    except UnicodeEncodeError:  # half of a surrogate pair, which texts of pandas cannot hold, but objects can
        texts = [name for name, column in table.items() if any(isinstance(item, str) for item in column)]
        return pandas.DataFrame(table | {name: pandas.Index(table[name], dtype=object) for name in texts}, index=index)


def _table(columns: Columns, fields: Sequence[str] | None) -> dict[str, Any]:
    """Return all columns by name except the numbers."""
    parts = _value_columns(columns.values, fields)
    return dict(zip(about_names([*parts])[1:], columns[1:5], strict=True)) | parts


def _value_columns(values: Sequence[Any], fields: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(values, ValueColumns) and (names := _column_names(values, fields)):
        return dict(zip(names, map(_copied, values.columns), strict=True))
    if fields and all(isinstance(value, tuple) and len(value) == len(fields) for value in values):
        rows = zip(*values, strict=True) if values else ((),) * len(fields)
        return {name: _column(list(column)) for name, column in zip(fields, rows, strict=True)}
    if values and all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(str(name) for value in values for name in value)
        by_name = [{str(name): item for name, item in value.items()} for value in values]
        return {name: _column([value.get(name) for value in by_name]) for name in keys}
    return {"value": _column(values)}


def _column_names(values: ValueColumns, fields: Sequence[str] | None) -> list[str]:
    """Return the names of columns; none if the fields are those of other values."""
    if not values.rows:
        return ["value"]
    return list(fields) if fields and len(fields) == len(values.columns) else []


def _copied(column: Column) -> Any:
    """Return a column that is the reader's own, texts as a list: see `_column`."""
    return column.tolist() if isinstance(column, TextColumn) else column.copy()


def _is_rounded(items: Sequence[Any]) -> bool:
    """Return True if pandas would make floats of these, and no float equals one."""
    return any(map(rounded, items)) and not all(isinstance(item, int) for item in items)


def _column(items: Sequence[Any]) -> Any:
    """Return the items unchanged: pandas infers a dtype for scalars, else object."""
    if all(isinstance(item, bool | int | float | complex | str | None) for item in items) and not _is_rounded(items):
        return items
    column = np.empty(len(items), object)
    for index, item in enumerate(items):
        column[index] = item
    return column
