"""Streams whose items come with their index, like data sets in `WithIndex`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from looptap.training.instances import IndexedItem


def indexed_stream(stream: Iterable[Any], index: Callable[[Any], Any]) -> Any:
    """Return a stream whose items come with their index: ``(index, item)``.

    A ``stream`` has no item numbers, so ``index`` says which instance an item is: a function of the item that returns a
    whole number from 0, the same in each epoch, such as the number in a key. For a stream of batches it returns the
    indices of all items of the batch. Everything else (``set_epoch``, ``state_dict``, workers, shards, ...) works as in
    ``stream``. Needs torch.

    Raises TypeError for a stream that cannot be iterated, or an ``index`` that cannot be called.

    >>> rows = [{"key": "0007", "x": 0.5}, {"key": "0002", "x": 0.25}]
    >>> [(index, row["x"]) for index, row in indexed_stream(rows, lambda row: int(row["key"]))]
    [(7, 0.5), (2, 0.25)]
    """
    if not hasattr(stream, "__iter__"):
        raise TypeError(f"stream={stream!r:.60} cannot be iterated. Pass an iterable data set, or a loader.")
    if not callable(index):
        raise TypeError(
            f"index={index!r:.60} is not a function. Pass one that returns the index of an item, such as "
            "lambda row: int(row['__key__'])."
        )
    return _stream_class()(stream, index)


@cache
def _stream_class() -> type:
    """Return the class of these streams, which DataLoaders know by its base."""
    from torch.utils.data import IterableDataset

    class StreamWithIndex(IterableDataset):  # type: ignore[misc]  # torch is not read by the type checker
        """A stream of `IndexedItem`."""

        def __init__(self, stream: Iterable[Any], index: Callable[[Any], Any]) -> None:
            self.stream, self.index = stream, index

        def __iter__(self) -> Iterator[IndexedItem]:
            for item in self.stream:
                yield IndexedItem(self.index(item), item)

        def __len__(self) -> int:
            return len(self.stream)  # type: ignore[arg-type]  # a TypeError if it has none

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name in ("stream", "index"):
                raise AttributeError(name)
            return getattr(self.stream, name)

        def __reduce__(self) -> Any:
            return indexed_stream, (self.stream, self.index)

        def __repr__(self) -> str:
            return f"indexed_stream({self.stream!r})"

    return StreamWithIndex
