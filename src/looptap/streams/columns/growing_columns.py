"""`GrowingColumns`: columns that grow at their end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from looptap.streams.columns.value_columns import MAX_TEXTS, Column, TextColumn, ValueColumns

_MIN_ARRAY_ITEMS, _MAX_SINGLE_TEXTS = 64, 256  # items of the smallest array; texts that need not repeat


class _Numbers:
    """One array with room at its end; a part that was returned never changes."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: NDArray[Any]) -> None:
        self._items, self._length = items, len(items)

    def add(self, items: NDArray[Any]) -> None:
        """Append items."""
        end = self._length + len(items)
        if end > len(self._items):
            grown = np.empty(max(end, 2 * len(self._items), _MIN_ARRAY_ITEMS), self._items.dtype)
            grown[: self._length] = self._items[: self._length]
            self._items = grown
        self._items[self._length : end] = items
        self._length = end

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return a read-only part that shares its memory."""
        part = self._items[start : min(stop, self._length)]
        part.flags.writeable = False
        return part


class _Texts:
    """Indices into the different texts, which grow as well."""

    __slots__ = ("_indices", "_places", "_texts")

    def __init__(self, column: TextColumn) -> None:
        self._texts = column.texts
        self._places = {text: place for place, text in enumerate(column.texts)}
        self._indices = _Numbers(column.indices.astype(np.uint16))

    def fits(self, column: TextColumn, count: int) -> bool:
        """Return True if the texts of ``count`` values would still repeat."""
        if column.texts is self._texts:
            return True
        texts = len(self._places.keys() | set(column.texts))
        return texts <= min(MAX_TEXTS, max(_MAX_SINGLE_TEXTS, count // 2))

    def add(self, column: TextColumn) -> None:
        """Append texts."""
        if column.texts is not self._texts:
            known = len(self._places)
            places = [self._places.setdefault(text, len(self._places)) for text in column.texts]
            if len(self._places) > known:
                self._texts = tuple(self._places)
            self._indices.add(np.array(places, np.uint16)[column.indices])
        else:
            self._indices.add(column.indices)

    def view(self, start: int, stop: int) -> TextColumn:
        """Return a part."""
        return TextColumn(self._indices.view(start, stop), self._texts)


class GrowingColumns:
    """Values in columns to which others of the same types are added."""

    __slots__ = ("_columns", "_length", "_like")

    def __init__(self, values: ValueColumns) -> None:
        self._columns = [_Texts(c) if isinstance(c, TextColumn) else _Numbers(c) for c in values.columns]
        self._like, self._length = values[:0], len(values)

    def __len__(self) -> int:
        return self._length

    def extend(self, values: ValueColumns) -> bool:
        """Append values; return False if their types differ or their texts are too many."""
        if not self._like.like(values):
            return False
        count = self._length + len(values)
        pairs = list(zip(self._columns, values.columns, strict=True))
        for mine, new in pairs:
            if isinstance(mine, _Texts) and isinstance(new, TextColumn) and not mine.fits(new, count):
                return False
        for mine, new in pairs:
            mine.add(new)  # type: ignore[arg-type]  # of the same types
        self._length = count
        return True

    def view(self, start: int, stop: int) -> ValueColumns:
        """Return a part that shares its memory; it stays as it is while this grows."""
        columns: list[Column] = [column.view(start, stop) for column in self._columns]
        return ValueColumns(columns, self._like.rows)
