"""Texts beside the points of a line lie on none of their neighbours."""

import numpy as np

from looptap.visualizers.drawing.label_placement import beside, lifted
from looptap.visualizers.drawing.picture import Axis, Line

WIDE, TALL = 40.0, 10.0
LEFT_SHARES = {"left": 0.0, "right": -1.0, "center": -0.5}


def test_a_text_without_room_is_left_out_the_newest_stays():
    x = np.linspace(0, 400, 401)
    y = 100 + 30 * np.sin(x)
    places = [*range(100, 300, 4)]
    found = beside(x, y, places, [WIDE] * len(places), TALL, (0, 0, 400, 200))
    assert found[-1] is not None
    assert None in found
    boxes = [
        (x[at] + LEFT_SHARES[one.align] * WIDE + one.right, y[at] + one.up)
        for at, one in zip(places, found, strict=True)
        if one is not None
    ]
    for place, (left, foot) in enumerate(boxes):
        for other, low in boxes[:place]:
            assert abs(left - other) >= WIDE - 1e-9 or abs(foot - low) >= TALL - 1e-9


def test_a_note_without_room_has_neither_place_nor_text():
    x = np.arange(100.0)
    line = Line(x, np.zeros(100), name="loss", notes=tuple((i, f"epoch {i}") for i in range(100)))
    across, up, sides, texts = lifted(line, Axis(""), Axis(""), (300.0, 200.0))
    assert len(across) == len(up) == len(sides) == len(texts) < 100
    assert "epoch 99" in texts


def test_notes_are_inside_the_plot_and_those_of_points_out_of_sight_are_left_out():
    x, y = np.array([-5.0, 0.0, 2.0, 200.0, 399.0, 400.0]), np.array([50.0, 199.0, 1.0, 199.5, 0.0, 200.0])
    first, *others = beside(x, y, list(range(6)), [WIDE] * 6, TALL, (0, 0, 400, 200))
    assert first is None
    for place, one in enumerate(others, 1):
        left = x[place] + LEFT_SHARES[one.align] * WIDE + one.right
        assert 0 <= left <= 400 - WIDE
        assert 0 <= y[place] + one.up <= 200 - TALL
