"""Streams derived from streams: the query language over values that have arrived, in this process."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from looptap.streams.buffers import ERROR, PARTIAL, Batch
from looptap.streams.language import QuerySpec, compile_query
from looptap.streams.stream import ENDED, Stream
from looptap.streams.syntax import format_error
from looptap.streams.windows import as_window


class DerivedStream(Stream):
    """What a query over the values of ``source`` yields; it ends with its source.

    Each value carries the event, time and rank of the value that completed it. Items that the source lost are
    counted in `dropped` and a window they would have belonged to is flagged partial.
    """

    def __init__(
        self,
        source: Stream,
        code: str | Callable[..., Any],
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
        buffer: int = 200_000,
        name: str = "",
    ) -> None:
        known = None if source.fields is None else frozenset(source.fields)
        spec = QuerySpec(code, as_window(window), every, throttle, source="values", known=known)
        self._pipeline = compile_query(spec)
        super().__init__(name, text=self._pipeline.text, on=source.on, fields=self._pipeline.fields, buffer=buffer)
        self.source = source
        self.notes = list(self._pipeline.notes)
        self._next, self._seen = 1, 0
        self._subscriber = source._subscribe(self._on_batch, self._on_end, replay=True)

    @property
    def dropped(self) -> int:
        """How many values of the source never reached this query."""
        return self.source.dropped + self._subscriber.missed

    def explain(self) -> str:
        """What of the query streams, what is collected, and when it yields."""
        return self._pipeline.explain()

    def close(self) -> None:
        """End this stream; the source goes on."""
        self.source._unsubscribe(self._subscriber)
        super().close()

    def _on_batch(self, batch: Batch) -> None:
        if batch.first != self._seen + 1 and self._pipeline.events:
            self._pipeline.begin(partial=True)
        self._seen = batch.first + len(batch.values) - 1
        flags = batch.flags or bytes(len(batch.values))
        rows = zip(batch.events, batch.times, batch.values, flags, strict=True)
        out = _Outputs(batch.rank, batch.clock)
        for number, (event, time, value, flag) in enumerate(rows, batch.first):
            if flag & ERROR:
                if self._pipeline.events:
                    self._pipeline.begin(partial=True)
                continue
            try:
                outputs = self._pipeline.post(value, number, time)
            except Exception as error:
                self._errors += 1
                self.traceback = self.traceback or format_error(error, self.text)
                continue
            for found in outputs:
                out.add(event, time, found, flag & PARTIAL)
        self._emit(out)

    def _on_end(self) -> None:
        parts = self.source._last_parts()
        last = parts.records()[-1] if parts is not None else None
        out = _Outputs(last.rank if last else 0, last.wall - last.time if last else 0.0)
        event, time = (last.event, last.time) if last else (0, 0.0)
        for found in self._pipeline.close(time):
            out.add(event, time, found, 0)
        self._emit(out)
        self._finish(self.source.state, self.source.reason if self.source.state != ENDED else "")

    def _emit(self, out: _Outputs) -> None:
        if out.values:
            flags = bytes(out.flags) if any(out.flags) else b""
            self._push(Batch(self._next, out.events, out.times, out.values, out.clock, flags, out.rank))
            self._next += len(out.values)


class _Outputs:
    """What one batch of the source brings, in columns."""

    def __init__(self, rank: int, clock: float) -> None:
        self.rank, self.clock = rank, clock
        self.events, self.times = array("q"), array("d")
        self.values: list[Any] = []
        self.flags = bytearray()

    def add(self, event: int, time: float, output: tuple[int, Any], flag: int) -> None:
        self.events.append(event)
        self.times.append(time)
        self.values.append(output[1])
        self.flags.append(output[0] | flag)
