"""Streamed queries give what Python gives over the list of the window's events."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from looptap.streams.errors import QueryError
from looptap.streams.events import Event
from looptap.streams.flags import ERROR, PARTIAL
from looptap.streams.language import builtins
from looptap.streams.language.compiler import QuerySpec, compile_query
from looptap.streams.operators.pipeline import Pipeline
from looptap.streams.operators.reducing import Reducing
from looptap.streams.operators.windows import Count, Seconds, Sliding, seconds, sliding
from looptap.testing import pair

REDUCTIONS = [
    "max(e.loss for e in events)",
    "min([e.loss for e in events])",
    "sum(e.step for e in events)",
    "sum(e.loss for e in events)",
    "sum((e.loss for e in events), 10)",
    "len(events)",
    "sum(1 for e in events if e.loss > 0)",
    "any(e.loss > 50 for e in events)",
    "all(e.loss > -50 for e in events)",
    "mean(e.loss for e in events)",
    "median(e.loss for e in events)",
    "stdev(e.loss for e in events if e.step % 2)",
    "quantile((e.loss for e in events), 0.9)",
    "first(e.step for e in events), last(e.step for e in events)",
    "list(e.step for e in events)",
    "[e.loss for e in events if e.loss < 5]",
    "{e.target for e in events}",
    "{e.step: e.loss for e in events}",
    "sorted((e.loss for e in events), reverse=True)",
    "sorted(e.target for e in events)[:3]",
    "nlargest(3, (e.loss for e in events))",
    "nlargest(2, ((e.loss, e.step) for e in events), key=lambda t: t[0])",
    "Counter(e.target for e in events)",
    "Counter(t for e in events for t in (e.target, e.target + 1))",
    "max(Counter(e.target for e in events).values())",
    "group_by(((e.target, e.loss) for e in events), mean)",
    "group_by(((e.target, e.step) for e in events), max)",
    "reduce(lambda a, e: a + e.step, events, 0)",
    "reduce(max, map(lambda e: e.loss, filter(lambda e: e.step % 2, events)))",
    "functools.reduce(lambda a, x: a * 2 + x, (e.step for e in events), 1)",
    "statistics.fmean(e.loss for e in events)",
    "math.sqrt(sum(e.loss**2 for e in events))",
    "sum(e.loss for e in events) / len(events)",
    "max(sum(e.step for e in events), 1)",
    "max((e.loss for e in events), default=0)",
    "max(map(lambda e: e.loss * 2, events))",
    "sum(map(lambda e: e.step, filter(lambda e: e.loss > 0, events)))",
    "{'n': len(events), 'best': min(e.loss for e in events)}",
    "[(i, e.loss) for i, e in enumerate(events)]",
    "[b.loss - a.loss for a, b in itertools.pairwise(events)]",
    "[e.loss for e in events if e.loss > mean(f.loss for f in events)]",
    "[sum(f.step for f in events if f.step <= e.step) for e in events]",
    "max(events, key=lambda e: e.loss).step",
    "sum(x for e in events for x in e.row)",
    "sum(x for e in events if e.step % 2 for x in e.row if x > 0)",
    "max(accumulate(e.step for e in events))",
    "last(ema((e.loss for e in events), 0.5))",
    "len([e for e in events])",
    "lambda events: max(e.loss for e in events)",
]
MAPPED = [
    "(e.loss for e in events if e.loss < 5)",
    "map(lambda e: e.loss + 1, events)",
    "map(lambda e: e.loss, filter(lambda e: e.step % 2, events))",
    "((e.step, x) for e in events for x in e.row)",
    "accumulate((e.step for e in events), max)",
    "accumulate((e.step for e in events), initial=100)",
    "ema((e.loss for e in events), 0.1)",
    "itertools.accumulate((e.loss for e in events if e.step % 3), lambda a, x: a * 0.5 + x)",
]

LOSS = st.floats(-100, 100).map(lambda x: round(x, 3))
EVENT = st.fixed_dictionaries(
    {
        "step": st.integers(-1000, 1000),
        "loss": LOSS,
        "target": st.integers(0, 4),
        "row": st.lists(st.integers(-5, 5), max_size=3),
    }
)
WINDOWS = st.lists(st.lists(EVENT, max_size=8), min_size=1, max_size=4)


def compiled(query: Any, **how: Any) -> Pipeline:
    return compile_query(QuerySpec(query, **how))


def events_of(rows: list[dict[str, Any]]) -> list[Event]:
    return [Event(dict(row), number=i + 1) for i, row in enumerate(rows)]


def python(query: str, rows: list[dict[str, Any]]) -> Any:
    """Evaluate the expression over the list of events; return a result or error type."""
    names = {**builtins.names(), "events": [SimpleNamespace(**row) for row in rows]}
    names["len"] = lambda xs: len(xs) if hasattr(xs, "__len__") else sum(1 for _ in xs)
    try:
        value = eval(query, names)
        return value(names["events"]) if callable(value) else value
    except Exception as error:
        return type(error)


def same(streamed: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(streamed, float | int):
        return math.isclose(streamed, expected, rel_tol=1e-12, abs_tol=1e-10)
    if isinstance(expected, dict):
        return list(streamed) == list(expected) and all(same(streamed[k], expected[k]) for k in expected)
    if isinstance(expected, tuple | list):
        return len(streamed) == len(expected) and all(map(same, streamed, expected))
    return bool(streamed == expected)


@pytest.mark.parametrize("query", REDUCTIONS)
@settings(max_examples=examples(80), deadline=None)
@given(windows=WINDOWS)
def test_a_reduction_equals_the_expression_over_each_window(query, windows):
    pipeline = compiled(query)
    assert not pipeline.mapped
    for rows in windows:
        for event in events_of(rows):
            assert pipeline.push(event) == ()
        outputs = pipeline.flush()
        assert len(outputs) == (1 if rows else 0)  # a window without events yields nothing
        if not rows:
            continue
        (flags, value), expected = outputs[0], python(query, rows)
        if isinstance(expected, type):
            assert flags == ERROR
            assert expected.__name__ in value
        else:
            assert flags == 0, value
            assert same(value, expected), (value, expected)


@pytest.mark.parametrize("query", MAPPED)
@settings(max_examples=examples(60), deadline=None)
@given(rows=st.lists(EVENT, max_size=12))
def test_a_generator_yields_what_python_yields(query, rows):
    pipeline = compiled(query)
    got = [value for event in events_of(rows) for _, value in pipeline.push(event)]
    expected = list(python(query, rows))
    if "initial" in query and not rows:
        expected = []  # nothing has been asked of it before the first event
    assert same(got, expected)


SLIDING = [q for q in REDUCTIONS if not any(part in q for part in ("[", "reduce", "accumulate", "ema("))]


@pytest.mark.parametrize("query", SLIDING)
@settings(max_examples=examples(25), deadline=None)
@given(rows=st.lists(EVENT, min_size=1, max_size=20), size=st.integers(1, 6))
def test_a_sliding_window_equals_the_expression_over_the_last_events(query, rows, size):
    pipeline = compiled(query, window=Sliding(size))
    for i, event in enumerate(events_of(rows)):
        ((flags, value),) = pipeline.push(event)
        expected = python(query, rows[max(0, i + 1 - size) : i + 1])
        if isinstance(expected, type):
            assert flags == ERROR
            pipeline = compiled(query, window=Sliding(size))
            return
        assert same(value, expected), (value, expected)


MERGEABLE = "max", "min", "sum", "len", "mean", "stdev", "Counter", "group_by"
MERGING = [q for q in REDUCTIONS if q.split("(")[0] in {*MERGEABLE}]


@pytest.mark.parametrize("query", [q for q in MERGING if "accumulate" not in q and "events, key" not in q])
@settings(max_examples=examples(40), deadline=None)
@given(rows=st.lists(EVENT, min_size=1, max_size=20), cut=st.integers(0, 20))
def test_partial_windows_merge_to_the_whole(query, rows, cut):
    left, right = compiled(query), compiled(query)
    assert isinstance(left, Reducing)
    assert isinstance(right, Reducing)
    for event in events_of(rows[:cut]):
        left.push(event)
    for event in events_of(rows[cut:]):
        right.push(event)
    left.merge(right)
    ((flags, value),) = left.flush()
    expected = python(query, rows)
    assert flags == ERROR if isinstance(expected, type) else same(value, expected)


# ---------------------------------------------------------------- windows


def stream(pipeline: Pipeline, rows: list[dict[str, Any]], dt: float = 1.0) -> list[Any]:
    return [v for i, e in enumerate(events_of(rows)) for _, v in pipeline.push(e, i + 1, i * dt)]


STEPS = [{"step": i, "loss": float(i)} for i in range(10)]


def test_a_window_of_n_events_closes_itself():
    assert stream(compiled("sum(e.step for e in events)", window=Count(4)), STEPS) == [6, 22]


def test_a_window_of_seconds_closes_at_the_first_event_after_its_end():
    assert stream(compiled("len(events)", window=Seconds(3)), STEPS) == [3, 3, 3]


def test_seconds_without_events_yield_nothing():
    pipeline = compiled("len(events)", window=Seconds(1))
    for now in (0.0, 0.5, 7.2):
        got = pipeline.push(Event({}), 1, now)
    assert got == ((0, 2),)


def test_a_filter_that_kept_nothing_is_an_empty_sequence():
    pipeline = compiled("sum(e.loss for e in events if e.loss > 99)")
    stream(pipeline, STEPS)
    assert pipeline.flush() == ((0, 0),)


def test_every_selects_each_nth_event_and_throttle_withholds_outputs():
    assert stream(compiled("step", every=3), STEPS) == [2, 5, 8]
    pipeline = compiled("step", throttle=3.0)
    assert stream(pipeline, STEPS) == [0, 3, 6, 9]
    assert pipeline.skipped == 6
    windows = compiled("sum(e.step for e in events)", window=Count(2), throttle=3.0)
    assert stream(windows, STEPS) == [1, 9, 17]  # every event was seen; two of five values were withheld
    assert windows.skipped == 2


def test_a_window_that_began_before_the_query_is_partial_and_the_next_is_not():
    pipeline = compiled("len(events)")
    pipeline.begin(partial=True)
    pipeline.push(Event({}))
    assert pipeline.flush() == ((PARTIAL, 1),)
    pipeline.push(Event({}))
    assert pipeline.flush() == ((0, 1),)


def test_an_error_costs_its_window_and_the_next_starts_clean():
    pipeline = compiled("sum(1 / e.x for e in events)")
    for x in (1, 0, 1):
        pipeline.push(Event({"x": x}))
    ((flags, text),) = pipeline.flush()
    assert flags == ERROR
    assert "ZeroDivisionError" in text
    assert "1 / e.x" in text
    pipeline.push(Event({"x": 2}))
    assert pipeline.flush() == ((0, 0.5),)


def test_accumulate_restarts_with_the_window():
    pipeline = compiled("accumulate(e.step for e in events)", window=Count(3))
    assert stream(pipeline, STEPS) == [0, 1, 3, 3, 7, 12, 6, 13, 21, 9]


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "epoch", 10**9])
def test_an_invalid_window_is_refused_in_a_sentence(window):
    from looptap.streams.operators.windows import as_window

    with pytest.raises(QueryError, match="window"):
        as_window(window)
    with pytest.raises(QueryError):
        seconds(-1)
    with pytest.raises(QueryError):
        sliding(0)


# ---------------------------------------------------------------- mapped expressions


def test_free_names_are_observables_and_observables_win_over_helpers():
    assert stream(compiled("step, loss"), STEPS[:2]) == [(0, 0.0), (1, 1.0)]
    assert stream(compiled("max"), [{"max": 7}]) == [7]
    assert stream(compiled("e.loss + step"), STEPS[:2]) == [0.0, 2.0]
    assert stream(compiled("e + 1"), [{"e": 1}]) == [2]


def test_fields_are_the_names_of_a_tuple():
    assert compiled("step, e.loss, latest('epoch').error, loss + 1").fields == ("step", "loss", "error", "v3")
    assert compiled("lambda e: (e.step, e.loss)").fields == ("step", "loss")
    assert compiled("loss").fields is None


def test_recent_reduces_the_last_events_inside_an_expression():
    rows = [{"loss": float(x)} for x in (1, 1, 1, 9, 1)]
    assert stream(compiled("loss > 2 * mean(e.loss for e in recent(3))"), rows) == [False, False, False, True, False]
    assert stream(compiled("[e.loss for e in recent(2)]"), rows)[-1] == [9.0, 1.0]
    assert stream(compiled("lambda e: e.loss - min(f.loss for f in recent(2))"), rows) == [0, 0, 0, 8, 0]
    assert stream(compiled("len(recent(3))"), rows) == [1, 2, 3, 3, 3]


def test_latest_shows_another_event_beside_this_one():
    pipeline = compiled("step, latest('epoch').error")
    assert pipeline.latest[0].event == "epoch"
    assert stream(pipeline, STEPS[:1]) == [(0, None)]
    pipeline.latest[0].value = 0.25
    assert stream(pipeline, STEPS[:1]) == [(0, 0.25)]


def test_every_event_offers_number_time_and_rank():
    pipeline = compiled("event_number, event_time, event_dt, rank")
    assert pipeline.push(Event({}, number=3, time=1.5, dt=0.5)) == [(0, (3, 1.5, 0.5, 0))]


def test_a_python_function_is_mapped_or_reduces_by_its_parameters_name():
    assert stream(compiled(lambda e: e.loss * 2), STEPS[:2]) == [0.0, 2.0]
    pipeline = compiled(lambda events: [e.loss for e in events if e.step > 7])
    stream(pipeline, STEPS)
    assert pipeline.flush() == ((0, [8.0, 9.0]),)
    assert compiled("def f(e):\n    x = e.loss\n    return x + 1").push(Event({"loss": 1})) == [(0, 2)]


def test_the_same_language_runs_over_values():
    pipeline = compiled("max(v for v in values)", source="values", window=Count(2))
    assert [o for x in (1, 5, 2, 3) for o in pipeline.push(x)] == [(0, 5), (0, 3)]


# ---------------------------------------------------------------- errors that point


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        ("sum(e.loss for e in events", 3, "never closed"),
        ("", None, "'' holds none"),
        (" \n\t", None, "holds none"),
        ("# step, loss", None, "'# step, loss' holds none"),
        ("mean(events)", 5, "Put (e.loss for e in events) there"),
        ("max(events)", 4, "an event is not a value"),
        ("nlargest(3, events)", 12, "an event is not a value"),
        ("mean(recent(10))", 5, "Put (e.loss for e in recent(10)) there"),
        ("ema(loss, 0.1)", 4, "Put (e.loss for e in events) there"),
        ("accumulate(e.loss)", 11, "Put (e.loss for e in events) there"),
        ("max(e.loss for e in events if e.loss > mean(recent))", 44, "recent(100)"),
        ("max(v.loss for v in values) + len(events)", 20, "the sequence is 'events'"),
        ("mesn(e.loss for e in events)", 0, "Did you mean 'mean'"),
        ("sum(e.loss for e in events) + step", 30, "last(e.step for e in events)"),
        ("sum(e.loss for e in events) + e.step", 30, "last("),
        ("events", 0, "not a value"),
        ("(x := loss)", 1, "assign"),
        ("recent(10)", 0, "recent(100)"),
        ("mean(e.loss for e in recent(x))", 21, "number of events"),
        ("latest('epoch')", 0, "latest('epoch').error"),
        ("reduce(lambda a, e: a + e.loss, events)", 0, "initial"),
        ("accumulate(events)", 11, "not a value"),
        ("quantile((e.loss for e in events), 2)", 0, "quantile"),
        ("nlargest(k, (e.loss for e in events))", 9, "'k'"),
        ("lambda a, b: a", 0, "one parameter"),
        ("ema((e.loss for e in events), 3)", 0, "alpha"),
        ("last(accumulate(e.loss for e in recent(3)))", 0, "does not slide"),
    ],
)
def test_an_error_points_at_the_column_and_proposes_a_fix(query, column, says):
    with pytest.raises(QueryError) as caught:
        compiled(query)
    assert caught.value.column == column
    assert says in str(caught.value)


def test_a_function_that_no_event_has_is_refused_once_events_have_come():
    spec = QuerySpec("step, frobnicate(loss)", known=frozenset({"step", "loss"}))
    with pytest.raises(QueryError, match="expose") as caught:
        compile_query(spec)
    assert caught.value.column == 6


def test_a_model_may_come_with_the_first_event():
    pipeline, model = compiled("model(x).sum().item()"), torch.nn.Linear(2, 1)
    x = torch.ones(1, 2)
    assert pipeline.push(Event({"model": model, "x": x}))[0][1] == model(x).item()


def test_a_missing_observable_lists_the_available_names():
    with pytest.raises(QueryError, match=r"no observable 'los'.*loss, step.*Did you mean 'loss'"):
        compiled("los").push(Event({"step": 1, "loss": 2.0}))


def test_explain_says_what_streams_and_what_is_collected():
    text = compiled("max(e.loss for e in events) - statistics.median(e.loss for e in events)").explain()
    assert "streams: max(e.loss for e in events)" in text
    assert "at the close" in text
    collected = compiled("[a.loss - b.loss for a, b in itertools.pairwise(events)]")
    assert "collected" in collected.explain()
    assert collected.notes
    assert "waits for the device" in compiled("(e.loss for e in events if e.loss < 5)").explain()


@pytest.mark.parametrize(
    ("query", "checked"),
    [
        ("step, loss", False), ("mean(e.loss for e in events)", False), ("operator.add(step, 1)", False),
        ("operator.iadd(step, 1)", True), ("layer_norms(model, 'grad')", True), ("model(x)", True),
        ("x.uniform_()", True), ("max((e.x for e in events), key=torch.rand)", True),
    ],
)  # fmt: skip
def test_all_but_arithmetic_is_checked_as_it_runs(query, checked):
    assert compiled(query, known=frozenset({"model"})).checked is checked


# ---------------------------------------------------------------- the queries of TensorWatch's notebooks


def test_sums_of_arrays():
    pipeline = compiled("sum(e.a for e in events)")
    for i in range(3):
        pipeline.push(Event({"a": np.full(4, i)}))
    assert pipeline.flush()[0][1].tolist() == [3] * 4


def test_metric_tuples_over_x():
    assert stream(compiled("lambda d: (d.step, math.sqrt(d.loss))"), STEPS[:5])[4] == (4, 2.0)


def test_nested_reduce_map_filter():
    odd = "map(lambda e: e.step ** 2, filter(lambda e: e.step % 2, events))"
    pipeline = compiled(f"reduce(lambda a, x: a + x, {odd}, 0)")
    stream(pipeline, STEPS)
    assert pipeline.flush() == ((0, sum(i * i for i in range(1, 10, 2))),)


def test_statistics_over_a_window_match_the_standard_library():
    losses = [float(x) for x in (3, 1, 4, 1, 5, 9, 2, 6)]
    for name in ("mean", "median", "stdev", "variance"):
        pipeline = compiled(f"{name}(e.loss for e in events)")
        stream(pipeline, [{"loss": x} for x in losses])
        assert math.isclose(pipeline.flush()[0][1], getattr(statistics, name)(losses))


@pytest.mark.parametrize("query", ["+".join(["e.loss"] * 900), "-" * 900 + "loss", "loss" + ".real" * 900])
def test_an_expression_that_is_nested_too_deeply_is_refused(query):
    agent, run = pair(history=True)
    agent.emit("batch", loss=1.0)
    with pytest.raises(QueryError, match="nested too deeply"):
        run.stream(query)
    terms = ",".join(["loss"] * 900)
    total = run.stream(f"sum([{terms}])")
    agent.emit("batch", loss=2.0)
    assert total.values == [1800.0]
