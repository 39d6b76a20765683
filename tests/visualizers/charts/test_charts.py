"""Charts: the choice by the first value, later values, notes on missing ones."""

from __future__ import annotations

import importlib.resources
import math
import re
import sys
import threading
import time
import types
from array import array

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from counts import examples
from hypothesis import HealthCheck, example, given, settings

from looptap.protocol.values.packing import pack
from looptap.streams.flags import ERROR
from looptap.streams.stream.buffer import Batch, LimitedStretch
from looptap.streams.stream.stream import Stream, stream_of
from looptap.streams.values.snapshots import snapshot
from looptap.visualizers.charts.base import APPEND, FRAME
from looptap.visualizers.charts.chart import IncompatibleStreams, chosen_chart, make_chart
from looptap.visualizers.charts.choice import Choice, choose
from looptap.visualizers.charts.legends import legends
from looptap.visualizers.charts.registry import KINDS
from looptap.visualizers.data.sample_buffer import MAX_DRAWN_POINTS, MAX_KEPT_POINTS
from looptap.visualizers.drawing.axis_limits import span
from looptap.visualizers.drawing.layouts import caption_lines
from looptap.visualizers.drawing.picture import (
    Band,
    Bars,
    Grid,
    Images,
    Line,
    Picture,
    Pie,
    Points,
    Table,
    Text,
)  # fmt: skip
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.live.growing import growing


def charted(values, chart="", *, name="loss", draw=None, **how):
    """Return a chart of a stream of ``values``, updated."""
    stream = stream_of(values, name=name, **how)
    made = make_chart(chosen_chart(stream, chart), **(draw or {}))
    made.add(stream, chart=chart)
    made.pull()
    return made


def drawn(values, chart="", **how) -> Picture:
    return charted(values, chart, **how).draw()


def push(stream, values, first=None, *, flags=b"", clock=0.0):
    first = stream.newest + 1 if first is None else first
    numbers = range(first, first + len(values))
    stream.publish(Batch(first, array("q", numbers), array("d", map(float, numbers)), list(values), clock, flags))


# ---------------------------------------------------------------- choosing

TABLE = [
    (0.5, "line", APPEND),
    (True, "line", APPEND),
    (np.float32(1), "line", APPEND),
    (torch.tensor(1.0), "line", APPEND),
    ((1, 0.5), "line", APPEND),
    ((1, 2, 3), "line3d", APPEND),
    ((1, 0.5, "spike"), "annotated", APPEND),
    ((1, 2, 3, "spike"), "annotated3d", APPEND),
    (("cat", 3), "bars", APPEND),
    ((1, 2, 3, 4), "line", APPEND),
    ({"a": 1, "b": 2.5}, "line", APPEND),
    (np.zeros(256), "curve", FRAME),
    (torch.zeros(3, dtype=torch.bfloat16), "curve", FRAME),
    ([0.5, 1.0], "curve", FRAME),
    (np.zeros(257), "histogram", FRAME),
    ((np.array([1, 2]), np.array([0.0, 1, 2])), "histogram", FRAME),
    (np.eye(10, dtype=int), "confusion", FRAME),
    (torch.eye(3, dtype=torch.int64), "confusion", FRAME),
    (np.eye(10, dtype=np.uint8), "heatmap", FRAME),
    (-np.eye(10, dtype=int), "heatmap", FRAME),
    (np.eye(201, dtype=int), "heatmap", FRAME),
    (np.zeros((9, 2)), "scatter", FRAME),
    (np.zeros((9, 3)), "scatter3d", FRAME),
    (np.zeros((8, 2)), "heatmap", FRAME),
    (np.zeros((32, 16, 3)), "image", FRAME),
    (np.zeros((3, 32, 16)), "image", FRAME),
    (np.zeros((7, 32, 16)), "images", FRAME),
    (np.zeros((7, 32, 16, 3)), "images", FRAME),
    (torch.zeros(7, 3, 32, 16), "images", FRAME),
    ([(np.zeros((8, 8)), "a")], "images", FRAME),
    ({"fc.weight": np.zeros((3, 4)), "fc.bias": np.zeros(3)}, "ridgeline", FRAME),
    ({"fc.weight": (np.ones(4), np.arange(5.0))}, "ridgeline", FRAME),
    ({"conv.weight": torch.zeros(8, 3, 3, 3), "conv.bias": torch.zeros(8)}, "ridgeline", FRAME),
    (torch.zeros(64, 32, 1, 1), "heatmap", FRAME),
    (dict.fromkeys("abcdefghi", 1.0), "layers", APPEND),
    ((1, "x", True), "table", APPEND),
    ({"a": np.ones(1), "b": np.ones(1)}, "bars", FRAME),
    ({"a": (1,), "b": (2,)}, "bars", FRAME),
    ("a line", "text", APPEND),
    ({"a": 1, "b": "x"}, "table", FRAME),
    ([1, "x"], "table", FRAME),
    (b"bytes", "text", APPEND),
    ({1, 2}, "text", APPEND),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "mode"), TABLE, ids=[f"{i}-{kind}" for i, (_, kind, _) in enumerate(TABLE)])
def test_a_value_asks_for_the_chart_of_the_table(value, kind, mode):
    found = choose(value)
    assert (found.kind, found.mode, found.family) == (kind, mode, KINDS[kind][0])


def test_pictures_as_they_arrive_are_images():
    from matplotlib.figure import Figure
    from PIL import Image

    for value in (Image.new("RGB", (4, 2), "red"), Figure()):
        assert choose(value).kind == choose(snapshot(value)[0]).kind == "image"
    (mark,) = drawn([snapshot(Image.new("RGB", (4, 2), "red"))[0]]).marks
    assert mark.images[0].shape == (2, 4, 3)
    assert mark.images[0][0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("fields", "query", "value"),
    [
        (("lo", "mid", "hi"), "", (1, 2, 3)),
        (("step", "low", "mean", "high"), "", (0, 1, 2, 3)),
        (("q10", "q50", "q90"), "", (1, 2, 3)),
        ((), "quantile((e.loss for e in events), [0.1, 0.5, 0.9])", [1, 2, 3]),
        ((), "", {"eta_lo": 1, "eta": 2, "eta_hi": 3}),
    ],
)
def test_names_that_the_query_declares_make_a_band(fields, query, value):
    assert choose(value, fields, query=query).kind == "band"


def test_three_unnamed_numbers_are_a_line_in_space_with_a_note_on_the_override():
    assert choose((1, 2, 3)).kind == choose((1, 2, 3), ("x", "y", "z")).kind == "line3d"
    assert "chart='line'" in drawn([(1, 2, 3)]).guess
    picture = drawn([(1, 2, 3), (2, 3, 4)], "line")
    assert [line.y.tolist() for line in picture.marks] == [[2, 3], [3, 4]]


def lines_of(picture):
    return [(mark.name, mark.x.tolist(), mark.y.tolist()) for mark in picture.marks if isinstance(mark, Line)]


@pytest.mark.parametrize("name", ["step", "epoch", "batch", "iteration", "time", "global_step", "seen"])
def test_a_first_field_that_counts_is_x_and_further_numbers_are_lines(name):
    picture = drawn([(64, 2, 3), (128, 3, 4), (192, 4, 5)], fields=(name, "val_loss", "val_acc"))
    x = [64, 128, 192]
    assert lines_of(picture) == [("val_loss", x, [2, 3, 4]), ("val_acc", x, [3, 4, 5])]
    assert (picture.x.title, picture.y.title) == (name, "")


@pytest.mark.parametrize("wrap", [tuple, lambda pair: dict(zip(("loss", "acc"), pair, strict=True))])
def test_named_numbers_of_which_none_counts_are_lines_over_the_events(wrap):
    values = [wrap(pair) for pair in ((0.5, 0.1), (0.25, 0.2), (0.3, 0.3))]
    picture = drawn(values, fields=("loss", "acc") if wrap is tuple else None)
    assert lines_of(picture) == [("loss", [1, 2, 3], [0.5, 0.25, 0.3]), ("acc", [1, 2, 3], [0.1, 0.2, 0.3])]
    assert picture.x.title == "event"


def test_the_numbers_inside_of_a_tuple_are_lines_by_their_names():
    values = [(1, {"fc": 0.5, "out": 0.25}, (0.1, 0.01)), (2, {"fc": 0.4, "out": 0.2}, (0.1, 0.01))]
    picture = drawn(values, fields=("step", "norms", "lr"))
    assert [name for name, *_ in lines_of(picture)] == ["fc", "out", "lr.0", "lr.1"]
    assert picture.x.title == "step"
    assert choose({"a": (1,), "b": (2,)}).kind == "bars"


def test_numbers_without_names_keep_the_reading_of_the_paper():
    assert lines_of(drawn([(3, 0.5), (1, 0.25)])) == [("loss", [3, 1], [0.5, 0.25])]
    query = "math.sin(t), math.cos(t), t"
    assert choose((0.1, 0.9, 7), ("v0", "v1", "t"), query=query).kind == "line3d"


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("loss.item(), float(acc)", ["loss", "acc"]),
        ("mean(e.loss for e in events), max(e.loss for e in events)", ["mean(loss)", "max(loss)"]),
        ("x.mean(), x.std()", ["x.mean()", "x.std()"]),
        ("loss, accuracy(output, target)", ["loss", "accuracy(output, target)"]),
    ],
)
def test_what_a_query_makes_of_an_observable_is_a_name(query, labels):
    stream = stream_of([(0.5, 0.1), (0.25, 0.2)], fields=("v0", "v1"))
    stream.text = query
    plot = Plot(stream)
    plot.pull()
    (picture,) = plot.pictures()
    assert [name for name, *_ in lines_of(picture)] == labels
    assert picture.x.title == "event"


def test_a_number_that_starts_again_is_not_x_but_one_after_a_restart_is():
    again = drawn([(0, 0.5), (1, 0.4), (0, 0.3), (1, 0.2)], fields=("batch", "loss"))
    assert lines_of(again) == [("loss", [1, 2, 3, 4], [0.5, 0.4, 0.3, 0.2])]
    assert any("starts again" in badge for badge in again.badges)
    stream = Stream("loss", fields=("step", "loss"))
    push(stream, [(1, 0.5), (2, 0.4)])
    stream.feed.add_seam("one", "two")
    push(stream, [(1, 0.3), (2, 0.2)])
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    assert chart.draw().x.title == "step"


def test_a_share_within_ten_steps_is_a_line_and_no_x():
    picture = drawn([{"10 steps": 0.3, "100 steps": 0.33}, {"10 steps": 0.31, "100 steps": 0.34}])
    assert [name for name, *_ in lines_of(picture)] == ["10 steps", "100 steps"]
    assert picture.badges == ()


def test_lines_whose_scales_differ_by_more_than_thirty_have_an_axis_each():
    picture = drawn([(1, 2.0, 1e-4, 0.5), (2, 1.5, 1e-4, 0.6)], fields=("step", "loss", "lr", "acc"))
    assert {mark.name: mark.side for mark in picture.marks} == {"loss": "left", "lr": "right", "acc": "left"}
    assert (picture.y.title, picture.right.title) == ("loss, acc", "lr")
    assert drawn([(1, 2.0, 0.1), (2, 1.5, 0.2)], fields=("step", "loss", "acc")).right is None


def test_the_user_comes_before_the_object_and_the_object_before_its_shape():
    class Curve(list):
        __looptap_chart__ = "bars"

    class Judge(list):
        def __looptap_chart__(self):
            return Choice("heatmap", "mat", FRAME)

    class Broken(list):
        @property
        def __looptap_chart__(self):
            raise RuntimeError

    assert choose(Curve([1.0, 2.0])).kind == "bars"
    assert choose(Judge([1.0])).kind == "heatmap"
    assert choose(Curve([1.0, 2.0]), chart="pie").kind == "pie"
    assert choose(Broken([1.0])).kind == "curve"


def test_the_hint_of_a_value_comes_before_what_is_nested_in_it():
    class Nested(dict):
        __looptap_chart__ = "text"

    assert choose(Nested(train={"loss": 1.0})).kind == "text"


def test_texts_in_arrays_beside_numbers_are_a_table():
    texts = np.array([["a", "b", "c"]] * 3)
    for value in ((1.0, texts), (1.0, texts[None]), {"n": 1.0, "texts": texts}, [(1.0, texts[None])]):
        assert choose(value).kind == "table"
        assert any(isinstance(mark, Table) for mark in drawn([value]).marks)


def test_an_unknown_chart_is_an_error_that_lists_those_that_there_are():
    with pytest.raises(ValueError, match=r"no chart 'histogramm'; there are line, .* Did you mean 'histogram'"):
        choose(1, chart="histogramm")


numbers = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.complex_numbers())
dtypes = st.one_of(
    arrays.scalar_dtypes(), arrays.unicode_string_dtypes(max_len=3), arrays.byte_string_dtypes(max_len=3)
)
matrices = dtypes.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
tensors = st.tuples(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
                     torch.complex64, torch.float8_e4m3fn]),
    st.lists(st.integers(0, 5), max_size=4),
).map(lambda reported: torch.zeros(reported[1]).to(reported[0]))  # fmt: skip
leaves = st.one_of(numbers, st.text(max_size=5), st.binary(max_size=5), matrices, tensors)
snapshots = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=4),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(snapshots, min_size=1, max_size=4), st.sampled_from(["", *KINDS]), st.sampled_from(["", "time"]))
@example([{"": (-(2**63) - 1,)}], "", "")
@example([(np.empty((0, 0), "datetime64[Y]"), 0.0)], "", "")
@example([[""]], "summary", "")
@example([0.0], "line3d", "")
@example([{}], "ridgeline", "")
def test_any_values_get_some_chart_and_no_exception(values, chart, x):
    stream = stream_of(values, name="anything")
    choice = chosen_chart(stream, chart)
    if choice is None:
        assert all(value is None for value in values)
        return
    made = make_chart(choice, x=x)
    made.add(stream, chart=chart)
    made.pull()
    picture = made.draw()
    assert not [badge for badge in picture.badges if "cannot be drawn" in badge]
    assert (picture.frame is not None) <= (choice.mode == FRAME)
    if not chart and choice.kind != "line":  # what the table chose also fits, at least the first
        assert made.series[0].skipped < len(values)


# ---------------------------------------------------------------- taking in


def test_a_pull_reads_new_values_and_returns_whether_there_were_any():
    stream = Stream("loss", fields=("step", "loss"))
    push(stream, [(1, 0.5)])
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    assert (chart.pull(), chart.pull()) == (True, False)
    push(stream, [(2, 0.25), (3, 0.125)])
    assert chart.pull()
    (line,) = chart.draw().marks
    assert (line.x.tolist(), line.y.tolist()) == ([1, 2, 3], [0.5, 0.25, 0.125])
    assert (chart.draw().x.title, chart.draw().y.title) == ("step", "loss")


def test_a_value_that_does_not_fit_becomes_a_badge_and_the_rest_is_drawn():
    picture = drawn([(1, 0.5), *["oops"] * 12, (2, 0.25)])
    assert picture.badges == ("loss: 12 values skipped: expected (number, number), got str",)
    assert picture.marks[0].y.tolist() == [0.5, 0.25]


def test_gaps_errors_and_forgotten_values_are_reported():
    stream = Stream("loss", buffer=10)
    push(stream, [0.5, "boom"], flags=bytes([0, ERROR]))
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    push(stream, [0.25], first=8)
    for _ in range(3):
        push(stream, np.arange(8.0).tolist())
    chart.pull()
    badges = " ".join(chart.draw().badges)
    assert "loss: the query has failed 1 time: boom" in badges
    assert "loss: 5 values missing in 1 gap" in badges
    assert "loss: 15 values left the stream's buffer before they were drawn" in badges


def test_nan_and_infinities_are_gaps_that_are_marked():
    line, odd = drawn([1.0, float("nan"), float("inf"), 4.0]).marks
    np.testing.assert_equal(line.y, [1, np.nan, np.nan, 4])
    assert isinstance(odd, Points)
    assert (odd.x.tolist(), odd.y.tolist()) == ([2, 3], [1, 1])
    assert "loss: 2 numbers are NaN or infinite" in drawn([1.0, float("nan"), float("inf"), 4.0]).badges


def test_a_line_without_a_finite_number_has_no_part_in_the_scale():
    rows = [(step, math.nan, 1000.0 + step) for step in range(9)]
    chart = charted(rows, fields=("step", "bad", "good"))
    (growth,) = [
        growing(chart, chart.draw())[place] for place, mark in enumerate(chart.draw().marks) if mark.name == "bad"
    ]
    assert np.isnan(growth.y.numbers).all()  # neither infinite nor left out
    bad, odd, good = chart.draw().marks
    assert odd.name.startswith("bad")
    assert set(odd.y) == {1000.0}  # at the lowest of the others: seen, and no wider scale
    assert not np.isfinite(bad.y).any()
    assert span([bad.y, odd.y, good.y]) == (1000.0, 1008.0)
    decades = charted([(step, math.inf, 10.0**step) for step in range(9)], fields=("step", "bad", "good")).draw()
    assert decades.y.log
    assert not [badge for badge in decades.badges if "not positive" in badge]


def test_the_marks_of_many_nans_are_all_along_the_line():
    odd = charted([math.nan] * 5000 + [1.0]).draw().marks[1]
    assert len(odd.x) <= 200
    assert (odd.x[0], odd.x[-1]) == (1, 5000)


def test_none_joins_a_line_over_and_nan_breaks_it():
    rows = [(0, 1.0), (1, None), (2, 2.0), (3, math.nan), (4, math.inf), (5, 3.0)]
    for values in (rows, [dict(zip(("step", "loss"), row, strict=True)) for row in rows]):
        line, odd = charted(values, fields=("step", "loss") if values is rows else ()).draw().marks
        np.testing.assert_equal(line.y, [1, 2, np.nan, np.nan, 3])
        assert odd.x.tolist() == [3, 4]


def test_a_paused_chart_stays_while_its_stream_continues():
    stream = Stream("loss")
    push(stream, [1.0])
    plot = Plot(stream)
    plot.pull()
    plot.pause()
    push(stream, [2.0, 3.0])
    assert not plot.pull()
    (picture,) = plot.pictures()
    assert len(picture.marks[0].y) == 1
    assert "paused" in picture.badges
    plot.resume()
    assert plot.pull()
    (picture,) = plot.pictures()
    assert picture.marks[0].y.tolist() == [1, 2, 3]
    assert "paused" not in picture.badges


def test_the_newest_points_are_kept_and_few_of_them_drawn():
    stream = stream_of(np.sin(np.arange(MAX_KEPT_POINTS + 50_000) / 1000).tolist(), name="loss")
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    picture = chart.draw()
    (line,) = picture.marks
    assert len(line.x) <= MAX_DRAWN_POINTS
    assert line.x[-1] == MAX_KEPT_POINTS + 50_000
    assert line.y.max() == pytest.approx(1, abs=1e-4)
    assert picture.badges == ("loss: the newest 200,000 of 250,000 values are drawn",)


def test_a_hundred_thousand_points_take_less_than_a_second_of_a_processor():
    stream = stream_of([(float(i), i * 0.5) for i in range(100_000)], name="loss")
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    start = time.thread_time()
    chart.pull()
    assert time.thread_time() - start < 1
    assert len(chart.series[0].data["ring"]) == 100_000


def test_a_late_key_of_a_dict_gets_a_line_of_its_own():
    picture = drawn([{"a": 1, "b": 2}, {"b": 3, "a": 4}, {"a": 5, "c": 6}, {"c": 7}])
    lines = {mark.name: (mark.x.tolist(), mark.y.tolist()) for mark in picture.marks}
    assert lines == {"a": ([1, 2, 3], [1, 4, 5]), "b": ([1, 2], [2, 3]), "c": ([3, 4], [6, 7])}
    assert len({mark.color for mark in picture.marks}) == 3


# ---------------------------------------------------------------- several streams


def test_streams_of_one_family_share_axes_and_each_has_its_colour():
    loss, error = stream_of([(1, 0.5)], name="loss"), stream_of([0.25], name="error")
    chart = make_chart(chosen_chart(loss))
    chart.add(loss)
    chart.add(error, axis="right")
    chart.pull()
    first, second = chart.draw().marks
    assert (first.side, second.side) == ("left", "right")
    assert first.color != second.color
    assert chart.draw().right.title == "error"
    chart.remove(loss)
    assert chart.pull()
    assert [mark.name for mark in chart.draw().marks] == ["error"]
    chart.add(loss)
    chart.pull()
    assert [mark.color for mark in chart.draw().marks] == [second.color, first.color]


def test_streams_that_do_not_share_axes_are_refused_by_both_names_with_the_way_out():
    loss, image = stream_of([0.5], name="loss"), stream_of([np.zeros((8, 8, 3))], name="input")
    chart = make_chart(chosen_chart(loss))
    chart.add(loss)
    with pytest.raises(IncompatibleStreams, match=r"'loss' and 'input' do not share axes.*a chart of its own"):
        chart.add(image)
    chart.pull()
    assert len(chart.draw().marks) == 1


def test_a_stream_that_later_does_not_share_axes_is_a_badge():
    loss, late = stream_of([0.5], name="loss"), Stream("late")
    chart = make_chart(chosen_chart(loss))
    chart.add(loss)
    chart.add(late)
    chart.pull()
    assert chart.draw().badges == ("waiting for the first value of 'late'",)
    push(late, [None, np.zeros((8, 8, 3))])
    assert chart.pull()
    (badge,) = chart.draw().badges
    assert "'loss' and 'late' do not share axes" in badge
    assert len(chart.draw().marks) == 1


def test_a_line_and_a_histogram_overlay_with_a_second_axis():
    line, numbers = stream_of([0.5], name="loss"), stream_of([np.arange(300.0)], name="weights")
    chart = make_chart(chosen_chart(line))
    chart.add(line)
    chart.add(numbers)
    chart.pull()
    first, second = chart.draw().marks
    assert isinstance(first, Line)
    assert isinstance(second, Bars)
    assert (second.side, second.heights.sum()) == ("right", 300)


# ---------------------------------------------------------------- the axis x


@pytest.mark.parametrize(
    ("x", "numbers", "title"),
    [
        ("", [10, 20], "step"), ("step", [10, 20], "step"), ("event", [1, 2], "event"), ("epoch", [1, 1], "epoch"),
        ("time", [0, 1], "seconds"), ("wall", [101, 102], "time"), ("loss", [0.5, 0.25], "loss"),
    ],
)  # fmt: skip
def test_a_line_is_drawn_over_the_chosen_column(x, numbers, title):
    stream = Stream("s", fields=("step", "epoch", "loss", "lr"))
    push(stream, [(10, 1, 0.5, 0.1), (20, 1, 0.25, 0.1)], clock=100.0)
    chart = make_chart(chosen_chart(stream), x=x)
    chart.add(stream)
    chart.pull()
    picture = chart.draw()
    assert {tuple(mark.x) for mark in picture.marks} == {tuple(numbers)}
    assert (picture.x.title, picture.x.time) == (title, x == "wall")


def test_a_column_that_values_lack_becomes_the_event_number_and_is_reported():
    picture = drawn([0.5, 0.25], draw={"x": "epoch"})
    assert picture.marks[0].x.tolist() == [1, 2]
    assert picture.badges == ("loss: has no 'epoch': it is drawn over the number of its event",)


def test_a_stream_of_several_ranks_has_a_line_for_each():
    stream = Stream("loss", fields=("step", "loss"))
    for number, (rank, step) in enumerate([(0, 1), (1, 1), (0, 2), (1, 2)], 1):
        value = (step, 10.0 * rank + step)
        stream.publish(Batch(number, array("q", [step]), array("d", [1.0]), [value], rank=rank))
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    lines = chart.draw().marks
    assert [(line.name, line.x.tolist(), line.y.tolist()) for line in lines] == [
        ("loss rank 0", [1, 2], [1, 2]),
        ("loss rank 1", [1, 2], [11, 12]),
    ]
    assert lines[0].color != lines[1].color


# ---------------------------------------------------------------- commands and restarts


def test_commands_are_drawn_at_their_events():
    stream = Stream("loss", on="batch", fields=("step", "loss"))
    push(stream, [(10 * n, 0.5) for n in range(5)], clock=100.0)
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    commands = Stream("commands")
    chart.commands.add(commands)
    chart.pull()
    assert chart.draw().rules == ()
    change = {"what": "set", "name": "lr", "old": 0.1, "new": 0.01, "outcome": "done", "event": "batch", "number": 3}
    refused = {"what": "set", "name": "lr", "outcome": "refused", "event": "", "number": 0, "wall": 102.0}
    push(commands, [change, refused, {"what": "stop", "outcome": "failed", "wall": 104.5}])
    assert chart.pull()
    assert [(rule.x, rule.text) for rule in chart.draw().rules] == [(20, "lr 0.1 → 0.01"), (35, "stop (failed)")]


@pytest.mark.parametrize(("x", "at"), [("event", 506.0), ("", 1012.0)])
def test_a_command_between_two_thinned_values_is_drawn_at_its_own_event(x, at):
    stream = Stream("lr", on="batch", fields=("step", "lr"))
    events = [1, 470, 590, 620]
    values = [(2 * event, 0.05 if event < 539 else 0.01) for event in events]
    stream.publish(Batch(1, array("q", events), array("d", map(float, events)), values, 100.0))
    chart = make_chart(chosen_chart(stream), x=x)
    chart.add(stream)
    chart.commands.add([{"what": "checkpoint", "outcome": "done", "event": "batch", "number": 506}])
    chart.pull()
    assert [rule.x for rule in chart.draw().rules] == [at]


def test_a_live_run_and_a_stored_one_of_its_name_are_distinguished():
    live, stored = Stream("loss"), Stream("loss")
    live.run = types.SimpleNamespace(name="toy", id="toy-b", info=types.SimpleNamespace(started=86_400.0, host="vm"))
    facts = {"directory": "/runs/toy", "started": 43_200.0, "host": "vm"}
    stored.run = types.SimpleNamespace(name="toy", id="toy-a", metadata=facts)
    names = [legend.name for legend in legends([[stored, live]]).values()]
    assert [re.fullmatch(r"toy 19\d\d-\d\d-\d\d [\d:]{8}", name) is not None for name in names] == [True, True]
    assert names[0] != names[1]


def test_a_restart_is_a_mark_and_a_gap_in_the_line():
    stream = Stream("loss", fields=("step", "loss"))
    push(stream, [(1, 1.0), (2, 2.0)])
    stream.feed.add_seam("run-1", "run-2", after=2)
    push(stream, [(1, 3.0), (2, 4.0)])
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    np.testing.assert_equal(chart.draw().marks[0].y, [1, 2, np.nan, 3, 4])
    assert [(rule.x, rule.text) for rule in chart.draw().rules] == [(1, "restart: run-2")]


def test_the_words_of_commands_have_precedence_over_those_of_the_budget():
    stream = Stream("loss", on="batch", fields=("step", "loss"))
    push(stream, [(step, 1.0) for step in range(1, 9)])
    stream.limited = (LimitedStretch(5, 6),)
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.commands.add([{"name": "lr", "old": 0.1, "new": 0.2, "outcome": "done", "event": "batch", "number": 2}])
    chart.pull()
    found = [(rule.x, rule.text) for rule in chart.draw().rules]
    assert found == [(5, "budget: fewer events"), (7, "budget: all events"), (2, "lr 0.1 → 0.2")]


def gapped(values, fields, chart="", *, name="loss"):
    """Return a chart of a stream without values 4 and 5, and an unknown gap after 7."""
    stream = Stream(name, fields=fields)
    push(stream, values[:3])
    push(stream, values[3:5], first=6)
    stream.feed.skip_to(7, unknown=True)
    push(stream, values[5:], first=8)
    made = make_chart(chosen_chart(stream, chart))
    made.add(stream, chart=chart)
    made.pull()
    return made


WITH_GAPS = {
    "a line": ([1.0, 2, 3, 6, 7, 8, 9], None, ""),
    "a line over steps": ([(n, float(n)) for n in (1, 2, 3, 6, 7, 8, 9)], ("step", "loss"), ""),
    "several lines": ([{"a": float(n), "b": 2.0 * n} for n in (1, 2, 3, 6, 7, 8, 9)], None, ""),
    "a line with notes": ([(n, float(n), "six" * (n == 6)) for n in (1, 2, 3, 6, 7, 8, 9)], None, "annotated"),
    "a band": ([(float(n), n + 1.0, n + 2.0) for n in (1, 2, 3, 6, 7, 8, 9)], ("lo", "mid", "hi"), ""),
    "a line in space": ([(float(n), float(n), float(n)) for n in (1, 2, 3, 6, 7, 8, 9)], None, "line3d"),
}


@pytest.mark.parametrize("kind", WITH_GAPS)
def test_no_line_bridges_missing_values(kind):
    chart = gapped(*WITH_GAPS[kind])
    picture = chart.draw()
    assert "2 values missing in 2 gaps" in " ".join(picture.badges)
    for mark in picture.marks:
        parts = [mark.low, mark.high] if isinstance(mark, Band) else [mark.y] if mark.z is None else [mark.y, mark.z]
        for part in parts:
            assert np.flatnonzero(np.isnan(part)).tolist() == [3, 6]
        if getattr(mark, "notes", ()):
            assert [(mark.x[at], mark.y[at], text) for at, text in mark.notes] == [(6, 6, "six")]


def test_a_point_between_two_gaps_is_seen():
    stream = Stream("loss")
    for first in (1, 3, 5):
        push(stream, [float(first)], first=first)
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    line, points = chart.draw().marks
    np.testing.assert_equal(line.y, [1, np.nan, 3, np.nan, 5])
    assert (type(points), points.y.tolist()) == (Points, [1, 3, 5])


@pytest.mark.parametrize("missing", [(), ("tsdownsample",)])
def test_gaps_and_extremes_stay_in_a_line_that_is_thinned(monkeypatch, missing):
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    stream = Stream("loss")
    push(stream, np.random.default_rng(0).random(30_000).tolist())
    push(stream, np.random.default_rng(1).random(30_000).tolist(), first=40_001)
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    (line,) = chart.draw().marks
    assert len(line.y) < 2 * MAX_DRAWN_POINTS
    (gap,) = np.flatnonzero(np.isnan(line.y))
    assert line.x[gap - 1] <= 30_000 < 40_001 <= line.x[gap]
    assert (line.x[0], line.x[-1]) == (1, 70_000)
    assert (np.nanmin(line.y) < 0.001, np.nanmax(line.y) > 0.999) == (True, True)


def test_a_query_that_was_evaluated_less_often_says_so_also_when_that_is_over():
    stream = Stream("norms")
    push(stream, [1.0, 2.0])
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    chart.pull()
    stream.thinned = True
    assert "norms: evaluated at fewer events for a while, to stay within the budget (budget=)" in chart.draw().badges


# ---------------------------------------------------------------- frames


def test_earlier_frames_can_be_shown_again():
    stream = Stream("weights")
    push(stream, [np.full(4, float(n)) for n in range(5)])
    chart = make_chart(chosen_chart(stream), keep=3)
    chart.add(stream)
    chart.pull()
    assert chart.draw().frame == (2, 3)
    assert [mark.opacity for mark in chart.draw().marks] == sorted(mark.opacity for mark in chart.draw().marks)
    assert chart.draw().marks[-1].y[0] == 4
    chart.show(0)
    assert chart.pull()
    assert (chart.draw().frame, chart.draw().marks[-1].y[0]) == ((0, 3), 2)
    assert chart.draw().badges == ("this is the frame of event 3, not the newest",)
    push(stream, [np.full(4, 9.0)])
    chart.pull()
    assert chart.draw().marks[-1].y[0] == 3, "the oldest that is kept, now that the shown one is gone"
    chart.show(None)
    assert (chart.draw().frame, chart.draw().marks[-1].y[0]) == ((2, 3), 9)


def test_a_film_has_a_picture_of_each_frame():
    chart = charted([np.full(4, float(n)) for n in range(3)], name="weights")
    chart.show(1)
    assert [picture.marks[-1].y[0] for picture in chart.film()] == [0, 1, 2]
    assert chart.draw().frame == (1, 3)
    assert len(charted([1.0, 2.0]).film()) == 1


def test_frames_are_bounded_in_bytes_and_the_newest_is_always_there():
    stream = stream_of([np.full((100, 100), float(n)) for n in range(20)], name="w")
    chart = make_chart(chosen_chart(stream), keep_bytes=250_000)
    chart.add(stream)
    chart.pull()
    assert chart.frames == 3
    assert chart.draw().marks[0].cells[0, 0] == 19


def test_two_streams_of_frames_show_the_same_moment():
    often, seldom = Stream("often"), Stream("seldom")
    for n in range(1, 7):
        often.publish(Batch(n, array("q", [n]), array("d", [float(n)]), [np.full(3, float(n))]))
    for n, at in enumerate((1, 4), 1):
        seldom.publish(Batch(n, array("q", [at]), array("d", [float(at)]), [np.full(3, 10.0 * at)]))
    chart = make_chart(chosen_chart(often))
    chart.add(often)
    chart.add(seldom)
    chart.pull()
    chart.show(2)
    tops = [mark.y[0] for mark in chart.draw().marks if mark.opacity == 1]
    assert tops == [3, 10]


# ---------------------------------------------------------------- the kinds


@pytest.mark.parametrize(
    ("values", "chart", "kinds"),
    [
        ([(1, 2, 3)] * 3, "", [Line]),
        ([("cat", 1), ("dog", 2), ("cat", 3)], "", [Bars]),
        ([{"lo": 1, "mid": 2, "hi": 3}], "", [Band, Line]),
        ([np.arange(5.0)], "", [Line]),
        ([np.arange(500.0)], "", [Bars]),
        ([1.0, 2.0, 2.0], "histogram", [Bars]),
        ([np.eye(3, dtype=int)], "", [Grid]),
        ([np.eye(3, 5)], "", [Grid]),
        ([np.random.default_rng(0).normal(size=(20, 2))], "", [Points]),
        ([(1, 2), (3, 4)], "scatter", [Points]),
        ([np.zeros((8, 8, 4))], "", [Images]),
        ([np.zeros((5, 8, 8))], "", [Images]),
        ([{"a": np.arange(9.0), "b": np.arange(9.0)}], "", [Line, Line]),
        ([{f"layer{i}": np.arange(9.0) for i in range(30)}], "", [Grid]),
        ([{"a": 1, "b": 3}], "pie", [Pie]),
        ([1, 2, 3], "summary", [Table]),
        ([{"a": 1, "b": "x"}], "", [Table]),
        ([(1, 2)], "table", [Table]),
        (["a", "b"], "", [Text]),
        ([object()], "", [Text]),
    ],
)
def test_a_kind_draws_its_marks(values, chart, kinds):
    picture = drawn(values, chart)
    assert [type(mark) for mark in picture.marks] == kinds
    assert picture.badges == ()


def test_bars_have_the_newest_number_of_each_label():
    (bars,) = drawn([("cat", 1), ("dog", 2), ("cat", 3)]).marks
    assert (bars.labels, bars.heights.tolist()) == (("cat", "dog"), [3, 2])


def test_an_annotated_line_keeps_its_notes_where_it_is_thinned():
    values = [(i, 0.5 * (i % 7), "spike" if i == 12_345 else "") for i in range(30_000)]
    (line,) = drawn(values).marks
    ((index, text),) = line.notes
    assert (line.x[index], text) == (12_345, "spike")
    assert len(line.x) <= MAX_DRAWN_POINTS + 1


def test_a_summary_says_what_numpy_says():
    data = np.random.default_rng(0).normal(3, 2, 1000)
    (table,) = drawn(data.tolist(), "summary").marks
    ((_, count, mean, spread, least, largest, newest),) = table.rows
    assert count == "1,000"
    want = [data.mean(), data.std(ddof=1), data.min(), data.max(), data[-1]]
    assert [float(figure) for figure in (mean, spread, least, largest, newest)] == pytest.approx(want, rel=1e-5)


def test_a_histogram_that_was_binned_in_the_job_is_drawn_as_it_came():
    (bars,) = drawn([(np.array([1, 2]), np.array([0.0, 1.0, 2.0]))]).marks
    assert (bars.heights.tolist(), bars.edges.tolist()) == ([1, 2], [0, 1, 2])


def test_images_of_any_numbers_become_bytes():
    shown = drawn([np.linspace(-1, 1, 8 * 8).reshape(1, 8, 8)])
    (image,) = shown.marks[0].images
    assert (image.dtype, image.shape, image.min(), image.max()) == (np.uint8, (8, 8, 3), 0, 255)
    assert shown.guess.startswith("Black is -0.98, white is 0.98. ")
    assert not shown.badges
    assert drawn([[(np.zeros((4, 4)), "seven"), (np.ones((4, 4)), 3)]]).marks[0].captions == ("seven", "3")


@pytest.mark.parametrize(
    ("value", "count", "shape"),
    [
        (torch.rand(64, 3, 3, 3), 64, (3, 3, 3)),
        (torch.rand(64, 3, 3, 3).numpy(), 64, (3, 3, 3)),
        (torch.rand(8, 16, 5, 5), 8, (5, 5, 3)),
        (torch.rand(8, 1, 28, 28), 8, (28, 28, 3)),
        (torch.rand(16, 3, 3), 16, (3, 3, 3)),
        (torch.rand(3, 16, 12), 1, (16, 12, 3)),
        (torch.zeros(4, 16, 12, 3, dtype=torch.uint8), 4, (16, 12, 3)),
        (np.zeros((4, 16, 12, 3), np.uint8), 4, (16, 12, 3)),
        (np.zeros((16, 12, 3)), 1, (16, 12, 3)),
    ],
)
def test_tensors_are_channels_first_and_bytes_of_numpy_last(value, count, shape):
    (images,) = drawn([value]).marks
    assert (len(images.images), images.images[0].shape) == (count, shape)


def test_pictures_of_one_value_share_a_robust_scale_that_is_said():
    values = np.linspace(-2, 2, 10_000).reshape(4, 1, 50, 50)
    values[0, 0, 0, 0] = 1e6
    picture = drawn([torch.from_numpy(values)])
    means = [image.mean() for image in picture.marks[0].images]
    assert means == sorted(means)
    assert means[3] - means[0] > 150
    assert picture.guess.startswith("Black is -1.96, white is 1.96. ")
    assert not picture.badges
    assert drawn([torch.linspace(0, 1, 64).reshape(1, 8, 8)]).badges == ()


def test_several_image_fields_are_side_by_side_and_the_prediction_comes_before_the_rest():
    row = {"by": 2.345, "image": torch.rand(3, 8, 8), "saliency": torch.rand(4, 4), "target": 7,
           "output": torch.eye(10)[3]}  # fmt: skip
    (images,) = drawn([[row] * 3]).marks
    assert images.captions == ("target 7, output 3, by 2.35, image | saliency",) * 3
    assert images.images[0].shape == (8, 8 + 2 + 8, 3)
    assert caption_lines("target 7, prediction 3, by 2.31", 10, 2) == ["target 7,", "predict… 3"]


@pytest.mark.parametrize(
    ("value", "fields", "captions"),
    [
        ({"a": (np.ones((8, 8)), "cat"), "b": (np.ones((8, 8)), "dog")}, None, ("a, cat", "b, dog")),
        ({"input": torch.rand(3, 8, 8), "rebuilt": torch.rand(3, 8, 8)}, None, ("input", "rebuilt")),
        ({"image": torch.rand(3, 8, 8), "target": 7}, None, ("target 7",)),
        ((torch.rand(3, 8, 8), torch.rand(3, 8, 8)), ("x", "rebuilt"), ("x", "rebuilt")),
        ((torch.rand(2, 3, 8, 8), torch.tensor([7, 3])), ("x", "y"), ("y 7", "y 3")),
        ((4, torch.rand(3, 8, 8)), ("step", "x"), ()),
    ],
)
def test_values_with_pictures_in_them_are_a_grid_with_captions(value, fields, captions):
    (images,) = drawn([value], fields=fields).marks
    assert images.captions == captions


def test_a_step_before_a_picture_of_numbers_is_not_in_the_picture():
    (grid,) = drawn([(1, np.eye(3, dtype=int))], fields=("epoch", "v1")).marks
    assert isinstance(grid, Grid)
    assert grid.written


def test_the_samples_that_a_query_picks_are_images_with_what_is_known_of_them():
    from looptap.streams.values.batch_helpers import batch_topk

    rows = batch_topk(2, np.array([0.1, 0.9, 0.5]), image=np.zeros((3, 8, 8)), target=np.array([4, 5, 6]))
    (images,) = drawn([rows]).marks
    assert [caption for caption in images.captions if "target 5" in caption]
    assert len(images.images) == 2


def test_an_unknown_field_or_axis_is_named():
    stream = stream_of([(1, 2)], name="s", fields=("step", "loss"))
    chart = make_chart(chosen_chart(stream))
    with pytest.raises(ValueError, match="axis='top' must be 'left' or 'right'"):
        chart.add(stream, axis="top")
    chart.add(stream, y=["lr"])
    chart.pull()
    chart.draw()
    (instead,) = chart.draw().marks
    assert instead.lines[0] == "s: has no 'lr'; there are step, loss"


def test_points_are_coloured_by_a_field():
    stream = stream_of([(1, 2, 0.5), (3, 4, 0.25)], name="s", fields=("x", "y", "loss"))
    chart = make_chart(chosen_chart(stream, "scatter"), x="x")
    chart.add(stream, chart="scatter", color="loss")
    chart.pull()
    (points,) = chart.draw().marks
    assert (points.x.tolist(), points.y.tolist(), points.values.tolist()) == ([1, 3], [2, 4], [0.5, 0.25])


def test_nothing_of_a_chart_grows_without_bound():
    chart = None
    stream = Stream("s", buffer=10)
    for n in range(3000):
        push(stream, [{f"key{n}": float(n)}])
        if chart is None:
            chart = make_chart(chosen_chart(stream))
            chart.add(stream)
        chart.pull()
    assert len(chart.series[0].data["names"]) == 200
    assert any("200 lines" in badge for badge in chart.draw().badges)


def test_a_chart_may_be_fed_drawn_and_changed_from_several_threads():
    stream = Stream("loss")
    push(stream, [1.0])
    chart = make_chart(chosen_chart(stream))
    chart.add(stream)
    errors, over = [], threading.Event()

    def work(what):
        try:
            while not over.is_set():
                what()
        except Exception as error:
            errors.append(error)

    def change():
        other = stream_of([1.0], name="other")
        chart.add(other)
        chart.remove(other)

    threads = [threading.Thread(target=work, args=(what,)) for what in (chart.pull, chart.draw, change)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        push(stream, [1.0] * 20)
    over.set()
    for thread in threads:
        thread.join(300)
    assert errors == []
    chart.pull()
    assert chart.draw().marks[0].x[-1] == 6001


def test_values_are_recognized_while_another_thread_imports_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # as it is at the start of its import
    monkeypatch.setattr("looptap.streams.values.snapshots._copiers", {})
    assert drawn([np.arange(3.0)]).marks[0].y.tolist() == [0, 1, 2]
    assert stream_of([1.0, 2.0]).to_numpy().tolist() == [1, 2]
    assert snapshot({"a": np.arange(2)})[0]["a"].tolist() == [0, 1]
    assert pack(frozenset({1}))


def test_an_invalid_png_is_a_badge():
    from looptap.streams.values.described import Image

    picture = drawn([Image(b"no png", 4, 4)])
    assert "1 value skipped: this is no PNG" in picture.marks[0].lines[0]


def test_a_picture_as_svg_knows_all_that_painters_ask_of_a_canvas():
    static = importlib.resources.files("looptap.visualizers.surfaces.pages") / "static"
    svg, *painters = (static.joinpath(name).read_text() for name in ("svg.js", "paint.js", "panels.js"))
    asked = {call for painter in painters for call in re.findall(r"\bctx\.(\w+)\(", painter)}
    assert "strokeText" in asked
    assert asked <= set(re.findall(r"^  (\w+)\(", svg, re.MULTILINE))
