"""Pictures drawn by plotly: its traces hold the picture's data, an update sets it in one batch, texts stay texts."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pictures import pictures

from looptap.visualizers.drawing.with_plotly import figure_of, update

PHASES = [p for p in Phase if p not in (Phase.shrink, Phase.explain)]
hostile = settings(max_examples=200, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))


@hostile
@given(st.lists(pictures, min_size=1, max_size=3))
def test_any_picture_is_drawn_and_followed_by_any_other(several):
    figure = figure_of(several[0])
    for picture in several:
        assert update(figure, picture) in ("data", "layout", "structure")
    assert update(figure, several[-1]) == "data"
    assert "<script" not in figure.to_json()
