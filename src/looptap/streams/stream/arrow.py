"""A stream's values as an Arrow table; columns are handed over, not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looptap.streams.columns.value_columns import Column, TextColumn, ValueColumns
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.cells import about_names, column_elements, column_names, one_type, table_columns
from looptap.streams.stream.tables import Columns, columns_of


def as_arrow(parts: Sequence[Batch], fields: Sequence[str] | None) -> Any:
    """Return a pyarrow.Table: number, event, rank, time, wall and the fields.

    Numbers in columns share their memory with the stream. Values other than numbers, text, dates and times are JSON.
    Raises ImportError if pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise ImportError("Arrow tables need pyarrow: pip install 'looptap[parquet]'") from None
    tables = [table for table in (columns_of([part]) for part in parts) if len(table.values)]
    values = [table.values for table in tables if isinstance(table.values, ValueColumns)]
    if values and len(values) == len(tables) and all(map(values[0].like, values)) and _has_names(values[0], fields):
        names = column_names(fields, values[0][0])
        return pyarrow.Table.from_batches(
            [
                pyarrow.record_batch([*_about(table), *map(_array, some.columns)], [*about_names(names), *names])
                for table, some in zip(tables, values, strict=True)
            ]
        )
    return _of_objects(columns_of(parts), fields)


def _has_names(values: ValueColumns, fields: Sequence[str] | None) -> bool:
    return not values.rows or len(fields or ()) == len(values.columns)


def _about(table: Columns) -> list[Any]:
    import pyarrow

    return [pyarrow.array(column) for column in table[:5]]


def _array(column: Column) -> Any:
    import pyarrow

    if not isinstance(column, TextColumn):
        return pyarrow.array(column)
    texts = [text.encode("utf-8", "backslashreplace").decode() for text in column.texts]
    return pyarrow.DictionaryArray.from_arrays(column.indices, pyarrow.array(texts, "string")).dictionary_decode()


def _of_objects(table: Columns, fields: Sequence[str] | None) -> Any:
    """Return values that are no columns of one type each, element by element."""
    import pyarrow

    values = table.values
    names = table_columns(fields, values)
    rows = [column_elements(value, names) for value in values]
    columns = [one_type([row[index] for row in rows]) for index in range(len(names))]
    return pyarrow.table([*_about(table), *map(_of_elements, columns)], [*about_names(names), *names])


def _of_elements(column: list[Any]) -> Any:
    import pyarrow

    unsigned = any(type(element) is int and element >= 1 << 63 for element in column)
    return pyarrow.array(column, pyarrow.uint64() if unsigned else None)
