"""Evaluation of a query at many events together, after they happened.

Where the values of many events come as columns, there is no object for an event or a value. Everything else, and each
batch with an error in it, is evaluated event by event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from looptap.agent.handoff.value_batch import bytes_each
from looptap.agent.loop.at_event import evaluate_at_event
from looptap.agent.loop.attached_query import AttachedQuery, GiveWay, stay
from looptap.agent.loop.columns.event_batch import MISSED, EventBatch
from looptap.streams.columns.evaluation import ColumnForm
from looptap.streams.columns.value_columns import MAX_COLUMNS, ValueColumns
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.slots import BatchItems
from looptap.streams.operators.windows import Seconds

MIN_COLUMN_EVENTS = 16
"""Events from which columns cost less than one event after the other: bench_columns."""
EVENTS_AT_A_TIME = 16
"""Events evaluated one by one before another thread may have its turn: some 10 µs each, with a cold cache 20."""


def evaluate_in_columns(query: AttachedQuery, batch: EventBatch, give_way: GiveWay = stay) -> None:
    """Evaluate the query at the events it has not seen, and end their windows.

    Calls ``give_way`` now and then where it takes them one by one, and between windows.
    """
    if not _in_columns(query, batch, give_way):
        give_way()
        _one_by_one(query, batch, give_way)


def _one_by_one(query: AttachedQuery, batch: EventBatch, give_way: GiveWay) -> None:
    every = query.every
    due = batch.numbers[0] + EVENTS_AT_A_TIME
    for event, number, now, began in batch.occurrences:
        if number >= due:
            due = number + EVENTS_AT_A_TIME
            give_way()
        if event is None:
            query.close_group(number, now, began)
        elif number <= query.seen or number % every:  # Ctrl-C had come after it
            continue
        elif event is MISSED:
            query.miss(number, now)
        else:
            evaluate_at_event(query, event, number, now, began)


def _in_columns(query: AttachedQuery, batch: EventBatch, give_way: GiveWay) -> bool:
    """Evaluate the query in columns; False if some events are left for one by one.

    That takes a query in mid-stream, where nothing is unusual: no event that Ctrl-C has cut short or that the query
    has seen, as an interrupt came among those after it.
    """
    pipeline, events = query.pipeline, batch.events
    begun = query.events and query.state == "live" and not (query.limit.suspended or query.flush_requested)
    if not begun or events is None:
        return False
    events = events.every(query.every)
    count = len(events)
    fresh = count > 0 and events.numbers[0] > query.seen
    if isinstance(pipeline, Reducing):
        return fresh and count >= MIN_COLUMN_EVENTS and _reduce(query, pipeline, batch, events, give_way)
    form = pipeline.column_form()
    return form is not None and (not count or (fresh and count > 1 and _put(query, form, events)))


def _reduce(query: AttachedQuery, pipeline: Reducing, batch: EventBatch, events: EventBatch, give_way: GiveWay) -> bool:
    """Add events to windows, and end these; False if some are left."""
    parts = pipeline.in_columns(events)
    if parts is None:
        return False
    start = 0
    try:
        for number, now, group in batch.ends if query.grouped else ():
            stop = bisect_right(events.numbers, number)
            _reduce_parts(query, pipeline, parts, events, start, stop, give_way)
            start = stop
            query.close_group(number, now, group)
        _reduce_parts(query, pipeline, parts, events, start, len(events), give_way)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        query.note_failure(error)
        return False
    return True


def _reduce_parts(
    query: AttachedQuery,
    pipeline: Reducing,
    parts: Sequence[BatchItems],
    events: EventBatch,
    start: int,
    stop: int,
    give_way: GiveWay,
) -> None:
    sink = query.sink
    while start < stop and query.state == "live":
        give_way()
        end = pipeline.reach(events.times, start, stop)
        at = start if isinstance(pipeline.window, Seconds) else end - 1  # where a window may end
        number, now = events.numbers[at], events.times[at]
        before, taken, done = sink.number, pipeline.taken, (query.seen, query.events)
        query.seen, query.events = events.numbers[end - 1], query.events + end - start
        try:
            query.outputs = outputs = pipeline.push_many(parts, events.times, start, end)
            query.put(outputs, None, number, now)
            query.outputs = None
        except KeyboardInterrupt:
            if pipeline.taken == taken:  # it came before these events were added
                query.seen, query.events = done
            if pipeline.taken != taken or pipeline.ending:
                query.recover(sink.number - before, None, number, now)
            raise
        start = end


def _put(query: AttachedQuery, form: ColumnForm, events: EventBatch) -> bool:
    """Put the values of events as one block; False if that is not possible."""
    pipeline = query.pipeline
    values, places = _values_of(query, form, events)
    if query.recorder is not None:
        values = _with_inputs(query, query.recorder, events, values)
    if values is None or not (size := bytes_each(values)):
        return False
    sink, before, count, put = query.sink, query.sink.number, len(events), len(places)
    try:
        pipeline.advance()
        if put == count:
            sink.put_all(events.event_numbers, events.event_times, values, size)
        elif put:
            numbers, times = [events.numbers[place] for place in places], [events.times[place] for place in places]
            sink.put_all(array("q", numbers), array("d", times), values, size)
    finally:  # all of them, unless Ctrl-C came; up to `recover` there is no call, so none comes now
        done = sink.number - before
        taken = count if done == put else places[done - 1] + 1 if done else 0
        if taken:
            query.seen = events.numbers[taken - 1]
        query.events += taken
        query.empty += taken - done
        if taken != count:
            pipeline.recover(events.times[taken])
    query.errors_in_a_row = 0
    return True


def _values_of(
    query: AttachedQuery, form: ColumnForm, events: EventBatch
) -> tuple[Sequence[Any] | None, Sequence[int]]:
    """Return the values of events, None if these are to be made one by one.

    With them, the places of the events that have one.
    """
    bare, every = query.pipeline.bare, range(len(events))
    if bare is not None:
        return events.table(bare.names, bare.single), every
    looks = len(events) >= MIN_COLUMN_EVENTS and query.pipeline.look_ahead(events)
    columns = form.evaluate(events) if looks else None
    if columns is None:
        return None, every
    return columns.values(), every if columns.kept is None else np.flatnonzero(columns.kept).tolist()


def _with_inputs(
    query: AttachedQuery, recorder: FlightRecorder[Any], events: EventBatch, values: Sequence[Any] | None
) -> ValueColumns | None:
    """Add what the flight recorder's condition reads; None without columns."""
    if not isinstance(values, ValueColumns) or len(values) < len(events):
        return None
    if recorder.condition.reads.intersection(events.names) != set(query.inputs):
        return None
    query.yields_rows = values.rows
    inputs = [events.column(name) for name in query.inputs]
    columns = [*values.columns, *[column for column in inputs if isinstance(column, np.ndarray)]]
    whole = len(columns) == len(values.columns) + len(inputs) <= MAX_COLUMNS
    return ValueColumns(columns, True) if whole else None
