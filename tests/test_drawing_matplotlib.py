"""Pictures drawn by matplotlib: what is on the canvas, what an update touches, what no job can break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pictures import pictures

from looptap.visualizers.drawing.with_matplotlib import draw, new_figure

PHASES = [p for p in Phase if p not in (Phase.shrink, Phase.explain)]  # drawing is slow
hostile = settings(max_examples=200, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))


def pixels(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


@hostile
@given(st.lists(pictures, min_size=1, max_size=3))
def test_any_picture_is_drawn_and_followed_by_any_other(several):
    figure = new_figure(4, 3, dpi=50)
    drawing = draw(several[0], figure)
    pixels(figure)
    for picture in several:
        assert drawing.update(picture) in ("data", "limits", "structure")
    pixels(figure)
