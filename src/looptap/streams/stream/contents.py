"""`StreamContents`: the contents of a stream as values, records, arrays, frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import NDArray

from looptap.streams.stream.arrow import as_arrow
from looptap.streams.stream.buffer import Batch, Gap, Record, RunSeam
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.tables import Columns, arrays_of, as_frame, columns_of, values_as_array

if TYPE_CHECKING:
    import pandas


class StreamContents:
    """The part of a `Stream` that reads its current contents; never blocks."""

    feed: Feed

    @property
    def state(self) -> str:
        """``live``, ``ended`` or ``failed``."""
        return self.feed.state

    @property
    def reason(self) -> str:
        """The reason why the stream ended; empty while it is live."""
        return self.feed.reason

    @property
    def traceback(self) -> str:
        """The text of the query's first error; empty if there is none."""
        return self.feed.traceback

    @property
    def values(self) -> list[Any]:
        """The values that have arrived and are still kept, oldest first."""
        self.feed.attention.look()
        with self.feed.changed:
            return self.feed.buffer.values()

    @property
    def records(self) -> list[Record]:
        """The kept items as records with numbers, events, ranks, times; errors included."""
        return self.records_after(0)

    def records_after(self, number: int) -> list[Record]:
        """Return the kept records above ``number``, to poll for new ones.

        Args:
            number: That of the last record that is known; 0 for all.

        >>> from looptap import stream_of
        >>> [record.value for record in stream_of([0.5, 0.25]).records_after(1)]
        [0.25]
        """
        self.feed.attention.look()
        with self.feed.changed:
            parts = self.feed.buffer.parts_after(number)
        return [record for part in parts for record in part.records()]

    def pages(self, items: int) -> Iterator[Batch]:
        """Yield the kept items in batches of up to ``items``, errors included.

        Args:
            items: The maximum number of items in a batch.

        >>> from looptap import stream_of
        >>> [page.values for page in stream_of([1, 2, 3]).pages(2)]
        [[1, 2], [3]]
        """
        batch, position = self.feed.part(0, items)
        while batch is not None:
            yield batch
            batch, position = self.feed.part(position, items)

    @property
    def errors(self) -> list[Record]:
        """The records that are errors: windows whose reduction failed."""
        with self.feed.changed:
            return self.feed.buffer.errors()

    @property
    def latest(self) -> Any:
        """The newest value, None before the first."""
        self.feed.attention.look()
        return self.feed.latest

    @property
    def newest(self) -> int:
        """The number of the newest item, errors included; 0 before the first."""
        return self.feed.newest

    def first(self) -> Any:
        """Return the oldest kept value that is not None, or None.

        >>> from looptap import stream_of
        >>> stream_of([None, 0.5, 0.25]).first()
        0.5
        """
        position, limit = 0, 1  # nearly always the first is enough, and it may be large
        while True:
            values, position, _ = self.feed.take(position, limit)
            limit = 256
            for value in values:
                if value is not None:
                    return value
            if not values:
                return None

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The names of the elements of a value, if the values are rows."""
        return self.feed.fields

    @property
    def arrived(self) -> int:
        """Number of values that have arrived, forgotten ones included."""
        self.feed.attention.look()
        return self.feed.arrived

    @property
    def forgotten(self) -> int:
        """Number of items that the buffer dropped to make room for newer ones."""
        return self.feed.buffer.start

    @property
    def dropped(self) -> int:
        """Number of items that never arrived."""
        return self.feed.missing

    @property
    def gaps(self) -> list[Gap]:
        """The newest 1,000 gaps and their sizes; `dropped` counts all."""
        with self.feed.changed:
            return list(self.feed.gaps)

    @property
    def seams(self) -> list[RunSeam]:
        """The changes of run, for a stream that follows a name."""
        with self.feed.changed:
            return list(self.feed.seams)

    @property
    def error_count(self) -> int:
        """Number of failures of the query."""
        return self.feed.errors

    def __len__(self) -> int:
        with self.feed.changed:
            return self.feed.buffer.end - self.feed.buffer.start - self.feed.buffer.error_count()

    def __bool__(self) -> bool:
        return True  # a stream without values is still a stream

    def columns(self, after: int = 0, *, plain: bool = False) -> Columns:
        """Return the kept values above ``after`` with arrays of numbers, events, times.

        Args:
            after: The number of the last value that is not wanted.
            plain: True returns rows as bare tuples, which is faster if the names of their elements are not needed.
        """
        self.feed.attention.look()
        with self.feed.changed:
            parts = self.feed.buffer.parts_after(after, plain=plain)
        return columns_of(parts)

    @overload
    def to_numpy(self) -> NDArray[Any]: ...
    @overload
    def to_numpy(self, name: str, /) -> NDArray[Any]: ...
    @overload
    def to_numpy(self, first: str, second: str, /, *more: str) -> tuple[NDArray[Any], ...]: ...
    def to_numpy(self, *names: str) -> NDArray[Any] | tuple[NDArray[Any], ...]:
        """Return the values as an array: numbers, stacked rows and arrays, or objects.

        With names, return an array for each, all of the same length even while the stream grows.

        Args:
            names: Fields of the values, or number, event, rank, time, wall (seconds since the epoch) and, if the values
                have no fields, value.

        >>> from looptap import stream_of
        >>> step, loss = stream_of([(1, 0.5), (2, 0.25)], fields=("step", "loss")).to_numpy("step", "loss")
        >>> loss.tolist()
        [0.5, 0.25]
        """
        if not names:
            return values_as_array(self.columns().values)
        self.feed.attention.look()
        with self.feed.changed:
            parts = self.feed.buffer.parts_after(0)
        arrays = arrays_of(parts, self.feed.fields, names)
        return arrays if len(arrays) > 1 else arrays[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the array of `to_numpy` to NumPy and matplotlib."""
        found = self.to_numpy()
        return found if dtype is None else found.astype(dtype)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame indexed by number: event, rank, time, wall and fields.

        Raises ImportError if pandas is not installed.
        """
        return as_frame(self.columns(), self.feed.fields)

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table: number, event, rank, time, wall and fields.

        ``time`` (the host's monotonic clock) and ``wall`` (since the epoch) are seconds. Numbers are not copied;
        values other than numbers, text, dates and times are JSON. Raises ImportError if pyarrow is not installed.
        """
        self.feed.attention.look()
        with self.feed.changed:
            parts = self.feed.buffer.parts_after(0, plain=True)
        return as_arrow(parts, self.feed.fields)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table of `to_arrow` to Polars, DuckDB and others that read Arrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)
