"""Evaluation of the deferred events of a query, a batch at a time.

Where the values of many events come as columns, there is no object for an event or a value. Everything else, and each
batch with an error in it, is evaluated event by event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from looptap.agent.handoff.value_batch import Item, bytes_each
from looptap.agent.handoff.value_ring import ValueRing
from looptap.agent.loop.columns.event_batch import MISSED, EventBatch, EventOccurrence
from looptap.agent.loop.overhead_budget import Account
from looptap.agent.loop.query_status import QueryStatus
from looptap.streams.columns.value_columns import MAX_COLUMNS, ValueColumns
from looptap.streams.events import Event
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.pipeline import Latest, Output, Pipeline
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.slots import BatchItems
from looptap.streams.operators.windows import Seconds

MIN_COLUMN_EVENTS = 16
"""Events from which columns cost less than one event after the other: bench_columns."""


EVENTS_AT_A_TIME = 16
"""Events evaluated one by one before another thread may have its turn: some 10 µs each, with a cold cache 20."""


class BatchEvaluation(QueryStatus):
    """The part of an `AttachedQuery` that takes batches of events."""

    def __init__(self, pipeline: Pipeline, sink: ValueRing, account: Account, places: Sequence[Latest]) -> None:
        super().__init__(pipeline, sink, account, places)
        self.grouped = False
        """True if its window ends with the groups of the host."""
        self.recorder: FlightRecorder[Item] | None = None
        self.inputs: tuple[str, ...] = ()
        """What the flight recorder's condition reads; in a block of columns the last ones are theirs."""
        self.yields_rows = False
        """True if the other columns of such a block are rows."""
        self._flush_requested = False
        self._outputs: Sequence[Output] | None = None  # of an evaluation, until all is done that belongs to it

    @property
    def copies(self) -> bool:
        """True if its values are copies of an event's numbers, and no query reads them."""
        return self.pipeline.bare is not None and self.recorder is None and not self.derived

    def evaluate(self, event: Event, number: int, now: float, began: int) -> None:
        """Evaluate the query at one event."""
        raise NotImplementedError

    def miss(self, number: int, now: float) -> None:
        """Count an event that the query missed because of Ctrl-C."""
        raise NotImplementedError

    def flush(self, number: int, now: float, group: int = 0) -> None:
        """End the window."""
        raise NotImplementedError

    def _put(self, outputs: Sequence[Output], event: Event | None, number: int, now: float) -> None:
        raise NotImplementedError

    def _interrupted(self, put: int, event: Event | None, number: int, now: float) -> None:
        raise NotImplementedError

    def evaluate_batch(self, events: EventBatch, give_way: Callable[[], None] = lambda: None) -> None:
        """Evaluate the query at the events it has not seen, and end their windows.

        Calls ``give_way`` now and then where it takes them one by one, and between windows.
        """
        if (self._feed is not None or self._form is not None) and self._put_at_once(events):
            return
        if self._reduces() and self._reduce_at_once(events, give_way):
            return
        batch: Sequence[EventOccurrence] = events.occurrences
        give_way()
        if batch[0][1] <= self.seen:  # Ctrl-C had come
            batch = [one for one in batch if (one[1] > self.seen if one[0] is not None else one[3] != self.closed)]
        if self.every != 1:
            batch = [one for one in batch if one[0] is None or not one[1] % self.every]
        evaluate = self._reduce if self._reduces() else self.evaluate
        rest = iter(batch)
        due = batch[0][1] + EVENTS_AT_A_TIME if batch else 0
        while True:
            try:
                for event, number, now, began in rest:
                    if number >= due:
                        due = number + EVENTS_AT_A_TIME
                        give_way()
                    if event is None:
                        if self.grouped and self.events:
                            self.flush(number, now, began)
                    elif event is MISSED:
                        self.miss(number, now)
                    else:
                        evaluate(event, number, now, began)
                return
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._failed(error)
                evaluate = self.evaluate

    def _reduces(self) -> bool:
        """Return True for a reduction in mid-stream, where nothing is unusual."""
        begun = self.events > 0 and self.state == "live" and not (self.suspended or self._flush_requested)
        return begun and self.deferred is True and not self.pipeline.mapped

    def _reduce_at_once(self, batch: EventBatch, give_way: Callable[[], None]) -> bool:
        """Do what `_reduce` does for each event; False if some are left to it."""
        pipeline = self.pipeline
        events = batch.events
        if events is None or not isinstance(pipeline, Reducing) or self.recorder is not None:
            return False
        events = events.every(self.every)
        if len(events) < MIN_COLUMN_EVENTS or events.numbers[0] <= self.seen:  # Ctrl-C had come
            return False
        parts = pipeline.in_columns(events)
        if parts is None:
            return False
        start = 0
        try:
            for number, now, group in batch.ends if self.grouped else ():
                stop = bisect_right(events.numbers, number)
                self._reduce_parts(pipeline, parts, events, start, stop, give_way)
                start = stop
                if group != self.closed:
                    self.flush(number, now, group)
            self._reduce_parts(pipeline, parts, events, start, len(events), give_way)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed(error)
            return False
        return True

    def _reduce_parts(
        self, pipeline: Reducing, parts: Sequence[BatchItems], events: EventBatch, start: int, stop: int,
        give_way: Callable[[], None],
    ) -> None:  # fmt: skip
        sink = self.sink
        while start < stop and self.state == "live":
            give_way()
            end = pipeline.reach(events.times, start, stop)
            at = start if isinstance(pipeline.window, Seconds) else end - 1  # where a window may end
            number, now = events.numbers[at], events.times[at]
            before, taken, done = sink.number, pipeline.taken, (self.seen, self.events)
            self.seen, self.events = events.numbers[end - 1], self.events + end - start
            try:
                outputs = pipeline.push_many(parts, events.times, start, end)
                if outputs:
                    self._outputs = outputs
                    self._put(outputs, None, number, now)
                    self._outputs = None
            except KeyboardInterrupt:
                if pipeline.taken == taken:  # it came before these events were added
                    self.seen, self.events = done
                if pipeline.taken != taken or pipeline.ending:
                    self._interrupted(sink.number - before, None, number, now)
                raise
            start = end

    def _reduce(self, event: Event, number: int, now: float, began: int) -> None:
        """Do what `evaluate` does, for a reduction in mid-batch. Raises its errors."""
        self.seen = number
        if self.state != "live":
            return
        self.events += 1
        sink = self.sink
        before = sink.number
        try:
            outputs = self.pipeline.push(event, number, now)
            if outputs:
                self._outputs = outputs
                self._put(outputs, event, number, now)
                self._outputs = None
        except KeyboardInterrupt:
            self._interrupted(sink.number - before, event, number, now)
            raise

    def _put_at_once(self, batch: EventBatch) -> bool:
        """Put the values of a batch as one block; False if that is not possible."""
        found = batch.events
        if found is None:  # Ctrl-C has come
            return False
        found = found.every(self.every)
        if len(found) < 2:
            return not len(found)
        if found.numbers[0] <= self.seen:  # Ctrl-C had come
            return False
        values, places = self._values_of(found)
        if self.recorder is not None:
            values = self._with_inputs(found, values)
        if values is None or not (size := bytes_each(values)):
            return False
        sink, before, count, put = self.sink, self.sink.number, len(found), len(places)
        try:
            self.pipeline.advance()
            if put == count:
                sink.put_all(found.event_numbers, found.event_times, values, size)
            elif put:
                numbers, times = [found.numbers[place] for place in places], [found.times[place] for place in places]
                sink.put_all(array("q", numbers), array("d", times), values, size)
        finally:  # all of them, unless Ctrl-C came; up to `recover` there is no call, so none comes now
            done = sink.number - before
            taken = count if done == put else places[done - 1] + 1 if done else 0
            if taken:
                self.seen = found.numbers[taken - 1]
            self.events += taken
            self._empty += taken - done
            if taken != count:
                self.pipeline.recover(found.times[taken])
        self._in_a_row = 0
        return True

    def _values_of(self, events: EventBatch) -> tuple[Sequence[Any] | None, Sequence[int]]:
        """Return the values of events, and the places of those that have one.

        The values are None if they are to be made one by one. Without columns they end with an error, if there is one.
        """
        bare, form, feed = self.pipeline.bare, self._form, self._feed
        if bare is not None:
            return events.table(bare.names, bare.single), range(len(events))
        looks = form is not None and len(events) >= MIN_COLUMN_EVENTS and self.pipeline.look_ahead(events)
        columns = form.evaluate(events) if form is not None and looks else None
        if columns is not None:
            kept = columns.kept
            return columns.values(), range(len(events)) if kept is None else np.flatnonzero(kept).tolist()
        return None if feed is None else self._fed(feed, events), range(len(events))

    def _with_inputs(self, events: EventBatch, values: Sequence[Any] | None) -> ValueColumns | None:
        """Add what the flight recorder's condition reads; None without columns."""
        if self.recorder is None or not isinstance(values, ValueColumns) or len(values) < len(events):
            return None
        if self.recorder.condition.reads.intersection(events.names) != set(self.inputs):
            return None
        self.yields_rows = values.rows
        inputs = [events.column(name) for name in self.inputs]
        columns = [*values.columns, *[column for column in inputs if isinstance(column, np.ndarray)]]
        whole = len(columns) == len(values.columns) + len(inputs) <= MAX_COLUMNS
        return ValueColumns(columns, True) if whole else None

    def _fed(self, feed: Callable[[Any], Any], batch: EventBatch) -> list[Any]:
        """Return the values of the batch up to an error, which is the last of them."""
        values: list[Any] = []
        happened = batch.occurrences
        try:
            values.extend(map(feed, [one[0] for one in happened]))
        except Exception as error:  # one by one, the others get through
            values.append(error)
        except KeyboardInterrupt:
            if len(values) < len(happened):  # it was evaluating this one, which may never end
                for event, number, now, began in happened[: len(values)]:
                    self.evaluate(event, number, now, began)
                self.miss(*happened[len(values)][1:3])
            raise
        return values
