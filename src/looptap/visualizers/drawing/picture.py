"""A chart's picture as plain data: axes and marks, which the backends draw.

A new picture is made for each frame and never changed; a surface that keeps the previous one sees by comparing what it
has to update. Arrays are float64 and decimated by the maker of the picture; NaN is a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]
Side: TypeAlias = Literal["left", "right"]
Across: TypeAlias = Literal["bottom", "top"]
"""The axis along x that a mark stands over."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Joined points, in space if they have ``z``; notes are (index, text)."""

    x: Numbers
    y: Numbers
    z: Numbers | None = None
    name: str = ""
    color: str = ""
    dash: str = "solid"
    """solid, dash, dot or dashdot."""
    opacity: float = 1.0
    filled: float | None = None
    """The height down to which the area below is filled; None for a line only."""
    notes: tuple[tuple[int, str], ...] = ()
    side: Side = "left"
    across: Across = "bottom"


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The area between two curves over one ``x``."""

    x: Numbers
    low: Numbers
    high: Numbers
    name: str = ""
    color: str = ""
    opacity: float = 0.25
    side: Side = "left"
    across: Across = "bottom"


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Separate points, in space if they have ``z``, coloured by ``values`` if given."""

    x: Numbers
    y: Numbers
    z: Numbers | None = None
    name: str = ""
    color: str = ""
    values: Numbers | None = None
    opacity: float = 1.0
    side: Side = "left"
    images: tuple[Numbers, ...] = ()
    """The sample that each point stands for, as pixels, for the pointer; or none."""
    across: Across = "bottom"


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """A bar per label; with ``edges`` (one more than heights), a histogram."""

    heights: Numbers
    labels: tuple[str, ...] = ()
    edges: Numbers | None = None
    name: str = ""
    color: str = ""
    opacity: float = 1.0
    side: Side = "left"
    across: Across = "bottom"


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """A matrix as a heat map, first row on top; ``written`` shows the numbers."""

    cells: Numbers
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    written: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Pictures side by side: uint8 (height, width, 3 or 4), with captions."""

    images: tuple[Numbers, ...]
    captions: tuple[str, ...] = ()
    columns: int = 0
    """The number of images in a row; 0 leaves it to the surface."""


@dataclass(frozen=True, slots=True, eq=False)
class Pie:
    """Shares of a whole."""

    shares: Numbers
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of texts under a row of titles."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Lines of plain text, newest last. Surfaces escape them: they come from the job."""

    lines: tuple[str, ...]


Mark: TypeAlias = Line | Band | Points | Bars | Grid | Images | Pie | Table | Text


@dataclass(frozen=True, slots=True, eq=False)
class VerticalLine:
    """A vertical line at ``x`` with a word beside it: a command, a restart.

    Where there is no room for the words of all rules of a picture, the later ones in its list have theirs.
    """

    x: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The title and limits of an axis; None leaves a limit to the data."""

    title: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    time: bool = False
    """True if the numbers are seconds since the epoch, to be shown as dates."""
    ticks: tuple[tuple[float, str], ...] = ()
    """Places that have a name instead of a number; none: the surface chooses numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A chart at one moment, as plain data.

    ``badges`` are short sentences about what does not fit or is missing, to be shown on the chart. ``guess`` says
    what was guessed where a shape was ambiguous, and how to override it. ``frame`` is (index, count) of the frame
    that is shown of those kept, for a slider; None where there are no frames.
    """

    marks: tuple[Mark, ...] = ()
    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    z: Axis | None = None
    right: Axis | None = None
    rules: tuple[VerticalLine, ...] = ()
    badges: tuple[str, ...] = ()
    guess: str = ""
    frame: tuple[int, int] | None = None
    offers: Mapping[str, Any] = field(default_factory=dict)
    """What a page that draws the picture may let its reader choose: smoothing, x, queries to copy."""
    top: Axis | None = None
    """The axis of marks that stand over another x than those below."""
