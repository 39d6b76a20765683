"""What all that draw pictures have in common: axes, pages and lines of text."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.text import Text as TextOfAxes
from pictures import pictures
from rich.cells import cell_len

from looptap.visualizers.drawing.backends import with_matplotlib, with_plotly, with_text
from looptap.visualizers.drawing.picture import Axis, Bars, Line, Picture, VerticalLine

PHASES = [p for p in Phase if p not in (Phase.shrink, Phase.explain)]  # drawing is slow
hostile = settings(max_examples=20, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
COLOR = re.compile(r"\x1b\[[0-9;]*m")
X = np.arange(100.0)


class Axes:
    """Pictures by matplotlib."""

    def __init__(self, picture):
        self._figure = with_matplotlib.new_figure(4, 3, dpi=50)
        self._drawing = with_matplotlib.draw(picture, self._figure)

    def update(self, picture):
        assert self._drawing.update(picture) in ("data", "limits", "structure")

    def texts(self):
        self._figure.canvas.draw()
        return [one.get_text() for one in self._figure.findobj(TextOfAxes) if one.get_visible()]


class Page:
    """Pictures by plotly."""

    def __init__(self, picture):
        self._figure = with_plotly.figure_of(picture)

    def update(self, picture):
        assert with_plotly.update(self._figure, picture) in ("data", "layout", "structure")
        assert with_plotly.update(self._figure, picture) == "data"

    def texts(self):
        text = self._figure.to_json()
        assert "<script" not in text
        found = []
        json.loads(text, object_pairs_hook=lambda pairs: found.extend(one for _, one in pairs if type(one) is str))
        return found


class Lines:
    """Pictures as text."""

    def __init__(self, picture):
        self.update(picture)

    def update(self, picture):
        self._text = with_text.drawn_text(picture, 80, 24, color=True)

    def texts(self):
        lines = COLOR.sub("", self._text).split("\n")
        assert all(character.isprintable() for line in lines for character in line)
        assert max(map(cell_len, lines)) <= 80
        return lines


@pytest.mark.long
@pytest.mark.parametrize("back_end", [Axes, Page, Lines])
@hostile
@given(several=st.lists(pictures, min_size=1, max_size=3))
def test_any_picture_is_drawn_and_followed_by_any_other(back_end, several):
    drawing = back_end(several[0])
    for picture in several:
        drawing.update(picture)
    drawing.texts()


@pytest.mark.parametrize("back_end", [Axes, Page, Lines])
def test_texts_of_a_job_are_no_formulas_and_no_commands(back_end):
    nasty = r"$\frac{1}{$ <script> \x1b[31m $x$"
    picture = Picture(
        (Line(X, X, name=nasty, notes=((5, nasty),)), Bars(np.ones(1), (nasty,))), title=nasty, x=Axis(nasty),
        rules=(VerticalLine(3, nasty),), badges=(nasty,), guess=nasty,
    )  # fmt: skip
    drawn = " ".join(back_end(picture).texts())
    assert "frac{1}{" in drawn
    assert "\x1b" not in drawn
