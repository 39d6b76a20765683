"""Merged reductions: events split over ranks give one rank's result with all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.agent.loop.attached_query import snapshot
from looptap.protocol.values.packing import pack
from looptap.protocol.values.unpacking import unpack
from looptap.streams.aggregations.registry import REDUCERS, Bounds
from looptap.streams.errors import QueryError
from looptap.streams.events import Event, EventOrigin
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.language.rank_windows import RankMerger, aligned
from looptap.streams.operators.windows import Count, Seconds, as_window, sliding

SOURCE = EventOrigin("batch")

EXACT = [
    "len(events)",
    "len([e for e in events if e.n > 0])",
    "sum(e.n for e in events)",
    "sum(e.n * e.n for e in events if e.n > 2)",
    "sum(([e.n] for e in events), [])",
    "max((e.n for e in events), default=None)",
    "min((e.n for e in events), key=abs, default=None)",
    "any(e.n > 3 for e in events), all(e.n > -3 for e in events)",
    "first((e.n for e in events), None), last((e.n for e in events), None)",
    "nlargest(3, (e.n for e in events)), nsmallest(2, (e.n for e in events), key=abs)",
    "Counter(e.key for e in events)",
    "{e.key for e in events}, [e.n for e in events]",
    "sorted((e.n for e in events), reverse=True)",
    "histogram((e.n for e in events), 4, (-10, 10))",
    "histogram((e.x for e in events), 5)",
    "median([0.0, *(e.x for e in events)])",
    "quantile((e.x for e in events if e.n > -100), [0.1, 0.5, 1]) if len(events) else None",
    "group_by(((e.key, e.n) for e in events), sum)",
    "group_by(((e.key, e.n) for e in events), max)",
    "group_by(((e.key, e.n) for e in events), list)",
    "{'most': max((e.n for e in events), default=0), 'sum': sum(e.n for e in events) + 1}",
    "statistics.multimode(e.key for e in events)",
    "sum((e.n for e in events), 100)",
]
CLOSE = [
    "sum(e.x for e in events)",
    "mean(e.x for e in events) if len(events) else None",
    "mean(e.n for e in events) if len(events) else None",
    "math.sqrt(sum(e.x ** 2 for e in events)) / (1 + len(events))",
    "variance(e.x for e in events) if len(events) > 1 else None",
    "stdev(e.x for e in events) if len(events) > 1 else None",
    "sum(e.row for e in events)",
    "mean(e.row for e in events) if len(events) else None",
    "group_by(((e.key, e.x) for e in events), mean)",
    "group_by((((e.key, e.n % 2), e.x) for e in events), lambda xs: sum(xs) / len(xs))",
]

EVENTS = st.lists(
    st.tuples(
        st.integers(-9, 9),
        st.floats(-1e6, 1e6, allow_nan=False),
        st.sampled_from("abc"),
        st.integers(0, 3),  # which rank has it
    ),
    max_size=25,
)


def event(number, n, x, key):
    row = np.array([x, n], dtype=np.float32 if n % 2 else np.float64)
    return Event({"n": n, "x": x, "key": key, "row": row}, SOURCE, number, 0.0, 0.0)


def fed(pipeline, events):
    for number, one in enumerate(events, 1):
        pipeline.push(event(number, *one), number, float(number))
    return pipeline


def over_ranks(query, parts, joined=False):
    """Return a query's result over the events of several ranks, merged by the wire."""
    states = []
    for part in parts:
        pipeline = fed(aligned(compile_query(QuerySpec(query)), 0.0, states=True), part)
        for flags, placed in pipeline.flush():  # a rank without events has nothing to say
            assert flags == 0
            states.append(unpack(pack(snapshot(placed.value)[0])))
    merger = RankMerger(query)
    if joined and states:
        states = [unpack(pack(merger.joined(states[:2]))), *states[2:]]
    return [merger.value(states)] if states else []


def on_one(query, events):
    return [value for _, value in fed(compile_query(QuerySpec(query)), events).flush()]


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, tuple | list) else value


def close(a, b, scale):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key], scale) for key in a)
    if a is None or b is None:
        return a is b
    return np.allclose(a, b, rtol=1e-6 if isinstance(a, np.ndarray) else 1e-9, atol=1e-9 * scale)


def split(events):
    return [[one[:3] for one in events if one[3] == rank] for rank in range(4)]


@pytest.mark.promise("queries")
@pytest.mark.parametrize("query", EXACT)
@settings(max_examples=8, deadline=None)
@given(events=EVENTS, joined=st.booleans())
def test_events_split_over_ranks_give_the_result_of_one_rank(query, events, joined):
    parts = split(events)
    assert plain(over_ranks(query, parts, joined)) == plain(on_one(query, [one for part in parts for one in part]))


@pytest.mark.parametrize("query", CLOSE)
@settings(max_examples=8, deadline=None)
@given(events=EVENTS, joined=st.booleans())
def test_floats_split_over_ranks_give_the_same_up_to_rounding(query, events, joined):
    parts = split(events)
    found, expected = over_ranks(query, parts, joined), on_one(query, [one for part in parts for one in part])
    scale = max((abs(one[1]) for one in events), default=0.0) ** (2 if "variance" in query else 1)
    assert len(found) == len(expected)
    assert all(close(a, b, scale) for a, b in zip(found, expected, strict=True))


def test_each_rank_looks_back_at_its_own_events():
    part = [(n, float(n), "a") for n in range(6)]
    query = "max(e.x - mean(f.x for f in recent(2)) for e in events)"
    assert over_ranks(query, [part, part[3:]]) == on_one(query, part) == [0.5]


def test_a_sketch_of_several_ranks_keeps_its_promise():
    numbers = np.random.default_rng(0).normal(size=60_000)
    parts = [[(0, float(x), "a") for x in numbers[i::3]] for i in range(3)]
    (median,) = over_ranks("median(e.x for e in events)", parts)
    rank = np.searchsorted(np.sort(numbers), median) / len(numbers)
    assert abs(rank - 0.5) < 0.002
    ((counts, edges),) = over_ranks("histogram((e.x for e in events), 20)", [part * 4 for part in parts])
    exact, _ = np.histogram(np.tile(numbers, 4), edges)
    assert counts.sum() == 240_000
    assert np.abs(counts - exact).sum() < 0.01 * 240_000


def test_a_sample_of_several_ranks_is_a_sample_of_all():
    (found,) = over_ranks("sample((e.n for e in events), 5)", [[(n, 0.0, "a")] * 40 for n in range(4)])
    assert len(found) == 5
    assert set(found) <= {0, 1, 2, 3}


def test_too_many_keys_on_one_rank_are_too_many_in_all():
    part = [(n, 0.0, "a") for n in range(10_001)]
    with pytest.raises(QueryError, match="10,000 different keys"):
        over_ranks("group_by(((e.n, e.x) for e in events), sum)", [part, part[:3]])


def test_a_nan_of_a_device_on_one_rank_is_the_maximum_of_all():
    merger = RankMerger("max(e.x for e in events)")
    nothing = ["missing"]
    here, there = ((nothing, nothing, nothing, 3.0),), ((nothing, nothing, nothing, math.nan),)
    assert math.isnan(merger.value([here, there]))
    assert math.isnan(merger.value([there, here]))
    assert merger.value([here, ((5.0, 5.0, nothing, nothing),)]) == 5.0


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("step, loss", "has nothing to merge"),
        ("reduce(lambda a, e: a + e.n, events, 0)", "cannot be merged"),
        ("len([(e, f) for e in events for f in events])", "collects whole events"),
    ],
)
def test_a_query_that_cannot_be_merged_says_why(query, why):
    with pytest.raises(QueryError, match=why):
        RankMerger(query)


def test_a_state_of_something_else_is_an_exception_and_not_a_value():
    merger = RankMerger("mean(e.x for e in events), max(e.n for e in events)")
    for state in (None, 3, [], (1, 2), ((1,), (2,)), ((["grid", 3],) * 6, (0,) * 4), (("a",) * 6, ({},) * 4)):
        with pytest.raises(Exception):  # noqa: B017, PT011  # whichever: it is reported as the error of the window
            merger.value([state, state])


# ---------------------------------------------------------------- windows


def windows(window, numbers, every=1, origin=0.0, groups=()):
    """Return the windows of events at these numbers: (window, count, partial)."""
    query = aligned(compile_query(QuerySpec("len(events)", as_window(window), every)), origin, states=False)
    found = []
    for number in numbers:
        found += query.push(event(number, 0, 0.0, "a"), number, number / 10)
    found += query.flush(numbers[-1] / 10)
    return [(placed.window, placed.value, bool(flags & 1)) for flags, placed in found]


def test_windows_of_events_end_at_the_same_numbers_whenever_they_began():
    assert windows(Count(10), range(1, 31)) == [(1, 10, False), (2, 10, False), (3, 10, False)]
    assert windows(Count(10), range(7, 31)) == [(1, 4, True), (2, 10, False), (3, 10, False)]
    assert windows(Count(10), range(11, 35)) == [(2, 10, False), (3, 10, False), (4, 4, False)]


def test_windows_of_every_third_event_count_only_those():
    assert windows(Count(2), range(1, 19), every=3) == [(1, 2, False), (2, 2, False), (3, 2, False)]
    assert windows(Count(2), range(4, 19), every=3) == [(1, 1, True), (2, 2, False), (3, 2, False)]


def test_windows_of_seconds_count_from_the_origin():
    assert windows(Seconds(1), range(1, 31)) == [(1, 9, True), (2, 10, False), (3, 10, False), (4, 1, False)]
    assert windows(Seconds(1), range(1, 31), origin=-100.5)[:2] == [(101, 4, True), (102, 10, False)]


def test_a_sliding_window_is_numbered_by_its_newest_event():
    assert windows(sliding(2), range(5, 9)) == [(5, 1, False), (6, 2, False), (7, 2, False), (8, 2, False)]


def test_a_window_in_which_events_were_passed_over_is_flagged():
    query = aligned(compile_query(QuerySpec("len(events)", Count(10))), 0.0, states=False)
    found = []
    for number in [*range(1, 5), *range(23, 31)]:
        found += query.push(event(number, 0, 0.0, "a"), number, 0.0)
    assert [(placed.window, placed.value, flags) for flags, placed in found] == [(1, 4, 0), (3, 8, 1)]


def test_a_counter_that_has_passed_its_bound_merges_after_it_was_sent():
    ours, theirs, received = (REDUCERS["Counter"].create(bounds=Bounds(keys=2)) for _ in range(3))
    for item in "abca":
        theirs.add(item)
    received.load_state(theirs.state())
    ours.add("a")
    ours.merge(received)
    with pytest.raises(QueryError, match="1 of 5 items had other keys"):
        ours.result()
