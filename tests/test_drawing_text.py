"""Pictures as text: the curve is in it, it keeps to its width, and nothing of the job's reaches the terminal raw."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pictures import pictures
from rich.cells import cell_len

from looptap.visualizers.drawing.with_text import draw

PHASES = [p for p in Phase if p not in (Phase.shrink, Phase.explain)]
hostile = settings(max_examples=200, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@hostile
@given(pictures, st.sampled_from((30, 80, 200)), st.sampled_from((8, 24)), st.booleans())
def test_any_picture_is_lines_that_keep_to_their_width_and_move_no_cursor(picture, width, height, color):
    text = draw(picture, width, height, color)
    plain = COLOR.sub("", text) if color else text
    assert all(c == "\n" or c.isprintable() for c in plain)
    assert max(map(cell_len, plain.split("\n"))) <= width
