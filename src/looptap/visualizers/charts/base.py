"""`ChartKind`: what every kind of chart provides, and the two drawing modes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Protocol

from looptap.streams.stream.tables import Columns
from looptap.visualizers.drawing.picture import Axis, Mark

Mode = Literal["append", "frame"]
APPEND: Mode = "append"
FRAME: Mode = "frame"
"""In mode append a value is a point of the picture, in mode frame a whole picture."""

VALUE, INDEX, POSITION, LABEL = "values", "indices", "positions", "labels"
"""What may be along an axis, besides steps, epochs and time; see `ChartKind.units`."""
FIXED_UNITS = frozenset({VALUE, INDEX, POSITION, LABEL})


class ChartKind(Protocol):
    """A kind of chart: turns the values of a series into marks (see `Chart`)."""

    kind: ClassVar[str]
    family: ClassVar[str]
    mode: ClassVar[Mode]
    single: ClassVar[bool]
    plain: ClassVar[bool]

    def append(self, series: Any, new: Columns) -> None:
        """Add values that are points of the picture."""

    def frame(self, series: Any, value: Any) -> Any:
        """Return what is kept of a value that is a whole picture."""

    def sketch(self, series: Any) -> Iterable[Mark]:
        """Return the marks of one series."""

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes x, y and z; None for z means a chart in the plane."""

    def units(self, series: Any) -> tuple[str, str]:
        """Return what is along x and y; streams that agree in it share that axis."""

    def place(self, series: Any, what: str, at: float) -> float | None:
        """Return the x of a number, event or wall time; None if x is something else."""
