"""What names, dtypes and shapes say about values, as a chart reads them."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numpy as np
import pytest
import torch

from looptap.client.line_figures import figures_of
from looptap.streams.counts import count_of
from looptap.streams.stream.stream import stream_of
from looptap.visualizers.charts.axes import spread
from looptap.visualizers.charts.choice import choose
from looptap.visualizers.data.colors import COLORS, DASHES, Palette
from looptap.visualizers.data.numbers import as_array, floats, is_number, number
from looptap.visualizers.drawing.picture import Images, Line, Pie
from looptap.visualizers.plot import Plot


def drawn(values, chart="", *, name="loss", fields=(), query="", **how):
    """Return the picture of a stream of values."""
    stream = stream_of(values, name=name, fields=fields)
    stream.text = query
    plot = Plot(stream, chart=chart, **how)
    plot.pull()
    return plot.pictures()[0]


# ---------------------------------------------------------------- names that count


@pytest.mark.parametrize(
    "name",
    ["it", "iter", "global_step", "trainer/global_step", "self.state.global_step", "batchIdx", "train_step", "n_iter",
     "tokens_seen", "samples", "num_batches", "current_epoch", "epoch_id", "timestamp", "t", "clock", "episode"],
)  # fmt: skip
def test_a_name_that_counts_is_x(name):
    assert count_of(name)
    picture = drawn([(0.5 + place, 0.1, 0.2) for place in range(5)], fields=(name, "loss", "acc"))
    assert picture.x.title == name
    assert [mark.name for mark in picture.marks] == ["loss", "acc"]


@pytest.mark.parametrize("name", ["step_time", "batch_size", "loss_step", "steps_per_second", "epoch_loss", "val_loss"])
def test_a_name_that_only_contains_a_count_is_a_line(name):
    assert not count_of(name)
    picture = drawn([(0.5, 0.1, 0.2)] * 5, fields=(name, "loss", "acc"))
    assert picture.x.title == "event"
    assert len(picture.marks) == 3


def test_time_stamps_are_dates_and_durations_are_numbers():
    assert drawn([(1.76e9 + place, 0.5) for place in range(5)], fields=("timestamp", "loss")).x.time
    assert drawn([(1.76e9 + place, 0.5) for place in range(5)], fields=("time", "loss")).x.time
    assert not drawn([(12.0 + place, 0.5) for place in range(5)], fields=("time", "loss")).x.time


def test_the_values_of_an_epoch_stand_one_after_the_other_in_it():
    values = [(epoch, float(place)) for place, epoch in enumerate(np.repeat([1, 2, 3], 10).tolist())]
    picture = drawn(values, fields=("epoch", "loss"))
    (line,) = picture.marks
    np.testing.assert_allclose(line.x, 1 + np.arange(30) / 10)
    assert "loss: epoch repeats: its values are drawn one after the other" in picture.badges
    picture = drawn(values[:2] + values[10:12] + values[20:], fields=("epoch", "loss"), x="event")
    assert not picture.badges


def test_epochs_with_fractions_and_single_values_stay_where_they_are():
    x = np.array([0.5, 1.0, 1.5, 2.0, 2.0])
    assert spread(x) is x
    nan = np.array([np.nan, np.nan, np.nan, np.nan])
    np.testing.assert_equal(spread(nan), nan)
    assert spread(np.empty(0)).size == 0
    newest = spread(np.repeat([1.0, 2.0], [6, 3]))
    assert newest[-1] == pytest.approx(2 + 2 / 6)  # it is not over yet


# ---------------------------------------------------------------- dtypes

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    "wrap",
    [lambda one: [one], lambda one: [one, one], lambda one: (one, one)],
    ids=["a list of one", "a list", "a tuple"],
)
def test_tensors_in_lists_are_numbers_of_any_dtype(dtype, wrap):
    one = torch.ones(()).to(dtype)
    picture = drawn([wrap(one), wrap(one)])
    assert not [badge for badge in picture.badges if "skipped" in badge]
    assert any(isinstance(mark, Line) and 1.0 in mark.y for mark in picture.marks)
    assert number(one) == 1.0
    assert floats([[one, one], [one, one]]).tolist() == [[1, 1], [1, 1]]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_rare_tensors_are_read_or_refused_in_a_sentence():
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    assert floats(quantized) == pytest.approx(1.0)
    assert number(quantized[0]) == pytest.approx(1.0)
    assert floats(torch.ones(3).to_sparse()).tolist() == [1, 1, 1]
    assert floats([torch.ones(2, requires_grad=True), torch.ones(2)]).shape == (2, 2)
    assert floats(torch.ones(2, dtype=torch.complex64).conj()).tolist() == [1, 1]
    assert floats(torch.empty(0)).size == 0
    assert as_array(torch.tensor(True)).item() is True
    with pytest.raises(TypeError, match="cannot be read"):
        floats(torch.empty(3, device="meta"))


def test_numbers_of_numpy_that_python_lacks():
    assert number(np.longdouble("1.5")) == 1.5
    assert number(np.clongdouble(3 + 4j)) == 5.0
    assert number(np.float16(0.5)) == 0.5
    assert floats(np.array([1, 2], np.longdouble)).tolist() == [1, 2]
    assert drawn([np.longdouble(i) for i in range(3)]).marks[0].y.tolist() == [0, 1, 2]


def test_small_floats_of_ml_dtypes_are_numbers():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="SMALL FLOATS OF NUMPY ARE NOT TESTED: no ml_dtypes")
    one = np.ones(3, ml_dtypes.bfloat16)
    assert is_number(one[0])
    assert floats(one).tolist() == [1, 1, 1]
    assert drawn([one]).marks[0].y.tolist() == [1, 1, 1]


# ---------------------------------------------------------------- nested values

Stats = namedtuple("Stats", ["weights", "gradients"])
ARRAY = np.random.default_rng(0).normal(size=500)


@pytest.mark.parametrize(
    ("value", "fields", "layers"),
    [
        (Stats(ARRAY, 2 * ARRAY), (), ["weights", "gradients"]),
        ((ARRAY, 2 * ARRAY), ("model[0].weight", "model[3].weight"), ["model[0].weight", "model[3].weight"]),
        ({"fc": {"weight": ARRAY, "bias": ARRAY}, "out": {"bias": ARRAY}}, (), ["fc.weight", "fc.bias", "out.bias"]),
        (Stats(torch.ones(300).bfloat16(), torch.randn(300)), (), ["weights", "gradients"]),
    ],
)
def test_arrays_with_names_are_ridges(value, fields, layers):
    picture = drawn([value, value], fields=fields)
    assert [name for _, name in picture.y.ticks] == layers
    assert not [badge for badge in picture.badges if "skipped" in badge]


def test_a_ridge_says_its_layer_and_newest_numbers_and_one_number_is_a_spike():
    first, second = np.random.default_rng(0).normal(0.1, 0.02, size=(2, 4000))
    picture = drawn([{"fc": first, "bias": np.zeros(8), "none": np.empty(0)}, {"fc": second, "bias": np.zeros(8)}])
    assert picture.y.title == ""
    assert picture.y.ticks == ((1.0, "fc"), (0.0, "bias"))
    newest = [mark for mark in picture.marks if mark.filled is not None]
    assert [mark.notes[0][1] for mark in newest] == ["0.1 ± 0.02", "0 ± 0"]
    widest = max(np.nanmax(mark.x) for mark in picture.marks)
    assert widest < 0.3  # the zeros of the bias take no room
    assert all(np.isfinite(mark.y).all() for mark in picture.marks)


# ---------------------------------------------------------------- what stands beside


def test_a_pie_of_many_has_a_colour_for_each_slice():
    (pie,) = drawn([{f"digit {i}": 1.0 + i for i in range(10)}], "pie").marks
    assert isinstance(pie, Pie)
    assert pie.labels == (*(f"digit {i}" for i in range(4, 10)), "4 others")
    assert pie.shares.sum() == 55
    (pie,) = drawn([{f"digit {i}": 1.0 for i in range(7)}], "pie").marks
    assert len(pie.labels) == len(COLORS)


def test_two_lines_have_no_neighbouring_colours():
    for before in range(14):
        palette = Palette()
        for i in range(before):
            palette.color(f"earlier {i}")
        first = palette.color("first")
        second, dash = palette.look("second", [(first, "solid")])
        assert {COLORS.index(first), COLORS.index(second)} not in ({0, 4}, {1, 5})
        assert dash == "solid"
    palette = Palette()
    known = [palette.color(f"name {i}") for i in range(7)]
    assert palette.look("name 4", [(known[0], "solid")]) == (known[4], DASHES[1])  # it keeps its colour


def test_a_badge_does_not_repeat_the_query():
    query = "step, loss, norm(model[8].weight.grad)"
    stream = stream_of([(1, 0.5, float("nan"))], name=query, fields=("step", "loss", "norm"))
    stream.text = query
    plot = Plot(stream)
    plot.pull()
    assert plot.pictures()[0].badges == ("1 number is NaN or infinite",)
    plot.add(stream_of([0.5], name="other"), to=0)
    plot.pull()
    (badge,) = plot.pictures()[0].badges
    assert badge.endswith(": 1 number is NaN or infinite")
    assert len(badge) < 80


def test_the_caption_of_a_ranked_sample_says_what_it_is_ranked_by():
    rows = [{"by": 4.85, "image": np.zeros((8, 8)), "target": 7}]
    (images,) = drawn([rows], query="batch_topk(9, e.losses, image=e.image, target=e.target)").marks
    assert isinstance(images, Images)
    assert images.captions == ("target 7, loss 4.85",)
    (images,) = drawn([rows], query="rows").marks
    assert images.captions == ("target 7, by 4.85",)


# ---------------------------------------------------------------- odd pictures and scales


@pytest.mark.parametrize(
    ("value", "count", "shape"),
    [
        (np.random.default_rng(0).integers(0, 255, (24, 32, 3)).astype(np.uint8), 1, (24, 32, 3)),
        (torch.rand(1, 3, 3, 3), 1, (3, 3, 3)),
        (torch.rand(5, 16, 24), 5, (16, 24, 3)),
        (torch.rand(1, 28, 28), 1, (28, 28, 3)),
        (torch.rand(4, 1, 28, 28), 4, (28, 28, 3)),
        (np.array([[[np.nan, 0.5, np.inf]] * 8] * 8), 1, (8, 8, 3)),
    ],
    ids=["hwc bytes", "1333", "nhw", "gray", "n1hw", "nan"],
)
def test_pictures_of_odd_shapes(value, count, shape):
    (images,) = drawn([value]).marks
    assert isinstance(images, Images)
    assert len(images.images) == count
    assert images.images[0].shape == shape


def test_a_scale_of_logarithms_without_a_positive_number_stays_linear():
    picture = drawn([-1.0, -2.0, -3.0], log="y")
    assert not picture.y.log
    assert any("no number is positive" in badge for badge in picture.badges)
    assert drawn([-1.0, 2.0, 3.0], log="y").y.log


def test_scales_of_negative_numbers_count_by_their_size():
    picture = drawn([(step, -5000.0 - step, 0.5) for step in range(5)], fields=("step", "energy", "loss"))
    assert {mark.name: mark.side for mark in picture.marks} == {"energy": "left", "loss": "right"}


def test_smoothing_leaves_gaps_where_they_are():
    values = [1.0, float("nan"), 3.0, 4.0]
    raw, smooth = [mark for mark in drawn(values, smooth=0.5).marks if isinstance(mark, Line)]
    assert np.isnan(raw.y).tolist() == np.isnan(smooth.y).tolist() == [False, True, False, False]


@pytest.mark.parametrize("value", [0.5, True, "a text", [0.5], (1, 0.5), {"a": 1.0}, np.zeros(4), {"a": np.ones(4)}])
def test_a_single_value_is_drawn(value):
    picture = drawn([value])
    assert picture.marks
    assert not picture.badges


def test_booleans_among_numbers_are_a_line():
    picture = drawn([(step, 0.5, step > 3) for step in range(9)], fields=("step", "loss", "done"))
    assert {mark.name for mark in picture.marks} == {"loss", "done"}
    assert picture.marks[1].y.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_very_long_names_are_cut_where_they_are_drawn():
    matplotlib = pytest.importorskip("matplotlib", reason="WINDOWS ARE NOT TESTED: they need matplotlib")
    from looptap.visualizers.drawing.backends.with_matplotlib import draw, new_figure

    assert matplotlib
    names = [f"{'very ' * 40}long name {i}" for i in range(3)]
    picture = drawn([dict.fromkeys(names, 1.0)] * 3, name="x" * 300, chart="line")
    figure = new_figure()
    draw(picture, figure)
    figure.canvas.draw()
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    box = legend.get_window_extent()
    assert box.x1 <= figure.bbox.x1 + 1
    assert box.height <= 0.3 * figure.bbox.height


@dataclasses.dataclass
class Measured:
    loss: float
    gradients: torch.Tensor


@dataclasses.dataclass
class Numbers:
    loss: float
    accuracy: float


def test_a_dataclass_is_read_by_its_fields():
    picture = drawn([Numbers(0.5, 0.1), Numbers(0.25, 0.2)])
    assert {mark.name: mark.y.tolist() for mark in picture.marks} == {"loss": [0.5, 0.25], "accuracy": [0.1, 0.2]}
    (table,) = drawn([Measured(0.5, torch.ones(300))]).marks
    assert [row[0] for row in table.rows] == ["loss", "gradients"]


def test_milliseconds_since_1970_are_dates_too():
    picture = drawn([(1.76e12 + 1000 * place, 0.5) for place in range(3)], fields=("timestamp", "loss"))
    assert picture.x.time
    assert picture.marks[0].x.tolist() == [1.76e9, 1.76e9 + 1, 1.76e9 + 2]


def test_an_image_says_how_many_of_its_numbers_are_none():
    image = np.full((4, 4, 3), 0.5)
    image[0, 0] = np.nan
    assert "loss: 3 numbers are NaN or infinite" in drawn([image]).badges


def test_a_dataclass_that_asks_for_a_chart_gets_it():
    @dataclasses.dataclass
    class Own:
        loss: float

        def __looptap_chart__(self):
            return "text"

    assert choose(Own(0.5)).kind == "text"
    assert not choose(Own(0.5)).flat
    assert choose(Numbers(0.5, 0.1), chart="summary").kind == "summary"
    assert choose(Numbers(0.5, 0.1), chart="text").kind == "text"


@pytest.mark.parametrize("name", ["trainer/global_step", "batchIdx", "tokens_seen", "timestamp", "episode"])
def test_the_figures_of_a_run_have_no_line_for_what_only_counts(name):
    stream = stream_of([{name: 1.0, "loss": 0.5}, {name: 2.0, "loss": 0.25}], name="train")
    assert set(figures_of(stream)) == {"loss"}
