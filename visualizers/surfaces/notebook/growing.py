"""The lines of a picture that only grow, with all their points, where the picture has them thinned.

A page that holds all points can be zoomed into without asking the kernel, which may be busy; and what is sent is
what is new, not the line.
"""

from __future__ import annotations

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS, TIME
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.drawing.picture import Line, Picture
from looptap.visualizers.surfaces.notebook.frames import Column, Growing


def growing(chart: Chart, picture: Picture) -> dict[int, Growing]:
    """Return the points behind those lines of the picture, by their places, that slide by. The chart's lock is held."""
    places = {(m.name, m.color, m.side): i for i, m in enumerate(picture.marks) if isinstance(m, Line) and m.z is None}
    found: dict[int, Growing] = {}
    if picture.x.time:  # the page shows local time, which is made of what is drawn
        return found
    for series in chart.series:
        layer = series.layer
        if type(layer) is LineChart and "ring" in series.data and not (series.stream.seams or series.stream.gaps):
            for name, color, column in _lines(layer, series):
                if (place := places.get((name, color, series.side))) is not None:
                    found[place] = column
    return found


def _lines(layer: LineChart, series: Series) -> list[tuple[str, str, Growing]]:
    ring = series.data["ring"]
    columns = ring.columns
    if not len(ring):
        return []
    axis = layer.over(series, columns)
    total, most = ring.given_up + len(ring), ring.points
    origin = round(float(columns[TIME][-1] - axis.x[-1]), 6) if layer.x == "time" else 0.0
    x = Column(axis.x, total, most)
    parts = layer.drawn(series, axis)
    return [
        (
            *layer.appearance(series, part, parts),
            Growing(
                f"{id(series)}.{layer.x}.{origin}.{part}", x, Column(columns[MAX_LEADING_COLUMNS + part], total, most)
            ),
        )
        for part in parts
    ]
