"""`Chart`: streams on shared axes, and the picture of what has arrived.

A chart does not listen: a surface that is ready for the next frame calls `pull`, which takes in what is new since
the last time, and `draw`. So a slow surface takes larger steps and falls behind no further; a stream that nobody
looks at costs nothing but its own bounded buffer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from looptap.streams.stream import Stream
from looptap.streams.tables import Columns
from looptap.visualizers.choice import APPEND, Choice, Mode
from looptap.visualizers.picture import Picture, Side

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
"""The colours of streams; a colour belongs to a stream's name, in the order in which the names came."""


class IncompatibleStreams(ValueError):
    """Two streams do not share axes; the message names both and the way out."""


@dataclass(eq=False)
class Series:
    """One stream on a chart, and how far it has been taken in.

    ``data`` belongs to the chart: whatever it keeps of the values of this stream.
    """

    stream: Stream
    choice: Choice
    color: str
    side: Side = "left"
    taken: int = 0
    """The number of the newest value that was taken in."""
    skipped: int = 0
    complaint: str = ""
    """Why the first of the skipped values did not fit."""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the legend calls this stream."""
        return self.stream.name


class Chart:
    """Streams on shared axes. A kind of chart is a subclass: it takes values in and makes a `Picture` of them.

    A subclass writes `append` (mode append) or `frame` (mode frame), and `draw`; it may raise TypeError or
    ValueError for a value that does not fit, which becomes a badge. Methods may be called from any thread: all hold
    `lock`.
    """

    kind: ClassVar[str]
    family: ClassVar[str]
    mode: ClassVar[Mode] = APPEND

    def __init__(self, *, title: str = "") -> None:
        self.title = title
        self.series: list[Series] = []
        self.paused = False
        self.lock = threading.RLock()

    # ------------------------------------------------------------ what a subclass writes

    def append(self, series: Series, new: Columns) -> None:
        """Take in values that are points of the picture, in columns: values, event numbers, times."""
        raise NotImplementedError

    def frame(self, series: Series, value: Any) -> None:
        """Take in a value that is a whole picture."""
        raise NotImplementedError

    def draw(self) -> Picture:
        """The picture of what has been taken in."""
        raise NotImplementedError

    # ------------------------------------------------------------ what a surface calls

    def pull(self) -> bool:
        """Take in what has arrived since the last time; whether the picture has changed."""
        raise NotImplementedError
