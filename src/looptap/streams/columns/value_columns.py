"""Values held column by column, in place of a list of scalars or rows.

Training yields numbers: a hundred thousand rows are a few typed arrays, which are sliced, sent, stored and drawn
without an object for each number. `ValueColumns` equals the list that it stands for, types included: a column has one
Python type, so what holds None, or integers and floats together, stays a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

MAX_COLUMNS = 256
"""The most elements of a row that is held in columns."""
MAX_TEXT_CHARACTERS, MAX_TEXTS = 64, 65_536
"""The longest text of a column, and the most different ones."""

_ROW_BYTES, _ELEMENT_BYTES = 64, 40  # of a row in a list, and of each of its elements
_ROWS_AT_A_TIME = 1024  # that an iteration makes
_NUMBERS: dict[type, Any] = {float: np.float64, int: np.int64, bool: np.bool_}
_NAMES = {"f": "float", "i": "int", "b": "bool"}


class TextColumn:
    """Texts that repeat: ``indices`` (uint8 or uint16) into the different ``texts``."""

    __slots__ = ("indices", "texts")

    def __init__(self, indices: NDArray[Any], texts: tuple[str, ...]) -> None:
        self.indices, self.texts = indices, texts

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, places: slice | NDArray[Any]) -> TextColumn:
        return TextColumn(self.indices[places], self.texts)

    @property
    def nbytes(self) -> int:
        """The bytes of the indices."""
        return int(self.indices.nbytes)

    def item(self, place: int) -> str:
        """Return one text."""
        return self.texts[int(self.indices[place])]

    def tolist(self) -> list[str]:
        """Return all texts."""
        return list(map(self.texts.__getitem__, self.indices.tolist()))

    def to_numpy(self) -> NDArray[np.str_]:
        """Return the texts as an array of numpy's own text type."""
        found: NDArray[np.str_] = np.array(self.texts or ("",), np.str_)[self.indices]
        return found


Column: TypeAlias = "NDArray[Any] | TextColumn"
"""int64, float64 or bool in an array, or texts."""


class ValueColumns(Sequence[Any]):
    """The list of scalars (one column) or of tuples (``rows``) that the columns hold.

    It is read-only, compares as the list does, and a slice shares its memory. Rows are made while it is iterated; as
    `Row` with ``row_type``, which `named` sets.

    >>> values = as_columns([(1, 0.5), (2, 0.25)])
    >>> values == [(1, 0.5), (2, 0.25)], values[-1], values[:1].tolist(), values.types
    (True, (2, 0.25), [(1, 0.5)], ('int', 'float'))
    """

    __slots__ = ("_kinds", "_length", "columns", "row_type", "rows")

    def __init__(self, columns: Sequence[Column], rows: bool, row_type: type[tuple[Any, ...]] | None = None) -> None:
        self.columns, self.rows, self.row_type = tuple(columns), rows, row_type
        self._length, self._kinds = len(self.columns[0]), ""
        if any(len(column) != self._length for column in self.columns):
            raise ValueError(f"columns of different lengths: {', '.join(str(len(column)) for column in self.columns)}")

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> ValueColumns: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return ValueColumns([column[place] for column in self.columns], self.rows, self.row_type)
        if not -self._length <= place < self._length:
            raise IndexError(f"value {place} of {self._length}")
        items = [column.item(place) for column in self.columns]
        return self._make(items) if self.rows else items[0]

    def __iter__(self) -> Iterator[Any]:
        starts = range(0, self._length, _ROWS_AT_A_TIME)
        return chain.from_iterable(self[start : start + _ROWS_AT_A_TIME].tolist() for start in starts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ValueColumns | list):
            return len(self) == len(other) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return what numpy makes of the list, without making it where all are numbers."""
        numbers = [column for column in self.columns if not isinstance(column, TextColumn)]
        if len(numbers) < len(self.columns):
            return np.array(self.tolist(), dtype)
        found = np.stack(numbers, axis=1) if self.rows else numbers[0].copy()
        return found if dtype is None else found.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.tolist(),)  # what is pickled is the list: its type of rows exists in this process only

    @property
    def types(self) -> tuple[str, ...]:
        """The Python type of each column by name: int, float, bool or str."""
        return tuple("str" if isinstance(c, TextColumn) else _NAMES[c.dtype.kind] for c in self.columns)

    @property
    def kinds(self) -> str:
        """A letter for the type of each column."""
        if not self._kinds:  # of many small parts it is asked often
            self._kinds = "".join(["U" if isinstance(c, TextColumn) else c.dtype.kind for c in self.columns])
        return self._kinds

    @property
    def nbytes(self) -> int:
        """The bytes of the columns."""
        return sum(column.nbytes for column in self.columns)

    @property
    def list_bytes(self) -> int:
        """The approximate bytes that the values take once they are a list."""
        return self._length * (_ROW_BYTES * self.rows + _ELEMENT_BYTES * len(self.columns))

    def tolist(self) -> list[Any]:
        """Return the values as a list."""
        if not self.rows:
            return self.columns[0].tolist()
        made = zip(*[column.tolist() for column in self.columns], strict=True)
        return list(made) if self.row_type is None else list(map(partial(tuple.__new__, self.row_type), made))

    def named(self, row_type: type[tuple[Any, ...]]) -> ValueColumns:
        """Return the same rows as rows of a type with names."""
        return ValueColumns(self.columns, self.rows, row_type)

    def where(self, keep: NDArray[np.bool_]) -> ValueColumns:
        """Return the values at which ``keep`` is true, copied."""
        return ValueColumns([column[keep] for column in self.columns], self.rows, self.row_type)

    def like(self, other: ValueColumns) -> bool:
        """Return True if both hold values of the same shape and types."""
        return self.rows == other.rows and self.kinds == other.kinds

    def _make(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(items) if self.row_type is None else tuple.__new__(self.row_type, items)


def as_columns(values: Sequence[Any]) -> ValueColumns | None:
    """Return a list in columns, None if they would not equal it or not be smaller.

    >>> as_columns([1, 2.5]), as_columns([(1, "a"), (2, None)]), as_columns([]), as_columns([True]).types
    (None, None, None, ('bool',))
    """
    if isinstance(values, ValueColumns):
        return values
    if not values:
        return None
    rows = type(values[0]) is tuple
    columns: list[Column] = []
    try:
        for items in _fields(values) if rows else [values]:
            if (column := _column(items)) is None:
                return None
            columns.append(column)
    except (OverflowError, ValueError):  # an integer beyond 64 bits; rows of different lengths
        return None
    return ValueColumns(columns, rows) if columns else None


def _fields(rows: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """Return the elements of rows, field by field; none if some are no rows, or long."""
    if len(rows[0]) > MAX_COLUMNS or not {tuple}.issuperset(map(type, rows)):
        return ()
    return zip(*rows, strict=True)


def _column(items: Sequence[Any]) -> Column | None:
    """Return items of one type as a column, or None. Raises OverflowError."""
    kind = type(items[0])
    if not {kind}.issuperset(map(type, items)):
        return None
    if (dtype := _NUMBERS.get(kind)) is not None:
        return np.fromiter(items, dtype, len(items))
    return _text_column(items) if kind is str else None


def _text_column(items: Sequence[str]) -> TextColumn | None:
    places: dict[str, int] = dict.fromkeys(items, 0)
    if len(places) > min(MAX_TEXTS, 1 + len(items) // 2) or max(map(len, places)) > MAX_TEXT_CHARACTERS:
        return None
    for place, text in enumerate(places):
        places[text] = place
    dtype: Any = np.uint8 if len(places) <= 256 else np.uint16
    return TextColumn(np.fromiter(map(places.__getitem__, items), dtype, len(items)), tuple(places))


def joined_columns(parts: Sequence[Sequence[Any]]) -> ValueColumns | None:
    """Return the values of all parts in columns, None unless all have the same types.

    >>> joined_columns([as_columns([1, 2]), as_columns([3])]), joined_columns([as_columns([1]), [None]])
    ([1, 2, 3], None)
    """
    found = [part for part in parts if isinstance(part, ValueColumns)]
    if not found or len(found) < len(parts) or not all(map(found[0].like, found)):
        return None
    if len(found) == 1:
        return found[0]
    columns: list[Column] = []
    for same in zip(*[part.columns for part in found], strict=True):
        texts = [column for column in same if isinstance(column, TextColumn)]
        column = _joined_texts(texts) if texts else np.concatenate(same)
        if column is None:
            return None
        columns.append(column)
    return ValueColumns(columns, found[0].rows, found[0].row_type)


def _joined_texts(parts: Sequence[TextColumn]) -> TextColumn | None:
    if all(part.texts is parts[0].texts for part in parts):
        return TextColumn(np.concatenate([part.indices for part in parts]), parts[0].texts)
    places = {text: place for place, text in enumerate(dict.fromkeys(chain.from_iterable(p.texts for p in parts)))}
    if len(places) > MAX_TEXTS:
        return None
    dtype = np.uint8 if len(places) <= 256 else np.uint16
    return TextColumn(
        np.concatenate([np.array([places[text] for text in p.texts], dtype)[p.indices] for p in parts]), tuple(places)
    )
