"""Columns: batches of events yield what the same events yield one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupts import interrupted

import looptap
from looptap.agent.loop.columns.event_batch import EventBatch
from looptap.agent.loop.deferred_evaluation import COPIED_EVENTS_PER_BATCH, EVENTS_PER_BATCH
from looptap.agent.loop.in_columns import evaluate_in_columns
from looptap.streams.columns.value_columns import ValueColumns
from looptap.streams.events import EventOrigin
from looptap.streams.native.compiled import which_tap
from looptap.streams.operators.flight_recorder import FlightRecorder
from looptap.streams.operators.slots import SlidingSlot
from looptap.testing import pair, parts_of

pytestmark = pytest.mark.pure

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
    if isinstance(value, set):
        return type(value), sorted(map(repr, value))  # a NaN has its place by its address
    return (type(value), [exact(item) for item in value]) if isinstance(value, tuple | list) else repr(value)


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
    streams = [run.stream(query, on="batch", buffer=1000, budget=math.inf, **how) for query, how in queries]
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


MAPPED = (
    "a * 2 if b else a - 1", "a + b, a", "(e.a * 2 for e in events if e.b)", "(e.a, e.b) if e.a else None", "a / b",
    "(x + 1 for x in (e.a for e in events if e.b != 0) if x > 0)", "a if b is None else b", "a < b < 2", "a or b",
    "(1 / e.b for e in events if e.a)", "a ** 2 % 7, b", "map(lambda e: e.a + e.b, events)", "a // 2",
    "(None for e in events if e.a)",
)  # fmt: skip
REDUCED = (
    "mean(e.a for e in events)", "sum(e.a for e in events)", "max(e.a for e in events)", "min(e.b for e in events)",
    "len(events)", "len([e for e in events if e.a])", "any(e.a for e in events), all(e.b for e in events)",
    "stdev(e.a for e in events)", "median(e.a for e in events)", "quantile((e.a for e in events), [0.1, 0.9])",
    "first(e.a for e in events), last(e.b for e in events if e.a)", "sorted(e.a for e in events)",
    "list(e.a + e.b for e in events)", "Counter(e.a for e in events)", "set(e.b for e in events)",
    "nlargest(3, (e.a for e in events))", "histogram((e.a for e in events), 4, (-2, 2))",
    "group_by(((e.b, e.a) for e in events), mean)", "group_by(((e.b, e.a) for e in events if e.a), max)",
    "group_by(((e.b, e.a * 2) for e in events), list)", "sum(1 / e.b for e in events)",
    "max(e.a for e in events) - mean(e.b for e in events)", "sum(e.a * e.b for e in events if e.b != 1)",
    "max((e.a for e in events if e.b), default=None)", "sum(e.a for e in events) / len(events)",
    "group_by(((e.b, 1) for e in events), sum)", "mean(x for x in (e.a for e in events) if x == x)",
)  # fmt: skip
WINDOWS = (None, 7, 1, 100, looptap.seconds(1.5), looptap.seconds(0.1), looptap.sliding(3))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(MAPPED), st.fixed_dictionaries({}, optional={"every": st.integers(1, 4)})),
        min_size=4, max_size=8,
    ),
    columns(NUMBERS), columns(NUMBERS), st.sets(st.integers(0, 39), max_size=4),
    st.sampled_from([2, 15, 16, 20, 33, 40]),
)  # fmt: skip
def test_expressions_and_filters_yield_in_columns_what_they_yield_event_by_event(queries, a, b, ends, pieces):
    events = list(zip(a, b, strict=True))
    assert run_of(queries, events, ends, pieces) == run_of(queries, events, ends, 1)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(REDUCED),
            st.fixed_dictionaries({}, optional={
                "every": st.integers(1, 4), "window": st.sampled_from(WINDOWS), "throttle": st.sampled_from([0.3, 2.0]),
            }),
        ),
        min_size=4, max_size=8,
    ),
    columns(NUMBERS), columns(NUMBERS), st.sets(st.integers(0, 39), max_size=4),
    st.sampled_from([2, 15, 16, 20, 33, 40]),
)  # fmt: skip
def test_windows_and_reductions_yield_in_columns_what_they_yield_event_by_event(queries, a, b, ends, pieces):
    events = list(zip(a, b, strict=True))
    assert run_of(queries, events, ends, pieces) == run_of(queries, events, ends, 1)


SLIDING = (
    "mean(e.a for e in recent(20))", "sum(e.a for e in recent(16)), a", "a > 3 * mean(e.a for e in recent(17))",
    "sum(e.b * e.a for e in recent(18)) / 2", "mean(e.a for e in recent(16)) if a else sum(e.b for e in recent(19))",
    "mean(e.b / 3 for e in recent(16)) - mean(e.b for e in recent(30))", "sum(e.a for e in recent(5)), b",
    "b and mean(e.a for e in recent(16))", "max(e.a for e in recent(16)) - mean(e.a for e in recent(16))",
    "lambda a: a.b - mean(e.b for e in recent(16))",
)  # fmt: skip
LIMITS = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1e308, -1e308, 5e-324, 1e16, 1.0]


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(SLIDING), st.fixed_dictionaries({}, optional={"every": st.integers(1, 2)})),
        min_size=4, max_size=6,
    ),
    st.lists(st.one_of(st.floats(-4, 4), st.sampled_from(LIMITS)), min_size=90, max_size=90),
    columns(NUMBERS), st.booleans(), st.sampled_from([16, 20, 33, 64, 90]),
)  # fmt: skip
def test_sliding_sums_yield_in_columns_what_they_yield_event_by_event(queries, floats, odd, mixed, pieces):
    others = [*floats[30:], *odd[:30]] if mixed else floats[::-1]
    events = list(zip(floats, others, strict=True))
    assert run_of(queries, events, {33, 60}, pieces) == run_of(queries, events, {33, 60}, 1)


def test_sliding_sums_are_taken_many_events_at_once(monkeypatch):
    pushed = []
    push = SlidingSlot.push
    monkeypatch.setattr(SlidingSlot, "push", lambda slot, event: (pushed.append(event), push(slot, event)))
    floats = [math.sin(place) for place in range(161)]
    (found,) = run_of([("mean(e.a for e in recent(50))", {})], [(x, 0) for x in floats], set(), 40)
    assert len(pushed) == 1  # the first event is evaluated at once
    assert float(found[0][-1][3]) == pytest.approx(math.fsum(floats[-50:]) / 50, rel=1e-15)


@pytest.mark.parametrize("when", ["before", "amid"])
def test_ctrl_c_among_sliding_sums_loses_no_value_and_the_window_begins_again_at_most(when):
    job = pair(manual=True)
    stream = job.run.stream("sum(e.a for e in recent(16))", on="batch")
    job.agent.emit("batch", a=1.0)
    (attached,) = parts_of(job.agent).sources.open("batch").queries
    attached.deferred = True
    put_all = attached.sink.put_all

    class Pressed:
        """The sink, in which Ctrl-C comes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(attached_sink, name)

        def put_all(self, events: Any, times: Any, values: Any, size: int) -> None:
            if when == "amid":
                put_all(events[:10], times[:10], values[:10], size)
            raise KeyboardInterrupt

    attached_sink, attached.sink = attached.sink, Pressed()
    rows = [element for n in range(2, 42) for element in (n, 0.0, 0, 1.0)]
    batch = EventBatch.of_rows(EventOrigin("batch"), ["a"], rows)
    with pytest.raises(KeyboardInterrupt):
        evaluate_in_columns(attached, batch)
    attached.sink = attached_sink
    evaluate_in_columns(attached, batch)
    job.deliver()
    assert (stream.arrived, stream.dropped, attached.seen) == (41, 0, 41)
    again = 11 if when == "amid" else 1  # values before the window began again
    expected = [min(place - again if place > again else place, 16.0) for place in range(1, 42)]
    assert stream.values == expected


@pytest.mark.long
@pytest.mark.parametrize("query", ["a * 2 if b else a", "a, b", "(e.a for e in events if e.b)"])
def test_ctrl_c_at_any_instruction_among_columns_repeats_no_value_and_loses_at_most_one(query):
    rows = [element for n in range(2, 22) for element in (n, 0.0, 0, float(n), 1)]

    def pressed(at: int) -> int:
        job = pair(manual=True)
        stream = job.run.stream(query, on="batch")
        job.agent.emit("batch", a=1.0, b=1)
        (attached,) = parts_of(job.agent).sources.open("batch").queries
        attached.deferred = True
        batch = EventBatch.of_rows(EventOrigin("batch"), ["a", "b"], rows)
        count, _ = interrupted(lambda: evaluate_in_columns(attached, batch), at)
        evaluate_in_columns(attached, batch)
        job.deliver()
        events = [record.event for record in stream.records]
        assert (stream.dropped, events) in [
            (0, [*range(1, 22)]), *((1, [n for n in range(1, 22) if n != lost]) for lost in range(2, 22))
        ]  # fmt: skip
        assert (attached.seen, attached.errors) == (21, 0)
        return count

    for at in range(1, pressed(0) + 1):
        pressed(at)


CONDITIONS = (
    "isnan(a)", "a > 2", "a > 3 * mean(e.a for e in recent(16))", "b", "b is None", "1 / b > 5", "a, b", "a < b < 2",
    "lambda e: e.a == 1.0", "math.sqrt(a) > 1.9", "a > 2 and b",
)  # fmt: skip
RECORDED = ("a", "a, b", "(b,)", "a * 2", "b, a - 1", "mean(e.a for e in recent(16))", "b if a else None")


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(RECORDED),
            st.fixed_dictionaries(
                {"when": st.sampled_from(CONDITIONS), "before": st.sampled_from([0, 1, 5, 30])},
                optional={"after": st.integers(0, 3), "every": st.integers(1, 2)},
            ),
        ),
        min_size=4, max_size=6,
    ),
    st.lists(st.one_of(st.floats(0, 2), st.sampled_from([0.5, 1.0])), min_size=90, max_size=90),
    st.sets(st.integers(0, 89), max_size=3), columns(NUMBERS), st.booleans(), st.sampled_from([16, 20, 33, 90]),
)  # fmt: skip
def test_a_flight_recorder_releases_in_columns_what_it_releases_event_by_event(
    queries, quiet, loud, odd, mixed, pieces
):
    floats = [math.nan if place in loud else x for place, x in enumerate(quiet)]
    others = [*floats[30:], *odd[:30]] if mixed else floats[::-1]
    events = list(zip(floats, others, strict=True))
    assert run_of(queries, events, {60}, pieces) == run_of(queries, events, {60}, 1)


def test_a_flight_recorder_at_rest_makes_no_object_for_most_events(monkeypatch):
    pushed = []
    push = FlightRecorder.push
    monkeypatch.setattr(FlightRecorder, "push", lambda *given: (pushed.append(given[3]), push(*given))[1])
    job = pair(manual=True)
    stream = job.run.stream("a, b", on="batch", when="isnan(a)", before=3, after=1)
    parts_of(job.agent).sources.evaluator.max_pending = 40
    for place in range(241):
        job.agent.emit("batch", a=math.nan if place == 200 else 0.5, b=place)
        if not place % 40:
            job.deliver()
    assert [row.b for row in stream.values] == [197, 198, 199, 200, 201]
    assert len(pushed) < 90  # the first ones, and the piece in which it fires


@pytest.mark.parametrize(("query", "window"), [
    ("mean(1 / e.b for e in events)", looptap.sliding(3)), ("mean(e.a for e in events if e.a > 1)", 1),
    ("mean(e.a for e in events)[0]", 2),
])  # fmt: skip
@pytest.mark.parametrize("pieces", [40, 250])
def test_a_hundred_errors_in_a_row_end_a_reduction_amid_a_piece(query, window, pieces):
    events = [(0.5, 0)] * 250
    (found,) = run_of([(query, {"window": window})], events, {201}, pieces)
    assert [found] == run_of([(query, {"window": window})], events, {201}, 1)
    assert (found[1][1], found[1][3]) == (100, "failed")


def test_a_filter_counts_the_events_that_it_leaves_out():
    job = pair(manual=True)
    agent, run = job
    run.stream("(e.loss * 2 for e in events if e.step % 10 == 0)", on="batch", buffer=1000)
    parts_of(agent).sources.evaluator.max_pending = EVENTS_PER_BATCH
    for step in range(1 + EVENTS_PER_BATCH):
        agent.emit("batch", step=step, loss=step / 2)
    (query,) = parts_of(agent).sources.open("batch").queries
    tenths = range(10, 1 + EVENTS_PER_BATCH, 10)
    kept = 1 + len(tenths)
    assert (query.events, query.sink.number) == (1 + EVENTS_PER_BATCH, kept)
    assert query.filtered == query.events - kept
    (reader,) = query.sink.readers
    reader.take(reader.peek(1, 1 << 20))
    batch = reader.peek(10_000, 1 << 20)
    assert isinstance(batch.values, ValueColumns)
    assert batch.values == [step * 1.0 for step in tenths]
    assert batch.events.tolist() == [step + 1 for step in tenths]


@pytest.mark.parametrize("query", ["step, loss", "loss", "lambda e: (e.loss, e.step)"])
def test_numbers_of_one_type_arrive_in_columns(query):
    job = pair(manual=True)
    agent, run = job
    stream = run.stream(query, on="batch")
    parts_of(agent).sources.evaluator.max_pending = EVENTS_PER_BATCH
    agent.emit("batch", step=0, loss=0.0)
    (reader,) = parts_of(agent).sources.open("batch").queries[0].sink.readers
    reader.take(reader.peek(1, 1 << 20))
    for step in range(1, 1 + EVENTS_PER_BATCH):
        agent.emit("batch", step=step, loss=step / 2)
    batch = reader.peek(10_000, 1 << 20)
    assert isinstance(batch.values, ValueColumns)
    assert len(batch.values) == EVENTS_PER_BATCH
    assert batch.events.tolist() == list(range(2, 2 + EVENTS_PER_BATCH))
    assert stream.state == "live"


@pytest.mark.parametrize(
    ("query", "how", "copied"),
    [("step, loss", {}, True), ("loss", {}, True), ("loss * 2", {}, False), ("step", {"when": "loss > 3"}, False)],
)
def test_only_events_of_which_numbers_are_copied_wait_in_larger_pieces(query, how, copied):
    job = pair(manual=True)
    agent, run = job
    evaluator = parts_of(agent).sources.evaluator
    evaluator.max_pending = COPIED_EVENTS_PER_BATCH
    stream = run.stream(query, on="batch", **how)
    most = 0
    for step in range(3 * COPIED_EVENTS_PER_BATCH):
        agent.emit("batch", step=step, loss=step / 2)
        most = max(most, evaluator.pending())
    larger = copied and which_tap() != "pure Python"
    assert [plan.batch for plan in evaluator.plans] == [COPIED_EVENTS_PER_BATCH if larger else EVENTS_PER_BATCH]
    assert (most > 2 * EVENTS_PER_BATCH) == larger
    assert most < COPIED_EVENTS_PER_BATCH
    assert stream.state == "live"


@pytest.mark.long
@pytest.mark.parametrize("odd", [None, 7, True, "text", 2**70])
def test_large_pieces_yield_what_the_same_events_yield_one_by_one(odd):
    events = [(step, step / 3) for step in range(COPIED_EVENTS_PER_BATCH + 1000)]
    events += [(odd, 0.5), *events[:2000], (1, odd), *events]
    queries = [("a, b", {}), ("b", {"every": 3}), ("a", {})]
    wanted = run_of(queries, events, {50, 4500}, 1)
    assert run_of(queries, events, {50, 4500}, COPIED_EVENTS_PER_BATCH) == wanted
    assert [len(records) for records, _ in wanted] == [1000, 1000, 1000]
    assert [counts[0] for _, counts in wanted] == [0, 0, 0]


def test_the_oldest_batches_without_room_are_dropped_and_counted():
    job = pair(manual=True, limits=looptap.Limits(outbox_values=100))
    agent, run = job
    stream = run.stream("step, loss", on="batch", buffer=10_000)
    parts_of(agent).sources.evaluator.max_pending = 64
    for step in range(1000):
        agent.emit("batch", step=step, loss=0.5)
    agent.close()
    job.deliver()
    steps = [r.value[0] for r in stream.records]
    assert steps == list(range(1000 - len(steps), 1000))
    assert 100 <= len(steps) < 100 + 2 * 64  # a batch is dropped as a whole
    assert stream.dropped == 1000 - len(steps)
