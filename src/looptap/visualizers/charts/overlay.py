"""Which axes the streams of a chart have: below or above, left or right.

Streams that have the same along an axis share it: steps, epochs, the numbers of a histogram. What differs has the axis
above, or the one on the right, and so has what is of another scale. For a third there is no room, and a badge says so.
The same quantity of several runs, known by the name or the query of its stream, has one axis whatever its scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from looptap.visualizers.charts.base import FIXED_UNITS, LABEL, VALUE
from looptap.visualizers.charts.legends import label_of_stream
from looptap.visualizers.charts.reading.emptiness import ODD
from looptap.visualizers.charts.scales import far_from_first, magnitude, on_a_log_axis, on_two_axes
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.drawing.picture import Across, Axis, Band, Bars, Line, Mark, Points, Side

Drawn: TypeAlias = list[tuple[Series, list[Mark]]]
"""The streams of a chart, each with its marks."""

OVERLAID_FAMILIES = frozenset({"xy", "hist"})
"""Families whose charts may overlay each other, with axes of their own."""
EDGES = ("bottom", "top", "left", "right")
_MAX_NAMES_OF_AN_AXIS = 3
_MAX_TITLE_CHARACTERS = 40
_OVERLAID_OPACITY_SHARE = 0.4  # of a histogram that shares a chart with lines


class Axes(NamedTuple):
    """The axes of a picture; None where there is no such axis."""

    x: Axis
    y: Axis
    z: Axis | None = None
    top: Axis | None = None
    right: Axis | None = None


def no_room(series: Sequence[Series], new: Series) -> str:
    """Return why a stream has no place on a chart, by the kinds alone; "" if it has.

    Whether lines are over steps or epochs is known when their values are (`arranged`).
    """
    units = [one.layer.units(one)[0] for one in (*series, new)]
    fixed = list(dict.fromkeys(unit for unit in units if unit in FIXED_UNITS))
    counted = any(unit and unit not in FIXED_UNITS for unit in units)
    if LABEL in fixed and (counted or len(fixed) > 1):
        return "bars have labels along x, the others have numbers"
    if len(fixed) + counted > 2:
        return f"a chart has one x axis below and one above, and {', '.join(fixed)} would need a third"
    return ""


def arranged(series: Sequence[Series]) -> dict[Series, str]:
    """Give each stream its axes; return the streams that have none, and why.

    What counts steps, epochs or time is below, what has other numbers along x above.
    """
    without: dict[Series, str] = {}
    edges: dict[str, Across] = {}
    sides: dict[Side, str] = {one.side: one.layer.units(one)[1] for one in series if one.placed}
    for one in sorted(series, key=lambda one: one.layer.units(one)[0] in FIXED_UNITS):
        across, up = one.layer.units(one)
        if across and across not in edges and len(edges) == 2:
            below, above = edges
            without[one] = (
                f"{one.name} is over {across}, and the chart has {below} below and {above} above already: x='time' or "
                "x='event' draws all over one axis, a chart of its own does too"
            )
            continue
        one.across = edges.setdefault(across, "top" if edges else "bottom") if across else "bottom"
        if one.placed:
            continue
        both: tuple[Side, Side] = ("left", "right")
        side = next((side for side in both if sides.get(side, up) == up), None)
        if side is None:
            without[one] = f"{one.name} needs a third y axis: give it a chart of its own"
            continue
        one.side = side
        sides[side] = up
    return without


class Overlay:
    """Where marks stand; remembers what was apart, so that nothing flickers."""

    def __init__(self) -> None:
        self._apart = self._log = False

    def axes(self, drawn: Drawn, log: str | None) -> tuple[list[Mark], Axes]:
        """Return the marks of `arranged` streams, each with its axes, and all axes."""
        self._part(drawn)
        marks = [_at(mark, one) for one, mine in drawn for mark in mine]
        if len({one.choice.family for one, _ in drawn}) > 1:
            marks = _behind_lines(marks)
        streams = [one for one, _ in drawn]
        at = {edge: [one for one in streams if edge in (one.side, one.across)] for edge in EDGES}
        left, right, above = at["left"] or streams, at["right"], at["top"]
        x, y = own_axes(at["bottom"] or streams)[0], own_axes(left)[1]
        top, far = None, None
        if not right and not any(one.placed for one in streams) and self._plain(streams):
            marks, y, far = self._by_scale(marks, _quantities(drawn), y, log)
        if above:
            x, top = (
                _titled(x, _names(marks, across="bottom")),
                _titled(own_axes(above)[0], _names(marks, across="top")),
            )
        if right:
            names = _names(marks, side="right") or [one.name for one in right]
            y = _titled(y, _names(marks, side="left"), self._plain(left))
            far = _titled(own_axes(right)[1], names, self._plain(right))
        return marks, Axes(x, y, None, top, far)

    @staticmethod
    def _plain(series: Sequence[Series]) -> bool:
        """Return whether y has values, whose names are title enough."""
        return all(one.layer.units(one)[1] == VALUE for one in series)

    def _by_scale(
        self, marks: list[Mark], of: Sequence[str], y: Axis, log: str | None
    ) -> tuple[list[Mark], Axis, Axis | None]:
        """Return marks of which those of another scale are on the right, and the y axes."""
        self._log = on_a_log_axis(marks, of, self._log)
        if self._log:
            return marks, replace(y, log=log is None), None
        marks, there = on_two_axes(marks, of, self._apart)
        self._apart = bool(there)
        if not there:
            return marks, y, None
        return marks, replace(y, title=few(_names(marks, side="left"))), Axis(few(there))

    @staticmethod
    def _part(drawn: Drawn) -> None:
        """Move streams of another scale than the first above and to the right."""
        if len(drawn) < 2:
            return
        across = {one.layer.units(one)[0] for one, _ in drawn}
        if len(across) == 1 and across <= FIXED_UNITS - {LABEL}:
            for one in _far(drawn, "x"):
                one.across = "top"
        up = {one.layer.units(one)[1] for one, _ in drawn}
        if len(up) == 1 and VALUE not in up and not any(one.placed for one, _ in drawn):
            for one in _far(drawn, "y"):
                one.side = "right"


def _behind_lines(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks, with paler bars in a colour that none of the lines has."""
    taken = {mark.color for mark in marks if isinstance(mark, Line | Band)}
    free = next((color for color in COLORS if color not in taken), "")
    found: list[Mark] = []
    for mark in marks:
        if isinstance(mark, Bars):
            color = free if free and mark.color in taken else mark.color
            mark = replace(mark, opacity=_OVERLAID_OPACITY_SHARE, color=color)
        found.append(mark)
    return found


def own_axes(series: Sequence[Series]) -> tuple[Axis, Axis, Axis | None]:
    """Return the axes of streams as if they had the chart to themselves."""
    found = []
    layers: list[Any] = list(dict.fromkeys(one.layer for one in series))
    for layer in layers:
        every, layer.series = layer.series, [one for one in series if one.layer is layer]
        try:
            found.append(layer.axes())
        finally:
            layer.series = every
    if not found:
        return Axis(), Axis(), None
    x, y, z = found[0]
    titles = [y.title for _, y, _ in found]
    return x, replace(y, title=few(dict.fromkeys(titles)) if all(titles) else ""), z


def few(names: Iterable[str]) -> str:
    """Return the names as the title of an axis; "" if they are too many for one."""
    found = list(names)
    return ", ".join(found) if len(found) <= _MAX_NAMES_OF_AN_AXIS else ""


def _titled(axis: Axis, names: Sequence[str], plain: bool = False) -> Axis:
    """Return an axis whose title says what is drawn over it; ``plain``: only that."""
    if axis.title in names or not few(names):
        return axis
    if plain or not axis.title:
        return replace(axis, title=few(names))
    full = f"{axis.title} ({few(names)})"
    return axis if len(full) > _MAX_TITLE_CHARACTERS else replace(axis, title=full)


def _names(marks: Iterable[Mark], **where: str) -> list[str]:
    """Return the names of the marks with this ``side`` or ``across``, each once."""
    mine = [mark for mark in marks if where.items() <= {"side": mark.side, "across": mark.across}.items()]
    names = dict.fromkeys(getattr(mark, "name", "") for mark in mine if not isinstance(mark, Band))
    return [name for name in names if name and not name.endswith(ODD)]


def _at(mark: Mark, one: Series) -> Mark:
    """Return a mark on the axes of its stream."""
    if not isinstance(mark, Line | Band | Points | Bars) or (one.side == "left" and one.across == "bottom"):
        return mark
    return replace(mark, side=one.side, across=one.across)


def _measured(streams: Iterable[Series]) -> dict[Series, str]:
    """Return the name of what each stream measures: one for those of a name or query."""
    known: dict[str, str] = {}
    found: dict[Series, str] = {}
    for one in streams:
        words = [word for word in (label_of_stream(one.stream), one.stream.text) if word]
        words = words if one.stream.name or one.stream.text else [f"the stream {id(one)}"]
        found[one] = next((known[word] for word in words if word in known), words[0])
        known |= {word: found[one] for word in words if word not in known}
    return found


def _quantities(drawn: Sequence[tuple[Series, Sequence[Mark]]]) -> list[str]:
    """Return the quantity of each mark of all streams, in order.

    The only part that is drawn of a stream is known by its own name: train and validation may have a loss each.
    """
    names, found = _measured(one for one, _ in drawn), []
    for one, marks in drawn:
        parts = {(color, dash): part for (part, _), (_, color, dash) in one.lines.items()}
        several, quantity = len(set(parts.values())) > 1, names[one]
        for mark in marks:
            part = parts.get((mark.color, mark.dash)) if isinstance(mark, Line) else None
            if part is not None and one.data["form"] != "number":
                name = one.data["names"][part]
                quantity = f"{names[one]} {name}" if several or one.data.get("bare") else name
            elif not isinstance(mark, Points):  # points are beside their line
                quantity = names[one]
            found.append(quantity)
    return found


def _far(drawn: Drawn, along: str) -> list[Series]:
    """Return the streams whose quantity is of another scale than that of the first."""
    names = _measured([one for one, _ in drawn])
    sizes: dict[str, float] = {}
    for one, mine in drawn:
        columns = (column for mark in mine for column in (mark.xs if along == "x" else mark.ys))
        sizes[names[one]] = max(magnitude(columns), sizes.get(names[one], 0.0))
    far = far_from_first(sizes)
    return [one for one, _ in drawn if names[one] in far]
