"""The colours of charts differ for all readers, on light and dark grounds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import looptap
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.data.colors import COLORS, DARK, DASHES, LIGHT, Palette, is_dark
from looptap.visualizers.drawing.backends import with_text
from looptap.visualizers.drawing.picture import Line, Picture
from looptap.visualizers.plot import Plot

MIN_CONTRAST, MIN_DIFFERENCE = 3.0, 15.0
DEUTERANOPIA = np.array(
    [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)]
)
PROTANOPIA = np.array(
    [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)]
)
"""Of Machado, Oliveira and Fernandes (2009), at full severity, for linear RGB."""
TO_XYZ = np.array(
    [(0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041)]
)


def linear(color):
    """Return the linear RGB of #rrggbb."""
    share = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return CIE L*a*b* of linear RGB."""
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    bright, dim = sorted((0.05 + TO_XYZ[1] @ linear(color) for color in (one, other)), reverse=True)
    return bright / dim


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_its_ground_and_from_the_others(theme):
    for color in (*theme.colors, theme.ink, theme.muted, theme.warning):
        assert contrast(color, theme.ground) >= MIN_CONTRAST, color
    for sight in (np.eye(3), DEUTERANOPIA, PROTANOPIA):
        seen = [lab(sight @ linear(color)) for color in theme.colors]
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= MIN_DIFFERENCE
    assert len(theme.colors) == len(COLORS)
    assert is_dark(*linear(theme.ground)) == theme.dark


def test_a_name_keeps_its_colour_on_all_charts_of_a_session():
    values = looptap.stream_of([(1, 2.0, 3.0), (2, 2.5, 3.5)], name="a", fields=("step", "train", "val"))
    first = Plot(values, chart="line")
    second = Plot(looptap.stream_of([1.0, 2.0], name="other"), looptap.stream_of([1.0, 2.0], name="val"))
    for plot in (first, second):
        plot.pull()
    lines = {mark.name: mark.color for mark in first.pictures()[0].marks}
    assert [mark.name for picture in second.pictures() for mark in picture.marks] == ["other", "val"]
    other, val = (picture.marks[0].color for picture in second.pictures())
    assert val == lines["val"]
    assert len({other, val, lines["train"]}) == 3


def test_a_field_has_one_colour_alone_and_beside_others():
    one = Plot(looptap.stream_of([(1, 2.0), (2, 2.5)], fields=("step", "loss"), name=""))
    more = Plot(
        looptap.stream_of([(1, 0.5, 3.0), (2, 0.75, 3.5)], fields=("step", "error", "loss"), name=""), chart="line"
    )
    for plot in (one, more):
        plot.pull()
    colors = {mark.name: mark.color for plot in (one, more) for mark in plot.pictures()[0].marks}
    assert colors.keys() == {"loss", "error"}
    assert one.pictures()[0].marks[0].color == more.pictures()[0].marks[1].color


def test_lines_of_one_chart_differ_in_colour_and_then_in_dash():
    names = [f"layer {i}" for i in range(4 * len(COLORS))]
    chart = LineChart(palette=Palette())
    chart.add(looptap.stream_of([dict.fromkeys(names, 1.0)] * 2, name="norms"), chart="line")
    chart.pull()
    looks = [(mark.color, mark.dash) for mark in chart.draw().marks]
    assert len(set(looks)) == len(names)
    assert [dash for _, dash in looks] == [dash for dash in DASHES for _ in COLORS]


def test_streams_on_one_chart_differ_even_if_the_session_is_out_of_colours():
    palette = Palette()
    for i in range(3 * len(COLORS)):
        palette.color(f"earlier {i}")
    chart = LineChart(palette=palette)
    for name in ("earlier 0", "new", f"earlier {len(COLORS)}"):
        chart.add(looptap.stream_of([1.0, 2.0], name=name))
    chart.pull()
    looks = [(mark.color, mark.dash) for mark in chart.draw().marks]
    assert len(set(looks)) == 3
    assert [dash for _, dash in looks] == ["solid", "solid", "dash"]


def test_a_terminal_that_says_its_ground_is_light_gets_the_colours_for_it(monkeypatch):
    picture = Picture(
        (Line([0, 1], [0, 1], color=COLORS[4], name="a"), Line([0, 1], [1, 0], color=COLORS[1], name="b"))
    )
    for ground, theme in (("", DARK), ("15;0", DARK), ("0;15", LIGHT)):
        monkeypatch.setenv("COLORFGBG", ground)
        color = theme.colors[4]
        paint = ";".join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))
        assert f"38;2;{paint}m" in with_text.drawn_text(picture, 40, 10)


def test_a_figure_on_a_dark_ground_has_light_axes_and_follows_when_the_ground_changes():
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    from looptap.visualizers.drawing.backends.with_matplotlib import draw, new_figure

    picture = Picture(
        (Line([0, 1], [0, 1], color=COLORS[0], name="a"), Line([0, 1], [1, 0], color=COLORS[1], name="b")),
        title="loss", badges=("note",), guess="a guess",
    )  # fmt: skip
    figure = new_figure()
    drawing = draw(picture, figure)
    for theme in (LIGHT, DARK, LIGHT):
        figure.set_facecolor(theme.ground)
        drawing.update(picture)
        figure.draw_without_rendering()
        texts = [text for text in figure.findobj(Text) if text.get_text()]
        assert len(texts) > 8
        inks = {to_hex(text.get_color()) for text in texts}
        assert min(contrast(ink, theme.ground) for ink in inks) >= MIN_CONTRAST
        assert to_hex(drawing.artists[0].get_color()) == theme.colors[0]
