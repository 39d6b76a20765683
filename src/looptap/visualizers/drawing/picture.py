"""A chart's picture as plain data: axes and marks, which the backends draw.

A new picture is made for each frame and never changed; a surface that keeps the previous one sees by comparing what it
has to update. Arrays are float64 and decimated by the maker of the picture; NaN is a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]
Side: TypeAlias = Literal["left", "right"]
Across: TypeAlias = Literal["bottom", "top"]
"""The axis along x that a mark stands over."""
PanelKind: TypeAlias = Literal["plane", "space", "grid", "images", "pie", "table", "text"]
Columns: TypeAlias = tuple[Numbers, ...]


class _Drawable:
    """What the parts of charts know of every mark."""

    __slots__ = ()

    @property
    def panel(self) -> PanelKind:
        """The panel that it stands in; marks of a plane, or of space, share one."""
        return "plane"

    @property
    def xs(self) -> Columns:
        """Its numbers along x, on the axis ``across``."""
        return ()

    @property
    def ys(self) -> Columns:
        """Its numbers along y, on the axis ``side``."""
        return ()

    @property
    def seen(self) -> bool:
        """True if there is anything to see of it."""
        return True


class _Curve(_Drawable):
    """What lines and points have in common: numbers along x, y, and in space z."""

    __slots__ = ()
    x: Numbers
    y: Numbers
    z: Numbers | None

    @property
    def panel(self) -> PanelKind:
        """Whether it stands in the plane or in space."""
        return "plane" if self.z is None else "space"

    @property
    def xs(self) -> Columns:
        """Its numbers along x."""
        return (self.x,)

    @property
    def ys(self) -> Columns:
        """Its numbers along y."""
        return (self.y,)


class _Lone(_Drawable):
    """What marks with a panel of their own have in common."""

    __slots__ = ()
    side: ClassVar[Side] = "left"
    across: ClassVar[Across] = "bottom"


@dataclass(frozen=True, slots=True, eq=False)
class Line(_Curve):
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

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return bool((np.isfinite(self.x) & np.isfinite(self.y)).any())


@dataclass(frozen=True, slots=True, eq=False)
class Band(_Drawable):
    """The area between two curves over one ``x``."""

    x: Numbers
    low: Numbers
    high: Numbers
    name: str = ""
    color: str = ""
    opacity: float = 0.25
    side: Side = "left"
    across: Across = "bottom"

    @property
    def xs(self) -> Columns:
        """Its numbers along x."""
        return (self.x,)

    @property
    def ys(self) -> Columns:
        """Its numbers along y."""
        return self.low, self.high


@dataclass(frozen=True, slots=True, eq=False)
class Points(_Curve):
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

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return len(self.x) > 0


@dataclass(frozen=True, slots=True, eq=False)
class Bars(_Drawable):
    """A bar per label; with ``edges`` (one more than heights), a histogram."""

    heights: Numbers
    labels: tuple[str, ...] = ()
    edges: Numbers | None = None
    name: str = ""
    color: str = ""
    opacity: float = 1.0
    side: Side = "left"
    across: Across = "bottom"

    @property
    def xs(self) -> Columns:
        """Its numbers along x."""
        return () if self.edges is None else (self.edges,)

    @property
    def ys(self) -> Columns:
        """Its numbers along y."""
        return (self.heights,)

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return bool(np.isfinite(self.heights).any())


@dataclass(frozen=True, slots=True, eq=False)
class Grid(_Lone):
    """A matrix as a heat map, first row on top; ``written`` shows the numbers."""

    panel: ClassVar[PanelKind] = "grid"
    cells: Numbers
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    written: bool = False
    name: str = ""

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return bool(np.isfinite(self.cells).any())


@dataclass(frozen=True, slots=True, eq=False)
class Images(_Lone):
    """Pictures side by side: uint8 (height, width, 3 or 4), with captions."""

    panel: ClassVar[PanelKind] = "images"
    images: tuple[Numbers, ...]
    captions: tuple[str, ...] = ()
    columns: int = 0
    """The number of images in a row; 0 leaves it to the surface."""

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return bool(self.images)


@dataclass(frozen=True, slots=True, eq=False)
class Pie(_Lone):
    """Shares of a whole."""

    panel: ClassVar[PanelKind] = "pie"
    shares: Numbers
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table(_Lone):
    """Rows of texts under a row of titles."""

    panel: ClassVar[PanelKind] = "table"
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Text(_Lone):
    """Lines of plain text, newest last. Surfaces escape them: they come from the job."""

    panel: ClassVar[PanelKind] = "text"
    lines: tuple[str, ...]

    @property
    def seen(self) -> bool:
        """True if it has anything to see."""
        return bool(self.lines)


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

    @property
    def edges(self) -> dict[str, Axis]:
        """The axes of a plane by the edge at which they stand."""
        every = {"bottom": self.x, "top": self.top, "left": self.y, "right": self.right}
        return {edge: axis for edge, axis in every.items() if axis is not None}

    def edges_of(self, mark: Mark) -> tuple[Across, Side]:
        """Return the edges of a mark's axes, of those that there are."""
        return mark.across if self.top else "bottom", mark.side if self.right else "left"
