"""Queries over values that have arrived, evaluated in this process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from looptap.streams.expressions import format_error
from looptap.streams.flags import ERROR, HISTORY, PARTIAL, REPEATED
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.windows import Group, as_window
from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.feed import Feed
from looptap.streams.stream.state_and_cost import FAILED
from looptap.streams.values.rows import explain_missing_field

_MAX_ERRORS_IN_A_ROW = 100


class Derivation:
    """A query over the values of ``source``, and the feed that takes its values."""

    def __init__(
        self,
        source: Feed,
        code: str | Callable[..., Any],
        window: Any = None,
        every: int = 1,
        throttle: float = 0.0,
    ) -> None:
        known = None if source.fields is None else frozenset(source.fields)
        spec = QuerySpec(code, as_window(window), every, throttle, source="values", known=known, unsafe=True)
        self._source, self._pipeline = source, compile_query(spec)
        self.text, self.fields, self.notes = self._pipeline.text, self._pipeline.fields, self._pipeline.notes
        self._next, self._seen, self._in_a_row = 1, 0, 0
        self._last_position = (0, 0.0, 0, 0.0)  # event, time, rank and clock of the last item
        self._kind: type[Any] = object

    def start(self, out: Feed, notes: list[str]) -> None:
        """Publish the query's values in ``out``, kept values first; append to ``notes``."""
        self._feed, self.notes = out, notes
        self._subscriber = self._source.subscribe(self._on_batch, self._on_end, replay=True)
        self._source.schedule()

    def stop(self) -> None:
        """Stop evaluating the query."""
        self._source.unsubscribe(self._subscriber)

    @property
    def missed(self) -> int:
        """Number of source values that were dropped before the query read them."""
        return self._subscriber.missed

    def explain(self) -> str:
        """Describe which parts of the query stream or are collected, and when it yields."""
        return self._pipeline.explain()

    def _on_batch(self, batch: Batch) -> None:
        if batch.first != self._seen + 1:
            self._pipeline.begin(partial=True)
        self._seen = batch.first + len(batch.values) - 1
        out = _Outputs(batch.rank, batch.clock)
        flags = batch.flags or bytes(len(batch.values))
        items = zip(batch.events, batch.times, batch.values, flags, strict=True)
        for number, (event, time, value, flag) in enumerate(items, batch.first):
            if flag & ERROR:
                self._pipeline.begin(partial=True)
                continue
            for found in self._outputs(value, number, time):
                self._in_a_row = self._in_a_row + 1 if found[0] & ERROR else 0
                out.add(event, time, self._with_hint(found), flag & (PARTIAL | REPEATED | HISTORY))
            if self._in_a_row >= _MAX_ERRORS_IN_A_ROW:
                break
        self._last_position = (batch.events[-1], batch.times[-1], batch.rank, batch.clock)
        self._emit(out)
        if self._in_a_row >= _MAX_ERRORS_IN_A_ROW:
            self.stop()
            self._feed.finish(FAILED, f"{self._in_a_row} errors in a row, the first: {self._feed.first_error()}")

    def _outputs(self, value: Any, number: int, time: float) -> Sequence[tuple[int, Any]]:
        self._kind = type(value)
        try:
            outputs = self._pipeline.push(value, number, time)
        except Exception as error:
            self._feed.errors += 1
            self._in_a_row += 1
            self._feed.traceback = self._feed.traceback or explain_missing_field(
                format_error(error, self.text), self._kind
            )
            return ()
        if self._pipeline.failure and not self._feed.traceback:  # the window will yield it when it closes
            self._feed.traceback = explain_missing_field(self._pipeline.failure, self._kind)
            self.notes.append(f"the open window has failed and will yield an error: {self._feed.first_error()}")
        return outputs

    def _with_hint(self, output: tuple[int, Any]) -> tuple[int, Any]:
        flags, value = output
        return (flags, explain_missing_field(value, self._kind)) if flags & ERROR else output

    def _on_end(self) -> None:
        if not isinstance(self._pipeline.window, Group):  # which ends here as it should
            self._pipeline.begin(partial=True)
        event, time, rank, clock = self._last_position
        out = _Outputs(rank, clock)
        for found in self._pipeline.flush(time):
            out.add(event, time, self._with_hint(found), 0)
        self._emit(out)
        self._feed.finish(self._source.state, self._source.reason)

    def _emit(self, out: _Outputs) -> None:
        if out.values:
            flags = bytes(out.flags) if any(out.flags) else b""
            self._feed.publish(Batch(self._next, out.events, out.times, out.values, out.clock, flags, out.rank))
            self._next += len(out.values)


class _Outputs:
    """The outputs for one batch of the source, in columns."""

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
