"""Lines, bands, points and bars as matplotlib artists whose data can be set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patheffects import withStroke

from looptap.visualizers.data.colors import DARK, LIGHT, Theme, is_dark
from looptap.visualizers.drawing.backends.quick_lines import QuickLine
from looptap.visualizers.drawing.backends.space_notes import SpaceNotes
from looptap.visualizers.drawing.label_placement import beside
from looptap.visualizers.drawing.layouts import bar_sides, polygons, scale
from looptap.visualizers.drawing.picture import Axis, Band, Bars, Line, Mark, Numbers, Points

SMALL_FONT_POINTS, LARGE_FONT_POINTS = 7.5, 9.5
"""Font sizes in points."""
PLAIN = {"parse_math": False, "usetex": False}
"""Draws a job's text as it is: dollar signs do not start a formula."""
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
"""The dashes of a line as matplotlib names them."""
_SECONDS_PER_DAY = 86400.0
_OVER_FRAME_ORDER_NUMBER = 2.6  # of drawing: a frame has 2.5, and a line may lie on it
_FILL_ON_DARK_RATIO = 1.4  # of the opacity of bars behind lines: dark grounds swallow more
_BARS_ORDER_NUMBER = 0.9  # below what stands on the same axes


def drawable(text: str, family: str = "", weight: str = "normal") -> str:
    """Return the text with ▯ for characters that the font lacks: no warnings."""
    families = (family,) if family else tuple(rcParams["font.family"])
    known = _glyphs(families, weight, tuple(rcParams["font.sans-serif"]))
    return text if known.issuperset(text) else "".join(c if c in known else "▯" for c in text)


def theme_of(holder: Any) -> Theme:
    """Return the theme of the figure of axes or of a part of a figure, by its ground."""
    *ground, opacity = to_rgba(holder.get_figure(root=True).get_facecolor())
    return DARK if opacity and is_dark(*ground) else LIGHT


def draw_words(holder: Any, x: float, y: float, text: str, **how: Any) -> Any:
    """Return text on axes or on a figure; dollar signs are not a formula."""
    style = {"fontsize": SMALL_FONT_POINTS, "color": theme_of(holder).ink, **PLAIN, **how}
    return holder.text(x, y, drawable(text), **style)


def placed(values: Numbers, axis: Axis) -> Numbers:
    """Return numbers in the units of matplotlib's axis: times in days."""
    return values / _SECONDS_PER_DAY if axis.time else values


class LineArtist:
    """A line in the plane or in space, the area below it, and its notes."""

    def __init__(self, axes: Any, mark: Line, x: Axis, y: Axis) -> None:
        self.axes, self.x, self.y = axes, x, y
        style: dict[str, Any] = {"color": mark.color, "ls": DASHES[mark.dash], "alpha": mark.opacity, "lw": 1.4}
        flat = mark.z is None
        self.line = (
            axes.add_line(QuickLine([], [], **style, zorder=_OVER_FRAME_ORDER_NUMBER))
            if flat
            else axes.plot([], [], [], **style)[0]
        )
        self.area = None if mark.filled is None else _area(axes, mark.color, 0.6 * mark.opacity)
        self.notes: list[Any] = []
        self.places: list[int] = []
        theme = theme_of(axes)
        style = {"fontsize": SMALL_FONT_POINTS, "color": theme.ink, **PLAIN}
        self.in_space = None if flat else SpaceNotes(axes, theme.ground, **style)
        self.set(mark)

    @property
    def artists(self) -> list[Any]:
        """The artists in drawing order."""
        notes = self.notes if self.in_space is None else [self.in_space]
        return [*([] if self.area is None else [self.area]), self.line, *notes]

    def set(self, mark: Line) -> None:
        """Show this mark, which has the structure of the previous one."""
        x, y = placed(mark.x, self.x), placed(mark.y, self.y)
        if mark.z is None:
            self.line.set_data(x, y)
        else:
            self.line.set_data_3d(x, y, mark.z)
        self.line.set_marker("o" if _lonely(y) else "")
        self.line.set_markersize(3)
        if self.area is not None and mark.filled is not None:
            floor = placed(np.full(len(x), mark.filled), self.y)
            self.area.set_verts(polygons(x, floor, y))
        self._note(mark, x, y)

    def settle(self) -> None:
        """Place the notes beside the line, once the limits of its axes are known."""
        shown = [(one, place) for one, place in zip(self.notes, self.places, strict=False) if one.get_text()]
        if not shown or not isinstance(self.line, QuickLine):
            return
        figure = self.axes.get_figure(root=True)
        points = figure.dpi / 72
        x, y = self.line.get_transform().transform(self.line.get_xydata()).T
        wide = [0.58 * SMALL_FONT_POINTS * points * len(one.get_text()) for one, _ in shown]
        stands = beside(
            x, y, [place for _, place in shown], wide, 1.2 * SMALL_FONT_POINTS * points, self.axes.bbox.extents
        )
        for (one, _), stand in zip(shown, stands, strict=True):
            one.set_visible(stand is not None)
            if stand is not None:
                one.xyann = (stand.right / points, stand.up / points)
                one.set_ha(stand.align)

    def _note(self, mark: Line, x: Numbers, y: Numbers) -> None:
        known = np.isfinite(np.stack([x, y] if mark.z is None else [x, y, mark.z]))
        notes = [(i, text) for i, text in mark.notes if known[:, i].all()]
        if self.in_space is not None and mark.z is not None:
            places = np.array([(x[i], y[i], mark.z[i]) for i, _ in notes]).reshape(-1, 3)
            self.in_space.show(places, [drawable(text) for _, text in notes])
            return
        self.places = [i for i, _ in notes]
        while len(self.notes) < len(notes):
            self.notes.append(self._empty())
        for artist, (i, text) in zip(self.notes, notes, strict=False):
            artist.set_text(drawable(text))
            artist.xy = (x[i], y[i])
        for artist in self.notes[len(notes) :]:
            artist.set_text("")

    def _empty(self) -> Any:
        return self.axes.annotate(
            "",
            (0, 0),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=SMALL_FONT_POINTS,
            color=theme_of(self.axes).ink,
            annotation_clip=True,
            path_effects=[_rim(self.axes)],
            **PLAIN,
        )


def _rim(axes: Any) -> Any:
    """Return what keeps a text apart from the lines below it."""
    return withStroke(linewidth=2.0, foreground=theme_of(axes).ground)


class BandArtist:
    """The area between two curves."""

    def __init__(self, axes: Any, mark: Band, x: Axis, y: Axis) -> None:
        self.x, self.y = x, y
        self.area = _area(axes, mark.color, mark.opacity, mark.name)
        self.set(mark)

    @property
    def artists(self) -> list[Any]:
        """The artists in drawing order."""
        return [self.area]

    def set(self, mark: Band) -> None:
        """Show this mark, which has the structure of the previous one."""
        self.area.set_verts(polygons(placed(mark.x, self.x), placed(mark.low, self.y), placed(mark.high, self.y)))


class PointsArtist:
    """Points in the plane or in space, of one colour or each by its value."""

    def __init__(self, axes: Any, mark: Points, x: Axis, y: Axis) -> None:
        self.x, self.y = x, y
        colors = {"color": mark.color} if mark.values is None else {"c": [], "cmap": "viridis"}
        nowhere: list[list[float]] = [[]] * (2 if mark.z is None else 3)
        self.points = axes.scatter(*nowhere, s=12, alpha=mark.opacity, label=mark.name, **colors)
        self.set(mark)

    @property
    def artists(self) -> list[Any]:
        """The artists in drawing order."""
        return [self.points]

    def set(self, mark: Points) -> None:
        """Show this mark, which has the structure of the previous one."""
        columns = [placed(mark.x, self.x), placed(mark.y, self.y), *([] if mark.z is None else [mark.z])]
        known = np.isfinite(columns).all(axis=0)
        if mark.z is None:
            self.points.set_offsets(np.column_stack(columns)[known])
        else:
            self.points._offsets3d = tuple(column[known] for column in columns)  # the only way that matplotlib has
        if mark.values is not None:
            self.points.set_array(mark.values[known])
            self.points.set_clim(*scale(mark.values))


class BarsArtist:
    """Bars on labels, or of a histogram."""

    def __init__(self, axes: Any, mark: Bars, x: Axis, y: Axis, all_marks: Sequence[Mark]) -> None:
        self.x, self.y = x, y
        self.area = _area(axes, mark.color, mark.opacity, mark.name)
        if mark.opacity < 1:  # behind lines: an outline, which a dark ground shows too
            fill = min(1.0, mark.opacity * (_FILL_ON_DARK_RATIO if theme_of(axes).dark else 1.0))
            self.area.set(alpha=None, facecolor=to_rgba(mark.color, fill), edgecolor=mark.color, linewidth=0.8)
        self.area.set_zorder(_BARS_ORDER_NUMBER)
        self.show(mark, all_marks)

    @property
    def artists(self) -> list[Any]:
        """The artists in drawing order."""
        return [self.area]

    def show(self, mark: Bars, all_marks: Sequence[Mark]) -> None:
        """Show this mark, which has the structure of the previous one."""
        left, right = (placed(side, self.x) if mark.edges is not None else side for side in bar_sides(mark, all_marks))
        heights = placed(mark.heights, self.y)
        known = np.isfinite([left, right, heights]).all(axis=0)
        left, right, heights = left[known], right[known], heights[known]
        floor = np.full(len(left), bar_floor(mark.heights, self.y))
        corners = [(left, floor), (left, heights), (right, heights), (right, floor)]
        self.area.set_verts(np.stack([np.column_stack(corner) for corner in corners], axis=1))


def bar_floor(heights: Numbers, y: Axis) -> float:
    """Return where bars begin: at zero, which a logarithmic axis does not have."""
    known = heights[np.isfinite(heights)]
    return (float(known.min()) / 2 if known.size else 1.0) if y.log else 0.0


def _area(axes: Any, color: str, opacity: float, name: str = "") -> Any:
    area = PolyCollection([], facecolor=color, edgecolor=color, alpha=opacity, linewidth=0.5, label=name)
    axes.add_collection(area, autolim=False)
    return area


def _lonely(y: Numbers) -> bool:
    """Return whether no two points are joined, so that a line would be invisible."""
    known = np.isfinite(y)
    return not (known[1:] & known[:-1]).any()


@lru_cache(maxsize=8)
def _glyphs(families: tuple[str, ...], weight: str, sans: tuple[str, ...]) -> frozenset[str]:
    """Return what the fonts can show; ``sans`` is only a key of the cache."""
    wanted = (font_manager.FontProperties(family=[family], weight=weight) for family in families)
    found = (font_manager.findfont(font) for font in wanted)
    return frozenset(chr(code) for path in found for code in font_manager.get_font(path).get_charmap())
