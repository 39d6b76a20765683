"""Two streams on one chart are readable, or refused with the way out."""

import itertools
import math
from array import array

import numpy as np
import pytest

from looptap.streams.stream.buffer import Batch
from looptap.streams.stream.stream import Stream, stream_of
from looptap.visualizers.charts.chart import IncompatibleStreams
from looptap.visualizers.charts.registry import KINDS
from looptap.visualizers.charts.scales import MAX_SCALE_RATIO
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.drawing.backends.with_matplotlib import draw, new_figure
from looptap.visualizers.drawing.backends.with_plotly import figure_of
from looptap.visualizers.drawing.backends.with_text import drawn_text as text_of
from looptap.visualizers.drawing.layouts import panels
from looptap.visualizers.drawing.picture import Axis, Bars, Grid, Line, Picture, Points
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.pages.frames import frame_of

RANDOM = np.random.default_rng(0)
LOSSES = [2.0 / (1 + step / 20) for step in range(200)]
STREAMS = {
    "numbers": (LOSSES, (), ""),
    "line": (list(enumerate(LOSSES)), ("step", "loss"), ""),
    "large line": ([(step, 1000 * loss) for step, loss in enumerate(LOSSES)], ("step", "norm"), ""),
    "epochs": ([(epoch, 1.0 / epoch) for epoch in range(1, 9)], ("epoch", "val_loss"), ""),
    "tokens": ([(4096 * step, loss) for step, loss in enumerate(LOSSES)], ("tokens", "loss"), ""),
    "line3d": ([(step, loss, loss**2) for step, loss in enumerate(LOSSES)], (), ""),
    "annotated": ([(step, 0.5, "a" * (step == 3)) for step in range(9)], ("step", "loss", "note"), ""),
    "annotated3d": ([(step, 0.5, 2.0, "a" * (step == 3)) for step in range(9)], (), ""),
    "bars": ([("cat", 3.0), ("dog", 4.0)], (), ""),
    "bars of a dict": ([{0: 0.1, 1: 0.2}], (), ""),
    "band": ([(step, 1.0, 2.0, 3.0) for step in range(9)], ("step", "q10", "q50", "q90"), ""),
    "curve": ([RANDOM.normal(size=60)], (), ""),
    "long curve": ([1000 * RANDOM.normal(size=20)], (), ""),
    "histogram": ([RANDOM.normal(size=3000)], (), ""),
    "wide histogram": ([5000 * RANDOM.normal(size=20_000)], (), ""),
    "confusion": ([np.eye(3, dtype=int)], (), ""),
    "scatter": ([RANDOM.normal(size=(30, 2))], (), ""),
    "wide scatter": ([1000 * RANDOM.normal(size=(30, 2))], (), ""),
    "scatter of steps": (list(enumerate(LOSSES)), ("step", "loss"), "scatter"),
    "scatter3d": ([RANDOM.normal(size=(30, 3))], (), ""),
    "heatmap": ([RANDOM.normal(size=(4, 5))], (), ""),
    "image": ([RANDOM.random((8, 8, 3))], (), ""),
    "images": ([RANDOM.random((3, 8, 8, 3))], (), ""),
    "layers": ([{f"layer{i}": 1.0 for i in range(12)}] * 3, (), ""),
    "flow": ([{f"layer{i}": 1.0 for i in range(12)}] * 3, (), "flow"),
    "ridgeline": ([{"fc": RANDOM.normal(size=400), "out": RANDOM.normal(size=400)}], (), ""),
    "other ridgeline": ([{"out": RANDOM.normal(size=400), "head": np.zeros(4)}], (), ""),
    "text": (["one", "two"], (), ""),
    "table": ([{"a": 1, "b": "c"}], (), ""),
    "summary": (LOSSES, (), "summary"),
    "pie": ([{"a": 1, "b": 2}], (), "pie"),
    "parallel": ([[{"lr": 0.1, "loss": 0.5}, {"lr": 0.2, "loss": 0.4}]], (), "parallel"),
}
PAIRS = list(itertools.combinations_with_replacement(STREAMS, 2))
COUNTED = {"step", "epoch", "event", "batch", "tokens"}


def stream(what, name):
    values, fields, _ = STREAMS[what]
    return stream_of(values, name=name, fields=fields)


def overlay(one, other):
    """Return the plot of both streams on one chart, each as its kind."""
    first, second = (STREAMS[what][2] for what in (one, other))
    plot = Plot(stream(one, "first"), chart=first)
    plot.add(stream(other, "second"), to=0, chart=second)
    plot.pull()
    return plot


def tried(one, other):
    """Return the plot, or None and why the second is refused."""
    try:
        return overlay(one, other), ""
    except IncompatibleStreams as error:
        return None, str(error)


def largest(column):
    known = np.abs(column[np.isfinite(column)])
    return float(known.max()) if known.size else 0.0


def sizes(picture, across="", side=""):
    """Return the largest magnitude of each named mark along one axis."""
    found = []
    for mark in picture.marks:
        if not getattr(mark, "name", "") or (across or side) not in (mark.across, mark.side):
            continue
        if isinstance(mark, Bars):
            column = mark.heights if side else mark.edges
        else:
            column = getattr(mark, "high" if side and hasattr(mark, "high") else "y" if side else "x")
        if column is not None:
            found.append(largest(column))
    return [size for size in found if size]


def check_readable(picture):
    """No stream is too small to be seen beside another on its axes."""
    planar = [panel for panel in panels(picture) if panel.kind == "plane"]
    assert len(planar) < 2
    if not planar or isinstance(picture.marks[0], Grid) or picture.y.ticks:
        return
    for across, axis in (("bottom", picture.x), ("top", picture.top)):
        found = sizes(picture, across=across)
        assert (axis is not None) >= bool(found), across
        if found and axis.title.split(" (")[0] not in COUNTED:
            assert max(found) / min(found) <= MAX_SCALE_RATIO, (across, found)
    for side, axis in (("left", picture.y), ("right", picture.right)):
        found = sizes(picture, side=side)
        assert (axis is not None) >= bool(found), side
        assert not found or axis.log or max(found) / min(found) <= MAX_SCALE_RATIO, (side, found)
    titles = [axis.title for axis in (picture.x, picture.top, picture.right) if axis is not None]
    assert len(set(titles)) == len(titles), titles


@pytest.mark.promise("charts")
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[" and ".join(pair) for pair in PAIRS])
def test_each_pair_of_charts_is_readable_or_refused_with_the_way_out(one, other):
    plot, refused = tried(one, other)
    if plot is None:
        assert all(words in refused for words in ("'first'", "'second'", "a chart of its own"))
        return
    (picture,) = plot.pictures()
    assert not [badge for badge in picture.badges if "cannot be drawn" in badge]
    check_readable(picture)
    assert frame_of(picture).layout["panels"]


def test_every_kind_is_tried():
    tried = {Plot(stream(what, "a"), chart=STREAMS[what][2]).cells[0].chart.kind for what in STREAMS}
    assert tried >= set(KINDS) - {"tsne", "umap"}


SEEN = [("line", "histogram"), ("histogram", "line"), ("line", "curve"), ("line", "epochs"), ("scatter", "line"),
        ("histogram", "wide histogram"), ("ridgeline", "other ridgeline"), ("band", "histogram"), ("curve", "scatter"),
        ("bars", "bars of a dict"), ("line3d", "scatter3d")]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SEEN, ids=[" and ".join(pair) for pair in SEEN])
def test_overlays_are_drawn_by_matplotlib_and_plotly(one, other):
    (picture,) = overlay(one, other).pictures()
    drawing = draw(picture, new_figure())
    drawing.figure.canvas.draw()
    assert drawing.update(picture) == "data"
    assert figure_of(picture).data
    text = text_of(picture, 100, 30, color=False)
    assert all(axis.title[:20] in text for axis in (picture.x, picture.top) if axis is not None)


def test_a_histogram_and_a_line_have_axes_of_their_own_on_both_sides():
    (picture,) = overlay("line", "histogram").pictures()
    line, bars = picture.marks
    assert isinstance(bars, Bars)
    assert isinstance(line, Line)
    assert (line.across, line.side) == ("bottom", "left")
    assert (bars.across, bars.side) == ("top", "right")
    assert bars.opacity < 0.5
    titles = [axis.title for axis in (picture.x, picture.y, picture.top, picture.right)]
    assert titles == ["step (first)", "first", "second", "count (second)"]


def test_a_histogram_behind_a_line_has_another_colour_and_the_line_is_solid():
    for name in [f"one of {len(COLORS)} colours, {place}" for place in range(len(COLORS))]:
        plot = Plot(stream_of([(n, float(n)) for n in range(9)], name=name, fields=("step", name)), chart="line")
        plot.add(stream("histogram", "second"), to=0, chart="histogram")
        plot.pull()
        line, bars = plot.pictures()[0].marks
        assert line.dash == "solid"
        assert line.color != bars.color


def test_the_line_is_below_whichever_comes_first():
    pictures = [overlay(*pair).pictures()[0] for pair in (("line", "histogram"), ("histogram", "line"))]
    assert [picture.x.title.split(" ")[0] for picture in pictures] == ["step", "step"]


def test_each_axis_has_the_limits_of_what_stands_on_it():
    (picture,) = overlay("line", "histogram").pictures()
    view = draw(picture, new_figure()).views[0]
    low, high = view.planes["bottom", "left"].get_xlim()
    assert low <= 0
    assert 199 <= high < 230
    low, high = view.planes["top", "right"].get_xlim()
    assert -6 < low < -2
    assert 2 < high < 6
    assert view.planes["top", "right"].get_ylim()[1] > 100
    assert view.planes["bottom", "left"].get_ylim()[1] < 3


def test_steps_and_epochs_have_an_axis_each_and_one_time_for_both():
    (picture,) = overlay("line", "epochs").pictures()
    assert picture.x.title == "step (first)"
    assert picture.top.title == "epoch (second)"
    assert picture.right is None  # both are losses of one scale
    plot = Plot((stream("line", "first"), stream("epochs", "second")), x="time")
    plot.pull()
    (picture,) = plot.pictures()
    assert (picture.x.title, picture.top) == ("seconds", None)


def test_steps_and_the_numbers_of_events_are_the_same_axis():
    (picture,) = overlay("line", "numbers").pictures()
    assert picture.top is None
    assert len(picture.marks) == 2


def of_runs(*columns, name="optimizer.lr", fields=(), **how):
    """Return the picture of the same stream of several runs."""
    plot = Plot(tuple(stream_of(list(column), name=name, fields=fields) for column in columns), **how)
    plot.pull()
    (picture,) = plot.pictures()
    return picture


def filled(name, values, **how):
    """Return a stream that can get more values."""
    stream = Stream(name, **how)
    count = len(values)
    stream.publish(Batch(1, array("q", range(1, count + 1)), array("d", [0.0] * count), values))
    return stream


def of_streams(*streams):
    """Return the picture of streams on one chart."""
    plot = Plot(streams)
    plot.pull()
    return plot.pictures()[0]


def heights(picture):
    """Return the ends of the left y axis as matplotlib draws it."""
    return draw(picture, new_figure()).views[0].planes["bottom", "left"].get_ylim()


def test_one_quantity_of_several_runs_has_one_axis_whatever_its_scale():
    picture = of_runs([0.1] * 9, [80.0] * 9)
    assert (picture.right, picture.y.log) == (None, True)  # two axes would draw the lines on each other
    low, high = heights(picture)
    assert low < 0.1
    assert high > 80
    for values in ([0.0, 0.1, 0.2], [-0.1, 0.1, 0.2]):
        picture = of_runs(values, [80.0] * 3)
        assert (picture.right, picture.y.log) == (None, False)
        assert heights(picture)[1] > 80
    assert of_runs([0.1] * 9, [80.0] * 9, log="").y.log is False
    pairs = [[(step, rate) for step in range(9)] for rate in (0.1, 80.0)]
    assert of_runs(*pairs, fields=("step", "lr")).right is None
    rows = [[(step, rate, 1.0 + step) for step in range(9)] for rate in (0.1, 80.0)]
    picture = of_runs(*rows, fields=("step", "lr", "loss"))
    assert (picture.right, picture.y.log) == (None, True)
    one, other = (filled(name, [rate] * 9, text="lr(optimizer)") for rate, name in ((0.1, "a"), (80.0, "b")))
    assert of_streams(one, other).right is None  # one query, whatever the streams are called


def test_two_quantities_of_several_runs_have_an_axis_each():
    rates, losses = ([stream_of(column, name=name) for column in columns] for name, columns in (
        ("lr", ([0.1] * 9, [0.2] * 9)), ("loss", ([0.0, 500.0], [math.nan, math.nan]))
    ))  # fmt: skip
    picture = of_streams(*rates, *losses)
    sides = {mark.side for mark in picture.marks if "loss" in mark.name}
    assert sides == {"right"}  # also that of the run that has diverged
    assert picture.right.title


def test_a_logarithmic_axis_of_one_quantity_does_not_flicker():
    streams = [filled("lr", [value]) for value in (1.0, 31.0)]
    plot = Plot(streams)
    plot.pull()
    assert plot.pictures()[0].y.log
    streams[0].publish(Batch(2, array("q", [2]), array("d", [0.0]), [1.6]))
    plot.pull()
    assert plot.pictures()[0].y.log
    assert not of_runs([1.6], [31.0]).y.log


def test_histograms_of_one_quantity_have_one_axis_along_x():
    picture = of_runs([RANDOM.normal(size=3000)], [5000 * RANDOM.normal(size=20_000)], name="gradients")
    assert (picture.top, picture.right) == (None, None)


def test_a_third_x_is_not_drawn_and_says_how_it_can_be():
    plot = Plot((stream("line", "a"), stream("epochs", "b"), stream("tokens", "c")))
    plot.pull()
    (picture,) = plot.pictures()
    assert {mark.name for mark in picture.marks} == {"a", "b"}
    (badge,) = picture.badges
    assert "c is over tokens" in badge
    assert "x='time'" in badge


def test_a_third_kind_of_axis_is_refused():
    plot = Plot((stream("line", "a"), stream("histogram", "b")))
    with pytest.raises(IncompatibleStreams, match=r"one x axis below and one above.*a chart of its own"):
        plot.add(stream("curve", "c"), to=0)
    plot.pull()
    assert len(plot.pictures()[0].marks) == 2


def test_bars_with_labels_share_their_axis_with_nothing_else():
    with pytest.raises(IncompatibleStreams, match=r"bars have labels along x"):
        overlay("bars", "line")


def test_a_place_that_was_asked_for_is_kept():
    plot = Plot(stream("line", "a"))
    plot.add(stream("epochs", "b"), to=0, axis="right")
    plot.pull()
    (picture,) = plot.pictures()
    assert {mark.name: mark.side for mark in picture.marks} == {"a": "left", "b": "right"}
    assert picture.right.title == "b"


def test_a_picture_without_an_axis_for_a_mark_gets_one():
    line = Line(np.arange(3.0), np.arange(3.0), name="a")
    points = Points(np.arange(300.0), np.arange(3.0), name="b", across="top", side="right")
    picture = Picture((line, points), x=Axis("x"))
    drawing = draw(picture, new_figure())
    assert drawing.picture.top is not None
    assert drawing.picture.right is not None
    assert text_of(picture, 80, 20, color=False)
    assert frame_of(picture).layout["top"] is not None


def test_the_fields_of_a_query_need_no_further_name_unless_two_streams_have_one():
    def unnamed(values, query):
        found = stream_of(values, name=query, fields=query.split(", "))
        found.text = query
        return found

    train = unnamed([(step, 0.5) for step in range(9)], "step, loss")
    test = unnamed([(epoch, 0.5, 0.9) for epoch in range(1, 4)], "epoch, val_loss, val_acc")
    plot = Plot((train, test))
    plot.pull()
    (picture,) = plot.pictures()
    assert [mark.name for mark in picture.marks] == ["loss", "val_loss", "val_acc"]
    assert picture.top.title == "epoch (val_loss, val_acc)"
