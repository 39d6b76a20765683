"""Columns: batches of events yield what the same events yield one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import looptap
from looptap.agent.loop.deferred_evaluation import EVENTS_PER_BATCH
from looptap.streams.columns.value_columns import ValueColumns
from looptap.testing import pair, parts_of

NUMBERS = st.one_of(
    st.integers(-3, 3), st.floats(-4, 4), st.booleans(), st.none(), st.text("ab", max_size=2),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324, 2**62, 2**63 - 1, -(2**63), 2**63, 2**100]),
)  # fmt: skip
"""Numbers at the limits of arrays, and what no array of numbers holds."""
BARE = ("a", "a, b", "b, a, b", "lambda e: e.a", "lambda x: (x.b, x.a)", "e['a'], e.b", "(a,)", "lambda a: a.b")


def columns(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return lists of one type, of two, or of any."""
    return st.one_of(
        st.lists(st.integers(-5, 5), min_size=40, max_size=40), st.lists(st.floats(), min_size=40, max_size=40),
        st.lists(st.booleans(), min_size=40, max_size=40), st.lists(kinds, min_size=40, max_size=40),
        st.tuples(st.lists(st.integers(-5, 5), min_size=20, max_size=20), st.lists(kinds, min_size=20, max_size=20))
        .map(lambda parts: [*parts[0], *parts[1]]),
    )  # fmt: skip


def exact(value: Any) -> Any:
    """Return a value as text that tells types, signs of zero and NaN apart."""
    return (type(value), [exact(item) for item in value]) if isinstance(value, tuple) else repr(value)


def outcome(streams: list[Any]) -> list[Any]:
    """Return all that clients see of the values of some streams."""
    return [
        (
            [(r.number, r.event, r.time, exact(r.value), r.partial, r.error) for r in stream.records],
            (stream.dropped, stream.error_count, stream.traceback, stream.state, stream.reason),
        )
        for stream in streams
    ]


def run_of(
    queries: list[tuple[str, dict[str, Any]]], events: list[tuple[Any, Any]], ends: set[int], pieces: int
) -> list[Any]:
    """Return what the queries yield of these events, evaluated ``pieces`` at a time."""
    now = iter(range(10**6))
    job = pair(manual=True, clock=lambda: next(now) / 8)
    agent, run = job
    streams = [run.stream(query, on="batch", buffer=1000, **how) for query, how in queries]
    for evaluator in (parts_of(agent).sources.evaluator, parts_of(agent).sources.unobserved):
        evaluator.max_pending = pieces
    for place, (a, b) in enumerate(events):
        agent.emit("batch", a=a, b=b)
        if place in ends:
            agent.emit("epoch")
    agent.emit("epoch")
    agent.close()
    job.deliver()
    found = outcome(streams)
    run.close()
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(BARE), st.fixed_dictionaries({}, optional={"every": st.integers(1, 4)})),
        min_size=1, max_size=3,
    ),
    columns(NUMBERS), columns(NUMBERS), st.sets(st.integers(0, 39), max_size=4), st.integers(2, 40),
)  # fmt: skip
def test_bare_names_yield_in_columns_what_they_yield_event_by_event(queries, a, b, ends, pieces):
    events = list(zip(a, b, strict=True))
    assert run_of(queries, events, ends, pieces) == run_of(queries, events, ends, 1)


@pytest.mark.parametrize("query", ["step, loss", "loss", "lambda e: (e.loss, e.step)"])
def test_numbers_of_one_type_arrive_in_columns(query):
    job = pair(manual=True)
    agent, run = job
    stream = run.stream(query, on="batch")
    parts_of(agent).sources.evaluator.max_pending = EVENTS_PER_BATCH
    agent.emit("batch", step=0, loss=0.0)
    queue = parts_of(agent).sources.open("batch").queries[0].sink
    queue.take(queue.peek(1, 1 << 20))
    for step in range(1, 1 + EVENTS_PER_BATCH):
        agent.emit("batch", step=step, loss=step / 2)
    (batch,) = [queue.peek(10_000, 1 << 20)]
    assert isinstance(batch.values, ValueColumns)
    assert len(batch.values) == EVENTS_PER_BATCH
    assert batch.events.tolist() == list(range(2, 2 + EVENTS_PER_BATCH))
    assert stream.state == "live"


def test_blocks_without_room_are_dropped_to_the_last_value_and_counted():
    job = pair(manual=True, limits=looptap.Limits(outbox_values=100))
    agent, run = job
    stream = run.stream("step, loss", on="batch", buffer=10_000)
    parts_of(agent).sources.evaluator.max_pending = 64
    for step in range(1000):
        agent.emit("batch", step=step, loss=0.5)
    agent.close()
    job.deliver()
    assert [r.value[0] for r in stream.records] == list(range(100))
    assert stream.dropped == 900
