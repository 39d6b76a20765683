"""How a chart is looked at: logarithmic axes, smoothing, limits."""

from __future__ import annotations

import numpy as np
import pytest

import looptap
from looptap.visualizers.data.smoothing import smoothed
from looptap.visualizers.plot import Plot

FALLING = 10.0 ** -np.arange(5.0)
NOISE = np.random.default_rng(0).normal(size=5000)


def drawn(values, **how):
    """Return the picture of a line."""
    plot = Plot(looptap.stream_of([float(value) for value in values], name="loss"), **how)
    plot.pull()
    return plot, plot.pictures()[0]


@pytest.mark.parametrize(("values", "log"), [
    (FALLING, True), (FALLING[:3], False), ([0.0, 1e9], False), ([-1e-9, 1e9], False), ([1.0, float("nan"), 1e4], True),
])  # fmt: skip
def test_an_axis_is_logarithmic_where_a_positive_series_spans_more_than_three_decades(values, log):
    assert drawn(values)[1].y.log is log


def test_the_user_decides_which_axes_are_logarithmic():
    for asked, x, y in (("", False, False), ("x", True, False), ("y", False, True), ("xy", True, True)):
        picture = drawn(FALLING, log=asked)[1]
        assert (picture.x.log, picture.y.log) == (x, y)
    plot, _ = drawn(FALLING)
    plot.cells[0].chart.view.log = ""
    assert plot.pull()  # the picture is another
    assert not plot.pictures()[0].y.log


def test_numbers_that_a_logarithmic_axis_has_no_place_for_are_counted():
    picture = drawn([1.0, -1.0, 0.0, 2.0], log="y")[1]
    assert picture.badges == (
        "2 of the drawn numbers are not positive: a logarithmic axis has no place for them (log='')",
    )  # fmt: skip
    assert drawn([1.0, -1.0])[1].badges == ()


def test_a_logarithmic_axis_is_kept_while_the_series_moves_a_little():
    stream = looptap.stream_of([1e-4, 1.0], name="loss")
    plot = Plot(stream)
    plot.pull()
    chart = plot.cells[0].chart
    assert plot.pictures()[0].y.log
    chart.series[0].data["ring"].columns[5][:] = [2e-3, 1.0]  # 2.7 decades
    assert plot.pictures()[0].y.log
    chart.series[0].data["ring"].columns[5][:] = [0.1, 1.0]
    assert not plot.pictures()[0].y.log


def test_smoothing_draws_the_debiased_average_of_all_values_over_the_faint_line():
    plot, picture = drawn(NOISE, smooth=0.9)
    faint, average = picture.marks
    assert (faint.name, average.name) == ("", "loss")
    assert faint.opacity < 0.5
    assert average.opacity == 1
    assert average.color == faint.color
    places = np.searchsorted(np.arange(1, len(NOISE) + 1), average.x)
    assert np.allclose(average.y, smoothed(NOISE, 0.9)[places])  # of all values, not of those drawn
    assert [mark.name for mark in plot.pictures(raw=True)[0].marks] == ["loss"]


@pytest.mark.parametrize("weight", [0.01, 0.5, 0.99, 0.9999])
def test_the_average_is_the_one_of_the_definition(weight):
    values = np.where(np.arange(len(NOISE)) % 11 == 5, np.nan, NOISE)
    average, count, expected = 0.0, 0, []
    for value in values:
        if np.isfinite(value):
            average, count = weight * average + (1 - weight) * value, count + 1
        expected.append(average / (1 - weight**count) if np.isfinite(value) else np.nan)
    assert np.allclose(smoothed(values, weight), expected, rtol=1e-9, equal_nan=True)


def test_outliers_do_not_count_for_the_limits_and_limits_are_the_users():
    values = np.r_[NOISE, 1e6]
    assert drawn(values)[1].y.high is None
    assert 3 < drawn(values, clip=True)[1].y.high < 10
    assert drawn(values, clip=True, ylim=(-1, 2))[1].y.high == 2
    picture = drawn(values, xlim=(10, None), ylim=(None, 5))[1]
    assert (picture.x.low, picture.x.high, picture.y.low, picture.y.high) == (10, None, None, 5)


@pytest.mark.parametrize(("how", "message"), [
    ({"log": "z"}, r"log='z' must be 'x', 'y', 'xy', or ''"),
    ({"smooth": 1.0}, r"smooth=1\.0 must be at least 0 and less than 1"),
    ({"ylim": (1, 1)}, r"ylim=\(1, 1\) must have its lower end first"),
    ({"xlim": "ab"}, r"xlim='ab' must be \(low, high\)"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(how, message):
    with pytest.raises(ValueError, match=message):
        Plot(looptap.stream_of([1.0]), **how)
