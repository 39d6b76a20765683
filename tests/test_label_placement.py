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
