"""matplotlib panels with axes, in the plane and in space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib import dates, ticker
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from looptap.visualizers.data.ticks import tick_labels
from looptap.visualizers.drawing.axis_limits import Limits, fit, span
from looptap.visualizers.drawing.backends.matplotlib_marks import (
    DASHES,
    PLAIN,
    SMALL_FONT_POINTS,
    BandArtist,
    BarsArtist,
    LineArtist,
    PointsArtist,
    bar_floor,
    draw_words,
    drawable,
    placed,
    theme_of,
)
from looptap.visualizers.drawing.layouts import Panel, bar_labels, bar_sides, named, ticks
from looptap.visualizers.drawing.picture import Axis, Band, Bars, Line, Mark, Picture, Points

Change: TypeAlias = Literal["data", "limits", "structure"]
"""What an update did: set data (blit what moves); moved limits or rebuilt (both: draw the whole canvas)."""

Place: TypeAlias = Callable[[float, float, float, float], tuple[float, float, float, float]]
"""Maps margins in inches (left, bottom, right, top) to a rectangle in parts of the figure."""

MAX_LEGEND_SHARE = 0.25
"""The most of the height of a cell that the names of its lines take."""
_ARTISTS: dict[type, Any] = {Line: LineArtist, Band: BandArtist, Points: PointsArtist}
_TOP_AXIS_INCHES = 0.38  # of the ticks and the title of an axis above the plot
_ROW_INCHES = 0.15  # of a row of names, or of words of commands, above the axes
_MAX_RULE_ROWS = 2
_LETTER_INCHES = 0.6 * SMALL_FONT_POINTS / 72
_HANDLE_CHARACTERS = 5  # room for the patch of colour and the gaps beside a name


class PlaneView:
    """Lines, bands, points and bars over one or two x axes, with one or two y axes."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        self.axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.planes = _planes(self.axes, panel, picture)
        self.right = self.planes.get(("bottom", "right"))
        self.above = _TOP_AXIS_INCHES if picture.top else 0.0
        self.labels = bar_labels(panel.marks)
        for key, axes in self.planes.items():
            x, y = (picture.edges[edge] for edge in key)
            _scales(axes, x, y)
            axes.set_ylabel(drawable(y.title), fontsize=SMALL_FONT_POINTS, **PLAIN)
            axes.set_xlabel(drawable(x.title), fontsize=SMALL_FONT_POINTS, **PLAIN)
            axes.tick_params(labelsize=SMALL_FONT_POINTS)
        for (end, _), axes in self.planes.items():
            x = picture.edges[end]
            mine = [mark for mark in panel.marks if picture.edges_of(mark)[0] == end and not isinstance(mark, Bars)]
            columns = [column for mark in mine for column in mark.xs]
            if columns and not (self.labels or x.log or x.time) and all(map(_whole, columns)):
                axes.xaxis.set_major_locator(ticker.MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        theme = theme_of(figure)
        self.axes.grid(color=theme.faint, linewidth=0.5)
        self.axes.set_axisbelow(True)
        if self.labels:
            at = ticks(self.labels, 20)
            long = len(at) * max(len(text) for _, text in at) > 60
            self.axes.set_xticks(
                [i for i, _ in at],
                [drawable(text) for _, text in at],
                rotation=30 if long else 0,
                ha="right" if long else "center",
                **PLAIN,
            )
        if picture.x.ticks:
            self.axes.set_xticks(
                [place for place, _ in picture.x.ticks], [drawable(name) for _, name in picture.x.ticks]
            )
        if picture.y.ticks:
            named_at = [(place, drawable(name)) for place, name in picture.y.ticks if name]  # none: no numbers either
            self.axes.set_yticks([place for place, _ in named_at], [name for _, name in named_at], **PLAIN)
        wide = 0.25 + _LETTER_INCHES * max((len(name) for _, name in picture.y.ticks), default=0)
        self.rows = min(_MAX_RULE_ROWS, len(picture.rules))
        self.margins = (
            max(0.62, wide),
            0.42 + (0.5 if self.labels else 0),
            0.55 if picture.right else 0.15,
            0.1 + self.above,
        )
        self.bounds: dict[Any, Limits | None] = {}
        self.rules = LineCollection([], colors=theme.muted, linewidths=0.8, linestyles="dashed")
        self.axes.add_collection(self.rules, autolim=False)
        self.words = [draw_words(self.axes, 0, 1, "", va="bottom", color=theme.muted) for _ in picture.rules]
        self.marks: list[Any] = [self._artist(mark, panel, picture) for mark in panel.marks]
        self.named = named(panel.marks, picture)
        self.legend: Any = None
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move while the limits hold, in drawing order."""
        legend = [] if self.legend is None else [self.legend]
        ordered = sorted(self.marks, key=lambda mark: not isinstance(mark, BarsArtist))  # lines are drawn over bars
        return [*(one for mark in ordered for one in mark.artists), self.rules, *self.words, *legend]

    def place(self, place: Place) -> None:
        """Put the axes where ``place`` says, with room above them for names and words."""
        left, bottom, right, _ = self.margins
        wide, tall = _inches(self.axes.figure, place(left, bottom, right, 0.1 + self.above))
        self.legend, rows = _legend([*self.planes.values()][-1], self.named, wide, tall, self.rows)
        self.margins = (left, bottom, right, 0.1 + self.above + _ROW_INCHES * (rows + self.rows))
        for axes in self.planes.values():
            axes.set_position(place(*self.margins))
        if self.legend is not None:
            height = _inches(self.axes.figure, self.axes.get_position().bounds)[1]
            self.legend.set_bbox_to_anchor(
                (0, 1 + (self.above + _ROW_INCHES * self.rows + 0.02) / height), self.axes.transAxes
            )

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel, which has the structure of the previous one."""
        for artist, mark in zip(self.marks, panel.marks, strict=True):
            artist.show(mark, panel.marks) if isinstance(mark, Bars) else artist.set(mark)
        at = placed(np.array([rule.x for rule in picture.rules]), picture.x)
        self.rules.set_segments([[(x, 0), (x, 1)] for x in at])
        self.rules.set_transform(self.axes.get_xaxis_transform())
        moved = self._fit(panel, picture)
        for artist in self.marks:
            if isinstance(artist, LineArtist):
                artist.settle()
        self._say(picture, at)
        return "limits" if moved else "data"

    def _say(self, picture: Picture, at: Any) -> None:
        """Put the words of commands above the axes; the later rules have precedence."""
        low, high = self.axes.get_xlim()
        across = self.axes.get_xaxis_transform()
        figure = self.axes.get_figure(root=True)
        box, letter = self.axes.bbox, _LETTER_INCHES * figure.dpi
        row_height, lowest = (inches * figure.dpi / box.height for inches in (_ROW_INCHES, self.above))
        taken: list[list[tuple[float, float]]] = [[] for _ in range(self.rows)]  # of the words in each row, in pixels
        for text, x, rule in reversed(list(zip(self.words, at, picture.rules, strict=True))):
            wide, left = letter * len(rule.text), float(across.transform((np.clip(x, low, high), 0))[0])
            left = max(box.x0, min(left, box.x1 - wide))
            right = left + wide + letter
            free = (i for i, row in enumerate(taken) if all(right < start or left > end for start, end in row))
            row = next(free, -1)
            said = row >= 0 and low <= x <= high
            if said:
                taken[row].append((left, right))
            text.set_text(drawable(rule.text) if said else "")
            text.set_transform(self.axes.transAxes)
            text.set_position(((left - box.x0) / box.width, 1.01 + lowest + row_height * max(0, row)))

    def plane_of(self, mark: Mark, picture: Picture) -> Any:
        """Return the axes that a mark is drawn on."""
        return self.planes[picture.edges_of(mark)]

    def _artist(self, mark: Mark, panel: Panel, picture: Picture) -> Any:
        axes, (x, y) = self.plane_of(mark, picture), (picture.edges[edge] for edge in picture.edges_of(mark))
        if isinstance(mark, Bars):
            return BarsArtist(axes, mark, x, y, panel.marks)
        return _ARTISTS[type(mark)](axes, mark, x, y)

    def _fit(self, panel: Panel, picture: Picture) -> bool:
        """Move the limits if the data needs it; return whether they were moved."""
        limits: dict[str, Callable[..., Any]] = {}
        for (across, side), axes in self.planes.items():  # axes of several pairs are set once
            limits = {across: axes.set_xlim, side: axes.set_ylim} | limits
        moved = False
        for edge, put in limits.items():
            axis, now = picture.edges[edge], self.bounds.get(edge)
            mine = [mark for mark in panel.marks if edge in picture.edges_of(mark)]
            along, pad = (_across, 0.02) if edge in ("bottom", "top") else (_upward, 0.05)
            columns = [column for mark in mine for column in along(mark, panel, axis)]
            self.bounds[edge] = new = fit(now, span(columns), axis, pad)
            if new is not now:
                put(*placed(np.array(new), axis))
                moved = True
        return moved


class SpaceView:
    """Lines and points in space."""

    def __init__(self, figure: Any, place: Place, panel: Panel, picture: Picture) -> None:
        self.axes = figure.add_axes((0.1, 0.1, 0.8, 0.8), projection="3d")
        self.axis = (picture.x, picture.y, picture.z or Axis())
        for name, axis in zip("xyz", self.axis, strict=True):
            getattr(self.axes, f"set_{name}label")(drawable(axis.title), fontsize=SMALL_FONT_POINTS, **PLAIN)
        self.axes.tick_params(labelsize=SMALL_FONT_POINTS - 1)
        self.bounds: list[Limits | None] = [None, None, None]
        plain = Axis()  # space has no logarithmic and no time axis; it shows the numbers
        self.marks: list[Any] = [_ARTISTS[type(mark)](self.axes, mark, plain, plain) for mark in panel.marks]
        self.named = named(panel.marks, picture)
        self.legend: Any = None
        self.place(place)
        self.set(panel, picture)

    @property
    def artists(self) -> list[Any]:
        """The artists that move while the limits hold, in drawing order."""
        return [*(one for mark in self.marks for one in mark.artists), *filter(None, [self.legend])]

    def place(self, place: Place) -> None:
        """Put the axes where ``place`` says, with room above them for names."""
        self.legend, rows = _legend(self.axes, self.named, *_inches(self.axes.figure, place(0.1, 0.25, 0.35, 0.05)))
        self.axes.set_position(place(0.1, 0.25, 0.35, 0.05 + _ROW_INCHES * rows))
        if self.legend is not None:
            self.legend.set_bbox_to_anchor((0, 1.0), self.axes.transAxes)

    def set(self, panel: Panel, picture: Picture) -> Change:
        """Show this panel, which has the structure of the previous one."""
        moved = False
        for artist, mark in zip(self.marks, panel.marks, strict=True):
            artist.set(mark)
        for i, name in enumerate("xyz"):
            data = span(getattr(mark, name) for mark in panel.marks)
            shape = Axis(low=self.axis[i].low, high=self.axis[i].high)
            new = fit(self.bounds[i], data, shape, 0.02)
            if new is not self.bounds[i]:
                self.bounds[i], moved = new, True
                getattr(self.axes, f"set_{name}lim")(*new)
        return "limits" if moved else "data"


def tint(axes: Any) -> None:
    """Give axes the colours of the theme of their figure."""
    theme = theme_of(axes)
    axes.set_facecolor("none")
    axes.title.set_color(theme.ink)
    axes.tick_params(which="both", color=theme.muted, labelcolor=theme.ink)
    for spine in axes.spines.values():
        spine.set_edgecolor(theme.muted)
    for axis in filter(None, (getattr(axes, name, None) for name in ("xaxis", "yaxis", "zaxis"))):
        axis.label.set_color(theme.ink)
        axis.get_offset_text().set_color(theme.ink)
        if theme.dark and hasattr(axis, "set_pane_color"):  # of axes in space
            axis.set_pane_color(theme.ground)
            axis._axinfo["grid"]["color"] = theme.faint  # the only way that matplotlib has


def _whole(column: Any) -> bool:
    known = column[np.isfinite(column)]
    return bool((known == np.floor(known)).all())


def _planes(axes: Any, panel: Panel, picture: Picture) -> dict[tuple[str, str], Any]:
    """Return axes for each pair of an x and a y axis that marks have."""
    used = {picture.edges_of(mark) for mark in panel.marks}
    found = {("bottom", "left"): axes}
    if picture.right:
        found["bottom", "right"] = right = axes.twinx()
        right.set_xlim(axes.get_xlim())
    above = [side for side in ("left", "right") if ("top", side) in used] or ["left"] * bool(picture.top)
    for side in above:
        found["top", side] = twin = found["bottom", side].twiny()
        if side != above[0]:
            twin.sharex(found["top", above[0]])
            twin.xaxis.set_visible(False)
    barred = {picture.edges_of(mark) for mark in panel.marks if isinstance(mark, Bars)}
    for key, plane in found.items():
        plane.set_zorder(int(bool(barred) and key not in barred))  # lines are drawn over bars
    return found


def _across(mark: Mark, panel: Panel, x: Axis) -> Sequence[Any]:
    """Return the columns of a mark that its x axis has to show."""
    return bar_sides(mark, panel.marks) if isinstance(mark, Bars) else mark.xs


def _upward(mark: Mark, panel: Panel, y: Axis) -> Sequence[Any]:
    """Return the columns of a mark that its y axis has to show, with where it begins."""
    floor = bar_floor(mark.heights, y) if isinstance(mark, Bars) else getattr(mark, "filled", None)
    return mark.ys if floor is None or (y.log and floor <= 0) else [*mark.ys, np.array([floor])]


class Numbers(ticker.Formatter):
    """Writes the numbers at ticks as all surfaces do."""

    def __init__(self, *, log: bool = False) -> None:
        self._log = log

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the text for one number."""
        return tick_labels([x], self._log)[0]

    def format_ticks(self, values: Any) -> list[str]:
        """Return the texts for all ticks of an axis."""
        return tick_labels([float(value) for value in values], self._log)


_TIMES = {
    "formats": ["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S.%f"],
    "zero_formats": ["", "%Y", "%b", "%b-%d", "%H:%M", "%H:%M:%S.%f"],
    "offset_formats": ["", "%Y", "%Y-%b", "%Y-%b-%d", "%Y-%b-%d", "%Y-%b-%d"],
}
"""Texts of times by their unit, years to seconds: a time of day is one without its neighbours."""


def _scales(axes: Any, x: Axis, y: Axis) -> None:
    for axis, put, mine in ((x, axes.set_xscale, axes.xaxis), (y, axes.set_yscale, axes.yaxis)):
        if axis.log:
            put("log", nonpositive="mask")
            mine.set_major_formatter(Numbers(log=True))
            mine.set_minor_formatter(ticker.NullFormatter())
        elif axis.time:
            locator = dates.AutoDateLocator()
            mine.set_major_locator(locator)
            mine.set_major_formatter(dates.ConciseDateFormatter(locator, **_TIMES))
            mine.get_offset_text().set_fontsize(SMALL_FONT_POINTS)
        else:
            mine.set_major_formatter(Numbers())


def _inches(figure: Any, bounds: tuple[float, float, float, float]) -> tuple[float, float]:
    """Return width and height, in inches, of a part of a figure."""
    dpi = figure.get_figure(root=True).dpi
    return max(0.1, bounds[2] * figure.bbox.width / dpi), max(0.1, bounds[3] * figure.bbox.height / dpi)


def _legend(axes: Any, marks: Sequence[Any], wide: float, tall: float, rows_above: int = 0) -> tuple[Any, int]:
    """Return the names above the axes, where no data is, and their rows.

    ``wide`` and ``tall`` are the room in inches; names beyond a quarter of it are counted.
    """
    old = axes.get_legend()
    if old is not None:
        old.remove()
    if not marks:
        return None, 0
    longest = max(len(mark.name) for mark in marks)
    columns = max(1, int(wide / (_LETTER_INCHES * (longest + _HANDLE_CHARACTERS))))
    most = max(1, int(MAX_LEGEND_SHARE * tall / _ROW_INCHES) - rows_above)
    rows = min(most, -(-len(marks) // columns))
    room = len(marks) if len(marks) <= rows * columns else max(1, rows * columns - 1)
    left_out = len(marks) - room if len(marks) > room + 1 else 0  # a single one takes no more room than its number
    handles: list[Any] = [_handle(mark) for mark in marks[: len(marks) - left_out]]
    if left_out:
        handles.append(Patch(alpha=0, label=f"… {left_out} more"))
    # matplotlib fills columns first: the names are to be read in rows
    ordered = [handles[i] for column in range(columns) for i in range(column, len(handles), columns)]
    legend = axes.legend(
        handles=ordered,
        loc="lower left",
        fontsize=SMALL_FONT_POINTS,
        handlelength=1.4,
        ncols=columns,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.25,
        columnspacing=1.2,
        handletextpad=0.5,
    )
    theme = theme_of(axes)
    for text in legend.get_texts():
        text.set(color=theme.ink, **PLAIN)
    return legend, rows


def _handle(mark: Any) -> Any:
    """Return what stands before a name: the stroke of a line, else a patch of colour."""
    if isinstance(mark, Line):
        return Line2D(
            [],
            [],
            color=mark.color,
            ls=DASHES[mark.dash],
            alpha=max(0.3, mark.opacity),
            lw=2,
            label=drawable(mark.name),
        )
    return Patch(color=mark.color, alpha=max(0.3, mark.opacity), label=drawable(mark.name))
