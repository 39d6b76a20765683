"""What of a picture only grows: the lines of streams, point by point, where the picture has them thinned out.

A page that holds all points can be zoomed into without asking the kernel, which may be busy; and what is sent is
what is new, not the line.
"""

from __future__ import annotations

from collections.abc import Sequence

from looptap.visualizers.chart import Chart
from looptap.visualizers.notebook.frames import Column
from looptap.visualizers.picture import Picture


def growing(chart: Chart, picture: Picture) -> dict[int, Sequence[Column]]:
    """The x and y of those marks of the picture, by their places, that stand for points which slide by."""
    return {}
