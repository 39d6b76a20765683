"""Pictures drawn by matplotlib: the canvas, updates, hostile values."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path as Outline

from looptap.visualizers.data.colors import DARK, LIGHT
from looptap.visualizers.data.sample_buffer import thinned
from looptap.visualizers.drawing.axis_limits import fit
from looptap.visualizers.drawing.backends.quick_lines import QuickLine
from looptap.visualizers.drawing.backends.with_matplotlib import draw, draw_all, new_figure
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
RED, LIME = (255, 0, 0), (0, 255, 0)


def pixels(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def near(seen, color):
    return np.abs(seen - color).sum(axis=-1) < 80


def whether_drawn_at(figure, axes, x, y, color, reach=3):
    """Return True if a pixel of this colour is near a point in data coordinates."""
    seen = near(pixels(figure), color)
    column, row = axes.transData.transform((x, y)).round().astype(int)
    row = seen.shape[0] - row
    return seen[row - reach : row + reach, column - reach : column + reach].any()


def line(y, **more):
    return Picture((Line(X[: len(y)], np.array(y, float), name="loss", color="#ff0000", **more),))


def test_a_letter_missing_in_the_bold_font_causes_no_warning():
    figure = new_figure()
    draw(Picture((Text("\U0001ee2e"),), title="loss \U0001ee2e"), figure)
    pixels(figure)
    assert [text.get_text() for text in figure.texts if "loss" in text.get_text()] == ["loss ▯"]


def test_pixels_change_where_the_line_is_and_an_update_moves_them():
    figure = new_figure()
    drawing = draw(line(X), figure)
    axes, kept = drawing.views[0].axes, drawing.artists
    assert whether_drawn_at(figure, axes, 20, 20, RED)
    assert not whether_drawn_at(figure, axes, 20, 79, RED)
    assert drawing.update(line(X[::-1])) == "data"
    assert whether_drawn_at(figure, axes, 20, 79, RED)
    assert not whether_drawn_at(figure, axes, 20, 20, RED)
    assert drawing.artists == kept  # the same artists: nothing was made again


def test_an_update_says_what_it_took():
    drawing = draw(line(X), new_figure())
    assert drawing.update(line(X * 0.9)) == "data"
    assert drawing.update(line(X * 3)) == "limits"
    assert drawing.update(line(X * 3.2)) == "data"  # there was room to grow
    assert drawing.update(line(X * 0.1)) == "limits"
    assert drawing.update(line(X * 0.1, dash="dot")) == "structure"
    assert drawing.update(Picture()) == "structure"


def test_blitting_the_artists_of_an_update_gives_what_a_whole_redraw_gives():
    figure = new_figure()
    drawing = draw(line(X), figure)
    for artist in drawing.artists:
        artist.set_animated(True)
    figure.canvas.draw()
    clean = figure.canvas.copy_from_bbox(figure.bbox)
    assert drawing.update(line(X[::-1])) == "data"
    figure.canvas.restore_region(clean)
    for artist in drawing.artists:
        figure.draw_artist(artist)
    blitted = np.asarray(figure.canvas.buffer_rgba()).copy()
    for artist in drawing.artists:
        artist.set_animated(False)
    assert (near(blitted[..., :3].astype(int), RED) == near(pixels(figure), RED)).all()


def test_a_gap_is_not_drawn_over():
    y = X.copy()
    y[40:60] = [np.nan, np.inf] * 10
    figure = new_figure()
    axes = draw(line(y), figure).views[0].axes
    assert whether_drawn_at(figure, axes, 30, 30, RED)
    assert not whether_drawn_at(figure, axes, 50, 50, RED)


def test_a_single_point_is_seen():
    figure = new_figure()
    assert whether_drawn_at(figure, draw(line([5.0]), figure).views[0].axes, 0, 5, RED)


def test_bands_bars_and_points_are_drawn_at_their_numbers():
    band = Band(X, X * 0 + 1, X * 0 + 2, color="#ff0000", opacity=1.0)
    bars = Bars(np.array([4.0, 2.0]), edges=np.array([10.0, 20.0, 30.0]), color="#00ff00")
    points = Points(np.array([60.0]), np.array([3.0]), color="#00ff00")
    figure = new_figure()
    axes = draw(Picture((band, bars, points)), figure).views[0].axes
    assert whether_drawn_at(figure, axes, 50, 1.5, RED)
    assert not whether_drawn_at(figure, axes, 50, 2.5, RED)
    assert whether_drawn_at(figure, axes, 15, 3.5, LIME)
    assert not whether_drawn_at(figure, axes, 25, 3.5, LIME)
    assert whether_drawn_at(figure, axes, 60, 3, LIME)


def test_the_right_axis_has_limits_of_its_own():
    marks = Line(X, X, color="#ff0000"), Line(X, X * 1000, side="right", color="#00ff00")
    figure = new_figure()
    view = draw(Picture(marks, right=Axis("large")), figure).views[0]
    assert view.axes.get_ylim()[1] < 200
    assert view.right.get_ylim()[1] > 90_000
    assert whether_drawn_at(figure, view.right, 50, 50_000, LIME)


def test_logarithms_and_dates():
    figure = new_figure()
    axes = draw(Picture((Line(X, 10.0 ** (X / 10), color="#ff0000"),), y=Axis(log=True)), figure).views[0].axes
    assert whether_drawn_at(figure, axes, 50, 1e5, RED)
    drawing = draw(Picture((Line(1.75e9 + 3600 * X, X, color="#ff0000"),), x=Axis(time=True)), new_figure())
    drawing.figure.canvas.draw()
    labels = [label.get_text() for label in drawing.views[0].axes.get_xticklabels()]
    assert any(label.startswith("Jun") or label == "2025-Jun-16" for label in labels), labels


def test_seconds_are_written_as_times_of_day():
    axes = draw(Picture((Line(1.75e9 + X / 5, X),), x=Axis(time=True)), new_figure()).views[0].axes
    axes.figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", label) for label in labels), labels
    assert axes.xaxis.get_offset_text().get_text() == "2025-Jun-15"


def test_texts_of_a_job_are_no_formulas_and_no_commands():
    nasty = r"$\frac{1}{$ <script> \x1b[31m $x$"
    picture = Picture(
        (Line(X, X, name=nasty, notes=((5, nasty),)), Bars(np.ones(1), (nasty,))), title=nasty, x=Axis(nasty),
        rules=(VerticalLine(3, nasty),), badges=(nasty,), guess=nasty,
    )  # fmt: skip
    figure = new_figure()
    view = draw(picture, figure).views[0]
    pixels(figure)
    assert view.axes.get_xlabel() == nasty
    assert [label.get_text() for label in view.axes.get_xticklabels()] == [nasty]


def test_the_numbers_of_a_confusion_matrix_and_the_captions_of_images_are_written():
    cells = np.arange(9.0).reshape(3, 3)
    red = np.full((4, 4, 3), RED, np.uint8)
    grid, images = Grid(cells, written=True), Images((red, red), ("seven", "one"))
    figure = new_figure()
    drawing = draw(Picture((grid, images)), figure)
    assert [text.get_text() for text in drawing.views[0].numbers] == [str(n) for n in range(9)]
    assert [text.get_text() for text in drawing.views[1].captions] == ["seven", "one"]
    seen = near(pixels(figure), RED)
    assert seen[:, 320:].sum() > 5000
    assert not seen[:, :320].any()
    assert drawing.update(Picture((Grid(cells[::-1], written=True), images))) == "data"
    assert drawing.views[0].numbers[0].get_text() == "6"


def test_a_line_in_space_is_drawn_beside_a_matrix():
    figure = new_figure()
    drawing = draw(Picture((Line(X, np.sin(X), z=X, color="#ff0000"), Grid(np.eye(3)))), figure)
    seen = near(pixels(figure), RED)
    assert seen[:, :320].any()
    assert not seen[:, 320:].any()
    assert [type(view).__name__ for view in drawing.views] == ["SpaceView", "GridView"]
    assert drawing.update(Picture((Line(X, np.cos(X), z=X, color="#ff0000"), Grid(np.eye(3))))) in ("data", "limits")


def test_pies_tables_and_text():
    pie, table, text = Pie([1, 1, 2], ("a", "b", "c")), Table(("layer", "mean"), (("fc", "0.1"),)), Text(("a", "b"))
    drawing = draw(Picture((pie, table, text)), new_figure(9, 6))
    labels, lines, written = (view.labels if hasattr(view, "labels") else view.text for view in drawing.views)
    assert [label.get_text() for label in labels] == ["a 25.0%", "b 25.0%", "c 50.0%"]
    assert lines.get_text().split("\n") == ["layer  mean", "───────────", "fc      0.1"]
    assert written.get_text() == "a\nb"


def test_several_pictures_share_a_figure_in_rows():
    figure = new_figure(8, 6)
    drawings = draw_all([line(X), Picture(), line(X[::-1])], figure, rows=2)
    seen = near(pixels(figure), RED)
    assert len(drawings) == 3
    assert seen[:300, :400].any()
    assert seen[300:, :400].any()
    assert not seen[:, 400:].any()


def test_a_picture_takes_the_place_of_axes():
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    drawing = draw(Picture((Line(X, X, z=X),)), right)
    assert figure.axes == [left, drawing.views[0].axes]
    with pytest.raises(ValueError, match="stand in no grid"):
        draw(Picture(), figure.add_axes((0, 0, 1, 1)))


def test_badges_frames_and_a_resized_figure():
    figure = new_figure()
    drawing = draw(Picture(badges=("two values skipped",), frame=(2, 10), title="t" * 300), figure)
    texts = [text.get_text() for text in figure.texts]
    assert "⚠ two values skipped" in texts
    assert "frame 3 of 10" in texts
    figure.set_size_inches(3, 2)
    drawing.layout()
    assert max(len(text.get_text()) for text in figure.texts) < 60


def test_limits_hold_until_the_data_leaves_them_or_shrinks():
    held = fit(None, (1.0, 100.0), Axis(log=True))
    assert fit(held, (2.0, 99.0), Axis(log=True)) is held
    assert fit(held, (1.0, 1.5), Axis(log=True)) != held
    assert fit(held, (5.0, 6.0), Axis(low=0.0, high=9.0)) == (0.0, 9.0)
    assert fit(None, None, Axis()) == (0.0, 1.04)


def test_words_of_lines_that_are_too_close_do_not_lie_on_each_other():
    def said(*places):
        return Picture((Line(X, X, name="loss"),), rules=tuple(VerticalLine(x, f"lr {x:g}") for x in places))

    drawing = draw(said(20, 50, 50.5, 51), new_figure(4, 3, dpi=50))
    assert [text.get_text() for text in drawing.views[0].words] == ["lr 20", "", "lr 50.5", "lr 51"]  # in two rows
    drawing.update(said(20, 79.5, 80, 80.5))
    assert [text.get_text() for text in drawing.views[0].words] == ["lr 20", "", "lr 80", "lr 80.5"]
    drawing.update(said(80.5, 80, 20, 79.5))  # the later rules have precedence, wherever they are
    assert [text.get_text() for text in drawing.views[0].words] == ["", "lr 80", "lr 20", "lr 79.5"]


NOISE = np.random.default_rng(0).normal(size=100_000)


@pytest.mark.parametrize("shape", ["rising", "falling", "wave", "noise"])
def test_notes_do_not_lie_on_their_line(shape):
    x = np.arange(60.0)
    y = {"rising": x**1.5, "falling": np.exp(-x / 12), "wave": np.sin(x / 8), "noise": np.cumsum(NOISE[:60])}[shape]
    notes = tuple((i, f"lr 0.{i}") for i in (0, 9, 20, 30, 45, 59))
    figure = new_figure()
    drawing = draw(Picture((Line(x, y, name="loss", notes=notes),)), figure)
    figure.canvas.draw()
    (mark,) = drawing.views[0].marks
    corners = mark.line.get_transform().transform(mark.line.get_xydata())
    assert len(mark.notes) == len(notes)
    for note in mark.notes:
        assert note.get_window_extent().width > 10
        assert not Outline(corners).intersects_bbox(note.get_window_extent(), filled=False)


DENSE = {
    "noise": (np.arange(100_000.0), NOISE),
    "gaps": (np.arange(100_000.0), np.where(np.arange(100_000) % 7000, NOISE, np.nan)),
    "a jump of x": (np.where(np.arange(100_000) < 50_000, 0.0, 2e5) + np.arange(100_000), NOISE),
    "spikes": (np.arange(100_000.0), np.where(NOISE > 3, 40.0, NOISE)),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_line_looks_the_same_drawn_as_areas(name):
    x, y = DENSE[name]
    picked, inked = thinned(y), []
    for kind in (Line2D, QuickLine):
        figure = new_figure(7, 4.4)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        line = axes.add_line(kind(x[picked], y[picked], lw=1.4, color="#ff0000"))
        axes.set(xlim=(x[0], 1.1 * x[-1]), ylim=(np.nanmin(y), np.nanmax(y)))
        inked.append(near(pixels(figure), RED))
    assert line._areas(2.0)[0]
    for one, other in (inked, inked[::-1]):
        padded = np.pad(other, 2)
        about = np.any([padded[i : i + 440, j : j + 700] for i in range(5) for j in range(5)], axis=0)
        assert one.sum() > 10_000
        assert not (one & ~about).any()


def test_a_line_whose_strokes_are_seen_is_drawn_stroke_by_stroke():
    figure = new_figure(7, 4.4)
    axes = figure.add_subplot()
    for x, y in ((np.arange(300.0), NOISE[:300]), (np.arange(2000.0), np.sin(np.arange(2000.0) / 90)),
                 (NOISE[:2000], NOISE[2000:4000])):  # fmt: skip
        line = axes.add_line(QuickLine(x, y))
        axes.set(xlim=(x.min(), x.max()), ylim=(-3, 3))
        assert line._areas(2.0) == ([], [])


@pytest.mark.parametrize("inches", [2.5, 4, 9])
def test_captions_of_neighbours_do_not_overlap(inches):
    captions = tuple(f"label {place}, drawn 3, loss 0.0123, index 1717" for place in range(9))
    figure = new_figure(inches, 0.8 * inches)
    draw(Picture((Images(tuple(np.zeros((8, 8, 3), np.uint8) for _ in captions), captions),)), figure)
    figure.canvas.draw()
    texts = [text for axes in figure.axes for text in axes.texts if text.get_text().startswith("la")]
    assert len(texts) == 9
    boxes = [text.get_window_extent() for text in texts]
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]


@pytest.mark.long
@pytest.mark.parametrize("inches", [2, 2.5, 3, 5, 9])
@pytest.mark.parametrize("count", [1, 4, 9, 16])
def test_captions_are_never_cut_before_the_prediction(inches, count):
    captions = tuple(f"target {place}, prediction {place + 40}, loss 4.85, index 1717" for place in range(count))
    figure = new_figure(inches, 0.8 * inches)
    drawing = draw(Picture((Images(tuple(np.zeros((28, 28, 3), np.uint8) for _ in captions), captions),)), figure)
    for size in (inches, inches + 1):  # a window may change
        figure.set_size_inches(size, 0.8 * size)
        drawing.layout()
        figure.canvas.draw()
        texts = [text for axes in figure.axes for text in axes.texts]
        for place, text in enumerate(texts):
            head = " ".join(text.get_text().splitlines()[:2])
            assert re.match(rf"\S*( .*)?\b{place},? .*\b{place + 40}\b", head), head
        boxes = [text.get_window_extent() for text in texts]
        assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
        assert all(figure.bbox.padded(1).contains(*corner) for box in boxes for corner in (box.min, box.max))


def test_notes_in_space_do_not_lie_on_each_other_however_the_view_is_turned():
    turns = np.linspace(0, 8, 400)
    notes = tuple((place, f"epoch {place}") for place in range(0, 400, 4))
    line = Line(np.cos(turns), np.sin(turns), z=turns, color="#ff0000", notes=notes)
    figure = new_figure()
    drawing = draw(Picture((line,)), figure)
    (view,) = drawing.views
    (artist,) = view.marks
    for angle in (-60, 0, 45):
        view.axes.view_init(20, angle)
        figure.canvas.draw()
        shown = artist.in_space.shown
        assert shown[0][0] == "epoch 396"  # the newest has precedence
        assert 5 < len(shown) < 100
        assert not [1 for (_, one), (_, other) in itertools.combinations(shown, 2) if one.overlaps(other)]


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_bars_behind_lines_have_an_outline_that_is_seen_on_both_grounds(ground):
    figure = new_figure()
    figure.set_facecolor(ground)
    bars = Bars(np.array([1.0, 3.0, 2.0]), edges=np.arange(4.0), color="#ff0000", opacity=0.4)
    draw(Picture((bars, Line(X, np.sin(X), color="#00ff00"))), figure)
    assert near(pixels(figure), RED).sum() > 100


def test_the_numbers_beside_a_matrix_are_whole():
    figure = new_figure()
    draw(Picture((Grid(np.eye(2)),)), figure)
    figure.canvas.draw()
    texts = [text.get_text() for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis) for text in axis.get_ticklabels()]
    assert not [text for text in texts if "." in text or "½" in text]


def test_how_a_value_was_read_has_two_lines():
    figure = new_figure(4, 3)
    guess = "Black is -0.1, white is 2. (8, 12, 12) is taken for 8 images; chart='histogram' draws its numbers."
    drawing = draw(Picture((Line(X, X),), guess=guess), figure)
    (text,) = [text for text in figure.texts if text.get_text().startswith("Black")]
    assert " ".join(text.get_text().split()) == guess
    assert drawing.update(Picture((Line(X, X),), guess="Short.")) == "structure"


def test_names_and_words_of_commands_stand_over_the_plot_and_take_a_quarter_at_most():
    lines = tuple(Line(X, X + i, name=f"a long name of layer {i}") for i in range(40))
    rules = (VerticalLine(20.0, "lr 0.1 → 0.01"), VerticalLine(80.0, "lr 0.01 → 0.001"))
    figure = new_figure(6, 4)
    view = draw(Picture(lines, rules=rules), figure).views[0]
    figure.draw_without_rendering()
    top, height = view.axes.bbox.y1, figure.bbox.height
    legend = view.legend.get_window_extent()
    assert legend.y0 >= top
    assert legend.height <= 0.25 * height
    assert [text.get_text() for text in view.legend.get_texts()][-1].endswith("more")
    for text in view.words:
        assert text.get_window_extent().y0 >= top
        assert text.get_window_extent().y1 <= legend.y0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_the_legend_counts_no_single_name(count):
    lines = tuple(Line(X, X + i, name=f"a name that fills a row of the legend {i}") for i in range(count))
    view = draw(Picture(lines), new_figure(3, 2)).views[0]
    *_, last = [text.get_text() for text in view.legend.get_texts()]
    assert last != "… 1 more"


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_rim_of_a_note_has_the_colour_of_the_ground(theme):
    figure = new_figure()
    figure.set_facecolor(theme.ground)
    drawing = draw(Picture((Line(X, X, notes=((50, "epoch 3"),)),)), figure)
    (note,) = drawing.views[0].marks[0].notes
    (rim,) = note.get_path_effects()
    assert to_hex(rim._gc["foreground"]) == theme.ground


def test_the_axes_of_a_grid_align():
    plain = Picture((Line(X, X, name="loss"),), title="loss")
    noted = Picture(
        tuple(Line(X, X + i, name=f"layer {i}") for i in range(9)), title="many", guess="a guess", badges=("a note",),
        rules=(VerticalLine(20.0, "lr"),), y=Axis("norm"),
    )  # fmt: skip
    drawings = draw_all([plain, noted, noted, plain], new_figure(12, 8), 2)
    boxes = [drawing.views[0].axes.bbox for drawing in drawings]
    for one, other in ((0, 1), (2, 3)):
        assert boxes[one].y0 == pytest.approx(boxes[other].y0)
        assert boxes[one].y1 == pytest.approx(boxes[other].y1)
    for one, other in ((0, 2), (1, 3)):
        assert boxes[one].x0 == pytest.approx(boxes[other].x0)


@pytest.mark.parametrize("width", [2.0, 4.0, 9.0])
def test_the_names_of_columns_of_a_heat_map_do_not_overlap(width):
    cells = np.arange(600.0).reshape(10, 60)
    figure = new_figure(width, 3)
    draw(Picture((Grid(cells, columns=tuple(map(str, range(1000, 1060)))),), x=Axis("batch")), figure)
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 1
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
