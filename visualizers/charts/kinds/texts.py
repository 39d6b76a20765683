"""Text: what a stream says, line by line, and the repr of what no chart is for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.base import APPEND, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.words import shown
from looptap.visualizers.drawing.picture import Mark
from looptap.visualizers.drawing.picture import Text as TextMark

MAX_LINES = 500
"""Lines of a stream that are kept."""


class TextChart(Chart):
    """The newest values as lines of text, the newest last."""

    kind: ClassVar[str] = "text"
    family: ClassVar[str] = "text"
    mode: ClassVar[Mode] = APPEND

    def append(self, series: Series, new: Columns) -> None:
        """Take in values of any type: a text as it is, anything else as it shows itself."""
        lines = series.data.setdefault("lines", deque(maxlen=MAX_LINES))
        for value in new.values[-MAX_LINES:]:
            lines.extend(shown(value, 2_000).splitlines()[:50] or [""])

    def sketch(self, series: Series) -> Iterator[Mark]:
        """The lines."""
        lines = series.data.get("lines", ())
        several = len([one for one in self.series if one.layer is self]) > 1
        yield TextMark(tuple(f"{series.name}: {line}" if several else line for line in lines))
