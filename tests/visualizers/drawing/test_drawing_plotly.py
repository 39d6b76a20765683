"""Pictures by plotly: data in traces, updates in one batch, escaped texts."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest
from pictures import HOSTILE

from looptap.visualizers.drawing.backends.with_plotly import figure_of, update
from looptap.visualizers.drawing.picture import (
    Axis,
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
    VerticalLine,
)

X = np.arange(100.0)


def line(y, **more):
    return Picture((Line(X[: len(y)], np.array(y, float), name="loss", **more),))


def test_the_traces_hold_the_data_of_the_marks():
    points = Points(X, X + 1, values=X * 2)
    histogram = Bars(np.array([3.0, 4.0]), edges=np.array([0.0, 1.0, 3.0]))
    curve = Line(X, X**2, name="loss", dash="dot")
    figure = figure_of(Picture((curve, points, histogram, Grid(np.eye(3), ("a", "b", "c")))))
    curve, notes, dots, bars, cells = figure.data
    assert (curve.x == X).all()
    assert (curve.y == X**2).all()
    assert curve.line.dash == "dot"
    assert len(notes.x) == 0
    assert (dots.marker.color == X * 2).all()
    assert list(bars.x) == [0, 1]
    assert list(bars.width) == [1, 2]
    assert (cells.z == np.eye(3)).all()
    assert {trace.type for trace in figure.data} == {"scatter", "bar", "heatmap"}  # and none by WebGL


@pytest.mark.parametrize("log", [False, True])
def test_notes_keep_a_distance_from_their_line(log):
    x = np.arange(60.0)
    y = np.exp(-x / 6)
    line = Line(x, y, notes=((0, "first"), (30, "later")))
    _, notes = figure_of(Picture((line,), y=Axis("loss", log=log))).data
    assert list(notes.text) == ["first", "later"]
    assert (notes.x[0], notes.y[0]) != (0.0, 1.0)
    assert notes.y[1] > y[30] * 1.05
    assert notes.textposition[1] == "top right"


def test_an_update_sets_data_of_the_same_traces_in_one_message():
    widget = go.FigureWidget(figure_of(line(X)))
    before, sent = widget.data[0], []
    widget.observe(lambda change: sent.append(change["name"]), ["_py2js_update", "_py2js_restyle", "_py2js_relayout"])
    widget._py2js_update = None
    sent.clear()
    assert update(widget, line(X[::-1])) == "data"
    assert widget.data[0] is before
    assert (widget.data[0].y == X[::-1]).all()
    assert set(sent) == {"_py2js_update"}
    assert len(sent) <= 2  # sent, and emptied


def test_an_update_says_what_it_took_and_sends_nothing_that_is_the_same():
    figure = figure_of(line(X))
    assert update(figure, line(X + 1)) == "data"
    assert update(figure, Picture(line(X).marks, badges=("one value skipped",))) == "layout"
    assert update(figure, Picture((*line(X).marks, *line(X).marks))) == "structure"
    assert len(figure.data) == 4
    assert update(figure, Picture((Grid(np.eye(2)),))) == "structure"
    assert [trace.type for trace in figure.data] == ["heatmap"]
    assert "xaxis2" not in figure.layout.to_plotly_json()


@pytest.mark.parametrize("text", [text for text in HOSTILE if set(text) & set("<>&$%")])
def test_texts_of_a_job_are_shown_as_they_are(text):
    marks = (
        Line(X, X, name=text, notes=((3, text),)), Line(X, X, z=X, name=text, notes=((3, text),)), Bars([1.0], (text,)),
        Grid(np.eye(1), (text,), (text,), name=text), Pie([1.0], (text,)), Table((text,), ((text,),)), Text((text,)),
        Images((np.zeros((2, 2, 3), np.uint8),), (text,)),
    )  # fmt: skip
    axes = Axis(text)
    picture = Picture(marks, text, axes, axes, axes, axes, (VerticalLine(0, text),), (text,), text)

    def strings(value):
        if isinstance(value, dict):
            return [one for key, part in value.items() if key != "template" for one in strings(part)]
        return [one for part in value for one in strings(part)] if isinstance(value, list) else [value]

    found = [one for one in strings(json.loads(figure_of(picture).to_json())) if isinstance(one, str)]
    for one in found:
        bare = one.removeprefix("<b>").removesuffix("</b>")
        assert not set(bare) & set("<>$"), one
        assert one == "%{text}" or "%{" not in one, one


def test_a_trace_is_never_longer_than_2000_points_and_keeps_its_peaks():
    y = np.zeros(50_000)
    y[[12_345, 31_000]] = 9, -9
    long = np.arange(50_000.0)
    figure = figure_of(Picture((Line(long, y), Band(long, y, y + 1), Points(long, y), Grid(np.zeros((900, 900))))))
    assert all(len(trace.x) <= 2003 for trace in figure.data)
    assert (figure.data[0].y.max(), figure.data[0].y.min()) == (9, -9)
    assert figure.data[-1].z.shape == (225, 225)
    assert "225 × 225 of 900 × 900 cells" in [one.text for one in figure.layout.annotations]


def test_axes_dates_rules_and_the_right_side():
    marks = Line(1.75e9 + X, X), Line(1.75e9 + X, 10**X, side="right")
    right, rules = Axis("much", log=True, low=1.0), (VerticalLine(1.75e9 + 9, "stop"),)
    picture = Picture(marks, x=Axis("when", time=True), right=right, rules=rules)
    figure = figure_of(picture)
    assert figure.layout.xaxis.type == "date"
    assert figure.data[0].x[0].startswith("2025-06-15T")
    assert figure.data[2].yaxis == "y101"
    assert figure.layout.yaxis101.type == "log"
    assert figure.layout.yaxis101.range == (0.0, None)
    assert figure.layout.shapes[0].x0 == figure.data[0].x[9]


def test_several_pictures_have_axes_of_their_own_that_do_not_overlap():
    figure = figure_of(line(X), Picture((Line(X, X, z=X), Grid(np.eye(2)))), rows=1)
    assert [trace.type for trace in figure.data] == ["scatter", "scatter", "scatter3d", "scatter3d", "heatmap"]
    assert figure.data[2].scene == "scene2"
    assert figure.layout.xaxis.domain[1] < figure.layout.scene2.domain.x[0]
    assert figure.layout.scene2.domain.x[1] < figure.layout.xaxis3.domain[0]
