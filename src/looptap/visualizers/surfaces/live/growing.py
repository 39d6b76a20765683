"""The growing lines of a picture, with all points that the picture thins out.

A page that holds all points can be zoomed into without asking the kernel, which may be busy; and only what is new is
sent, not the line.
"""

from __future__ import annotations

from looptap.visualizers.charts.axes import MAX_LEADING_COLUMNS, TIME
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.kinds.lines import LineChart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import missing
from looptap.visualizers.drawing.picture import Line, Picture
from looptap.visualizers.surfaces.pages.frames import Column, Growing


def growing(chart: Chart, picture: Picture) -> dict[int, Growing]:
    """Return the points of growing lines by mark index. The caller holds the lock."""
    places = {(m.name, m.color): i for i, m in enumerate(picture.marks) if isinstance(m, Line) and m.z is None}
    found: dict[int, Growing] = {}
    if picture.x.time:  # the drawn numbers are shifted to local time
        return found
    for series in chart.series:
        layer = series.layer
        if type(layer) is LineChart and "ring" in series.data and not (series.stream.seams or series.stream.gaps):
            for name, color, column in _lines(layer, series):
                if (place := places.get((name, color))) is not None:
                    found[place] = column
    return found


def _lines(layer: LineChart, series: Series) -> list[tuple[str, str, Growing]]:
    ring = series.data["ring"]
    columns = ring.columns
    axis = layer.over(series, columns)
    if not len(ring) or axis.spread:  # where the newest epoch is drawn depends on how many values it has
        return []
    total, most = ring.given_up + len(ring), ring.points
    origin = round(float(columns[TIME][-1] - axis.x[-1]), 6) if layer.x == "time" else 0.0
    x = Column(axis.x, total, most)
    parts = layer.drawn(series, axis)
    key = f"{id(series)}.{layer.x}.{axis.part}.{origin}"
    numbers = {part: columns[MAX_LEADING_COLUMNS + part] for part in parts}
    if series.data["form"] != "number":  # a line that is joined over None is not the column
        numbers = {part: column for part, column in numbers.items() if not missing(column).any()}
    return [
        (*layer.appearance(series, part, parts)[:2], Growing(f"{key}.{part}", x, Column(column, total, most)))
        for part, column in numbers.items()
    ]
