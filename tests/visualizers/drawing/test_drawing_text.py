"""Pictures as text: curves, widths, and control characters of the job escaped."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pictures import pictures
from rich.cells import cell_len

import looptap
from looptap.visualizers.drawing.backends.with_text import all_as_text, drawn_text
from looptap.visualizers.drawing.picture import Bars, Grid, Images, Line, Picture, Table, Text, VerticalLine
from looptap.visualizers.plot import Plot

PHASES = [p for p in Phase if p not in (Phase.shrink, Phase.explain)]
hostile = settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@hostile
@given(pictures, st.sampled_from((30, 80, 200)), st.sampled_from((8, 24)), st.booleans())
def test_any_picture_is_lines_that_keep_to_their_width_and_move_no_cursor(picture, width, height, color):
    text = drawn_text(picture, width, height, color)
    plain = COLOR.sub("", text) if color else text
    assert all(c == "\n" or c.isprintable() for c in plain)
    assert max(map(cell_len, plain.split("\n"))) <= width


def rows_of(text):
    """Return the lines inside the frame of a plot."""
    return [re.split("[┤│]", line)[1] for line in text.split("\n") if re.search("[┤│].*[│├]", line)]


def test_the_curve_is_where_its_numbers_are():
    x = np.arange(100.0)
    rows = rows_of(drawn_text(Picture((Line(x, x),)), 60, 20, color=False))
    first = [min(i for i, c in enumerate(row) if c != " ") for row in rows]
    assert first == sorted(first, reverse=True)  # it rises from the lower left to the upper right
    assert first[-1] == 0
    assert len(rows[0].rstrip()) >= len(rows[0]) - 1


def test_a_histogram_is_filled_down_to_zero():
    rows = rows_of(drawn_text(Picture((Bars(np.array([1.0, 2.0, 1.0]), edges=np.arange(4.0)),)), 60, 16, color=False))
    third = len(rows[0]) // 3
    assert not rows[1][: third - 2].strip()
    assert rows[1][third + 2 : 2 * third - 2] == "⣿" * (third - 4)
    assert rows[-2][2 : 3 * third - 2] == "⣿" * (3 * third - 4)


def test_bars_say_their_numbers_and_are_as_long_as_they_say():
    bars = Bars(np.array([4.0, 2.0, np.nan]), ("conv", "fc", "odd"))
    lines = drawn_text(Picture((bars,)), 60, color=False).split("\n")
    assert [line.split()[0] for line in lines] == ["conv", "fc", "odd"]
    assert lines[0].count("█") // 2 == lines[1].count("█") > 10
    assert lines[2].endswith("nan")


def test_curves_can_be_distinguished_with_and_without_colours():
    x = np.arange(50.0)
    picture = Picture((Line(x, x, name="loss"), Line(x, x[::-1], name="error", color="#ff0000")))
    plain, colored = drawn_text(picture, color=False), drawn_text(picture, color=True)
    assert "\x1b" not in plain
    assert "• error" in plain
    assert plain.count("•") > 20
    assert "\x1b[38;2;255;0;0m■ \x1b[0merror" in colored


def test_matrices_images_tables_and_texts():
    cells = np.array([[12.0, 1.0], [0.0, 7.0]])
    grid = drawn_text(Picture((Grid(cells, ("cat", "dog"), ("c", "d"), written=True),)), color=False)
    assert [line.split() for line in grid.split("\n")] == [["c", "d"], ["cat", "12", "1"], ["dog", "0", "7"]]
    heat = drawn_text(Picture((Grid(np.eye(3)),)), 40, color=False).split("\n")
    assert [line[-6:] for line in heat[:3]] == ["██    ", "  ██  ", "    ██"]
    assert heat[-1] == "3 × 3, blank 0 to full 1"
    gap = Picture((Grid(np.array([[0.0, math.nan, 1.0]])),))
    assert drawn_text(gap, 40, color=False).endswith(" to full 1, × is NaN")
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, 2:] = 255, 0, 0
    images = Picture((Images((image, image), ("seven", "one")),))
    assert "38;2;255;0;0;48;2;255;0;0m▀" in drawn_text(images)
    assert drawn_text(images, color=False).split("\n")[-1].split() == ["seven", "one"]
    table = drawn_text(Picture((Table(("layer", "mean"), (("[red]fc[/]", "0.1"),)),)), color=False)
    assert "[red]fc[/]" in table
    assert drawn_text(Picture((Text(("old", "new")),)), color=False) == "old\nnew"


def test_rows_whose_names_differ_at_their_ends_can_be_distinguished():
    names = [f"bert.encoder.layer.{i}.attention.{part}.weight" for i in (0, 11) for part in ("query", "key")]
    for marks in (Grid(np.arange(80.0).reshape(4, 20), tuple(names)), Bars(np.arange(4.0), tuple(names))):
        lines = drawn_text(Picture((marks,)), 60, color=False).split("\n")[:4]
        assert len({line.split(" ")[0] for line in lines}) == 4
        assert all(line.split(" ")[0].endswith(name[-6:]) for line, name in zip(lines, names, strict=True))


def test_titles_badges_rules_and_frames_are_words_around_the_picture():
    picture = Picture(
        (Line(np.arange(9.0), np.arange(9.0)),), title="loss", rules=(VerticalLine(3, "lr=0.1"),),
        badges=("one skipped",),
        frame=(1, 4), guess="taken as a line",
    )  # fmt: skip
    lines = drawn_text(picture, 60, 16, color=False).split("\n")
    assert lines[:2] == ["loss  (frame 2 of 4)", "taken as a line"]
    assert lines[-2:] == ["| 3: lr=0.1", "! one skipped"]
    assert len(lines) <= 16


def test_several_pictures_stand_in_rows():
    both = all_as_text([Picture((Text(("left",)),)), Picture((Text(("right",)),))], 80, color=False, rows=1)
    assert both.split() == ["left", "right"]
    assert "\n" not in both


def test_drawing_from_several_threads_does_not_mix():
    pictures = [Picture((Line(np.arange(9.0), np.arange(9.0) * k),)) for k in (1, 100)]
    alone = [drawn_text(picture, color=False) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda k: drawn_text(pictures[k % 2], color=False), range(24))) == alone * 12


def test_a_caption_has_two_lines_so_that_its_end_is_read():
    images = Images((np.zeros((4, 6, 3), np.uint8),) * 2, ("target 6, loss 2.85", "target 10, loss 0.01"))
    text = drawn_text(Picture((images,)), 60, 20, color=False)
    assert "target 6," in text
    assert "loss 2.85" in text
    assert "loss 0.01" in text


def test_the_newest_notes_of_a_line_stand_below_it():
    line = Line(np.arange(9.0), np.arange(9.0), notes=tuple((i, f"epoch {i}") for i in range(0, 9, 2)))
    text = drawn_text(Picture((line,), badges=("7 values are missing",)), 60, 20, color=False)
    assert "• 8: epoch 8" in text
    assert "• 4: epoch 4" in text
    assert "epoch 2" not in text
    assert "! 7 values" in text


def test_a_legend_says_how_many_names_it_leaves_out():
    def legend(count, width):
        rows = [{"step": k} | {f"layer {n}": float(n + k) for n in range(count)} for k in range(3)]
        plot = Plot(looptap.stream_of(rows, name="norms"), chart="line")
        plot.pull()
        lines = drawn_text(plot.pictures()[0], width, 12, color=False).splitlines()
        return next(line for line in lines if "layer" in line)

    assert "more" not in legend(3, 60)
    for width in (24, 30, 50, 80):
        line = legend(30, width).strip()
        assert len(line) <= width
        assert line.endswith(f"… {30 - line.count('layer')} more")
