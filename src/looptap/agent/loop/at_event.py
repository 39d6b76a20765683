"""Evaluation of a query at each event, on the training thread."""

from __future__ import annotations

from typing import Any

from looptap.agent.loop.attached_query import AttachedQuery
from looptap.streams.errors import QueryError
from looptap.streams.events import Event, missing_of
from looptap.streams.values.snapshots import snapshot

EVENTS_BEFORE_WAITING = 3
"""Events without a name after which its query is said to wait for it: at the second, many are there."""
EVENTS_BEFORE_DOUBT = 20
"""Events without a name after which it is said where it has a value."""


def evaluate_at_event(query: AttachedQuery, event: Event, number: int, now: float, began: int) -> None:
    """Evaluate the query at this event. Raises nothing but KeyboardInterrupt.

    ``began`` is the number of the last event before the open group.
    """
    query.seen = number
    sink = query.sink
    before, events = sink.number, query.events
    try:
        try:
            feed = query.feed
            if feed is not None:
                query.events += 1
                value, size = snapshot(feed(query.checked(event)), query.max_bytes)
                sink.put(number, now, value, size)
                query.errors_in_a_row = 0
            elif query.state == "live" and _is_ready(query, event, number, now, began):
                query.events += 1
                if query.pipeline.unsafe:
                    query.unsafely(number, lambda: _push(query, event, number, now), event)
                else:
                    _push(query, query.checked(event), number, now)
                query.outputs = None
                if query.flush_requested:
                    query.flush_partial(number, now)
                if query.shortens and not query.varies:
                    query.feed = query.pipeline.feed()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            query.outputs = None
            query.note_failure(error)
    except KeyboardInterrupt:
        if query.state == "live":
            query.events = events + 1  # it may have come before that
            query.recover(sink.number - before, event, number, now)
        raise


def take_logged(query: AttachedQuery, value: Any, now: float, call: int) -> None:
    """Append the value of the host's ``call``-th call to a stream that has no events.

    Raises nothing but KeyboardInterrupt.
    """
    query.seen = call
    if query.state != "live":
        return
    sink, before = query.sink, query.sink.number
    try:
        query.events += 1
        copy, size = snapshot(value, query.max_bytes)
        sink.put(query.events, now, copy, size)
        query.errors_in_a_row = 0
    except KeyboardInterrupt:
        if sink.number == before:
            sink.lose()
        raise
    except BaseException as error:
        query.note_failure(error)


def miss_logged(query: AttachedQuery, call: int) -> None:
    """Count a value as lost because of Ctrl-C in `take_logged`."""
    if query.seen != call and query.state == "live":
        query.seen = call
        query.events += 1
        query.sink.lose()


def _push(query: AttachedQuery, event: Event, number: int, now: float) -> None:
    query.outputs = outputs = query.pipeline.push(event, number, now)
    if outputs:
        query.put(outputs, event, number, now)
    elif query.pipeline.mapped:
        query.empty += 1
        query.errors_in_a_row = 0


def _is_ready(query: AttachedQuery, event: Event, number: int, now: float, began: int) -> bool:
    """Return True if the event is to be evaluated; prepare for the first one."""
    pipeline, limit = query.pipeline, query.limit
    if limit.suspended:
        limit.try_again(now)
    if query.of_events and _lacks(query, event):
        return False
    if not query.events:
        query.started = now
        if pipeline.expects or query.missing_names:
            query.missing_names = missing_of(event, pipeline.expects)
            query.notify()
        late, withheld = query.begins_late(number), query.limit.withheld > 0
        cut = number > began + 1 if query.grouped else late and query.slides
        pipeline.begin(withheld or cut, withheld or late)
    return True


def _lacks(query: AttachedQuery, event: Event) -> bool:
    """Return True if the event lacks what the query reads, and count it as filtered.

    Looks at the events before its first, and later where names vary.
    """
    unknown = event.__looptap_unknown__()
    if query.events and not (query.varies or unknown):
        return False
    query.varies = query.varies or not query.observed.isdisjoint(event.__looptap_varying__())
    coming = query.observed & event.__looptap_coming__()
    reasons = [reason for name, reason in unknown.items() if name in query.observed]
    early = bool(coming or reasons) or not query.awaits <= event.__looptap_names__()
    if query.hooks is not None and not early:
        try:
            early = not query.hooks.ready(event)
        except QueryError as error:
            query.fail(str(error))
            return True
    query.empty += early
    if reasons:
        query.pass_over(reasons[0])
    if coming and not query.events and query.empty in (EVENTS_BEFORE_WAITING, EVENTS_BEFORE_DOUBT):
        query.missing_names = _awaited(event, sorted(coming), query.empty == EVENTS_BEFORE_DOUBT)
        query.notify()
    return early


def _awaited(event: Event, names: list[str], doubtful: bool) -> str:
    """Say which names have no value; after many events also where they have one."""
    there = [path for name in names if (path := event.__looptap_elsewhere__(name))]
    hint = f"; there is {', '.join(there)}" if there else ""
    homes = [(name, home) for name in names if doubtful and (home := event.__looptap_home__(name))]
    if not homes:
        return f"it waits for {', '.join(names)}, which has no value so far{hint}"
    name, home = homes[0]
    function, ask = "the script", ""
    if home != "<module>":
        function = f"{home}()"
        ask = f" On Python 3.12 and newer ask there: --on '{home.rpartition('.')[2]}()'."
    return (
        f"{name} has had no value at any of {EVENTS_BEFORE_DOUBT} {event._source.name!r} events: it is a "
        f"variable of {function}, and may never have one there.{ask}{hint}"
    )
