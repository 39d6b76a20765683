"""Lines: numbers over steps, pairs, rows and dicts of numbers, with notes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from looptap.streams.counts import count_of, unit_of
from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.axes import EVENT, MAX_LEADING_COLUMNS, NUMBER, RANK, TIME, WALL, Over, over
from looptap.visualizers.charts.base import APPEND, VALUE, Mode
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.legends import label_of_stream, run_of
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.charts.reading.counting import XWatch
from looptap.visualizers.charts.reading.emptiness import ODD
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.numbers import (
    MISSING,
    Floats,
    describe,
    is_array,
    is_number,
    missing,
    number,
    rows_as_array,
    scalars,
)
from looptap.visualizers.data.sample_buffer import MAX_DRAWN_POINTS, SampleBuffer, thinned
from looptap.visualizers.data.smoothing import smoothed
from looptap.visualizers.drawing.picture import Axis, Mark, Points
from looptap.visualizers.drawing.picture import Line as LineMark

RAW_OPACITY_SHARE = 0.25
"""The opacity of a line behind its smoothed form."""
_MAX_POINTS_PER_STREAM = 40_000  # points of one stream that are drawn, of all its lines together
_MAX_LINES = 200  # lines that a stream may have
_MAX_MARKED_NANS = 200  # whose places are marked, of more some all along the line
_MAX_NOTES = 100
_MAX_NOTE_CHARACTERS = 120
_PLACES = {"number": NUMBER, "event": EVENT, "time": TIME, "wall": WALL}


class LineChart(Chart):
    """A line for each part of the values, over their step or the event number."""

    kind: ClassVar[str] = "line"
    family: ClassVar[str] = "xy"
    mode: ClassVar[Mode] = APPEND
    plain: ClassVar[bool] = True

    # ------------------------------------------------------------ taking in

    def append(self, series: Series, new: Columns) -> None:
        """Add numbers, tuples of numbers or dicts of numbers, like the first value."""
        data = series.data
        if "names" not in data:
            data["names"], data["form"] = self.parts(series, new.values[0] if series.sample is None else series.sample)
            data["ring"] = SampleBuffer(MAX_LEADING_COLUMNS + len(data["names"]), series.points)
            data["start"], data["ranks"] = float(new.times[0]), set()
            named = data["form"] == "dict" or not data.get("bare")
            named = named and len(data["names"]) > 1 and schemas.tells(data["names"], series.stream.text)
            named = named or series.choice.clock is not None
            data["counting"] = XWatch(self.counted(series) if named else None, named=named)
        parts = self.numbers(series, new.values)
        data["counting"].add(parts, new.numbers, new.ranks, [seam.after for seam in series.stream.seams])
        data["ring"].append(np.vstack([new.numbers, new.events, new.times, new.walls, new.ranks, parts]))
        data["ranks"].update(np.unique(new.ranks).tolist())

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return a value's part names and form: number, row or dict. Raises TypeError."""
        schema = series.choice.schema
        if isinstance(value, dict):
            return list(map(str, value))[:_MAX_LINES], "dict"
        if is_number(value) or (is_array(value) and math.prod(value.shape) == 1):
            return [label_of_stream(series.stream)], "number"
        if isinstance(value, tuple | list) and value:
            width = len(value)
            of = label_of_stream(series.stream)
            bare = ("x", "y", "z")[:width] if 1 < width < 4 else tuple(f"{of}[{place}]" for place in range(width))
            series.data["bare"] = len(schema) != width
            clock = series.choice.clock
            bare = bare if clock is None else tuple("time" if i == clock else name for i, name in enumerate(bare))
            return list(bare if series.data["bare"] else schema), "row"
        raise TypeError(f"expected number, got {describe(value)}")

    def numbers(self, series: Series, values: Sequence[Any]) -> Floats:
        """Return the parts of the values (parts, n). Raises TypeError if one is wrong."""
        data = series.data
        match data["form"]:
            case "number":
                return scalars(values)[None]
            case "row":
                return rows_as_array(values, len(data["names"]))
        found: Floats = _of_dicts(series, values)
        return found

    def counted(self, series: Series) -> int | None:
        """Return the part of the values that is x by its name or as a date."""
        clock, names = series.choice.clock, series.data["names"]
        return clock if clock == 0 or (found := schemas.x_of(names)) is None else found

    # ------------------------------------------------------------ drawing

    def over(self, series: Series, columns: Floats) -> Over:
        """Return the x axis of one stream."""
        data = series.data
        run = run_of(series.stream)
        starts = [one.data["start"] for one in self.series if "start" in one.data and run_of(one.stream) is run]
        start = min([*starts, data["start"]]) if run is not None else data["start"]
        part, clock = self.x_part(series), series.choice.clock
        found = over(columns, data["names"], self.x, series.stream.on, start, part, clock)
        remark = found.remark or (
            f"{found.title} repeats: its values are drawn one after the other" if found.spread else ""
        )
        if data["counting"].starts_again and not self.x and (again := self.counted(series)) is not None:
            remark = f"{data['names'][again]} starts again, so it is not x; x={data['names'][again]!r} makes it x"
        series.remark("x", remark)
        return found

    def units(self, series: Series) -> tuple[str, str]:
        """Return what x counts, and that y is a value."""
        if "ring" not in series.data:
            return unit_of(self.x or series.stream.on or "event"), VALUE
        newest, names = series.data["ring"].columns[:, -1:], series.data["names"]
        return unit_of(over(newest, names, self.x, series.stream.on, 0.0, self.x_part(series)).title), VALUE

    def x_part(self, series: Series) -> int | None:
        """Return the part of the values that is x unless another is requested."""
        part: int | None = 0 if self.pair(series) else series.data["counting"].part
        return part

    def sketch(self, series: Series) -> Iterator[Mark]:
        """Yield the marks of the kept values, if there are any."""
        if "ring" in series.data:
            yield from self.curves(series, series.data["ring"].columns)
            ring: SampleBuffer = series.data["ring"]
            gone = ring.given_up + series.passed
            said = f"the newest {len(ring):,} of {len(ring) + gone:,} values are drawn"
            series.remark("length", said if gone else "")

    def curves(self, series: Series, columns: Floats) -> Iterator[Mark]:
        """Yield a line for each part and rank, and points for NaN and infinities."""
        series.data["odd"], several = 0, sorted(series.data["ranks"])[:_MAX_LINES]
        for rank in several if len(several) > 1 else [None]:
            mine = columns if rank is None else columns[:, columns[RANK] == rank]
            yield from self._lines(series, mine, rank, len(several))
        odd = series.data["odd"]
        series.remark("nan", f"{odd:,} number{'s are' if odd != 1 else ' is'} NaN or infinite" if odd else "")

    def _lines(self, series: Series, columns: Floats, rank: int | None = None, ranks: int = 1) -> Iterator[Mark]:
        """Yield the lines of all ranks, or of one of several."""
        axis = self.over(series, columns)
        drawn = self.drawn(series, axis)
        few = max(50, min(MAX_DRAWN_POINTS, _MAX_POINTS_PER_STREAM // max(1, len(drawn) * ranks)))
        most = self.points if self.whole else few
        breaks = breaks_of(series, columns)
        for part in drawn:
            x, y, ends = axis.x, columns[MAX_LEADING_COLUMNS + part], breaks
            if series.data["form"] != "number" and (none := missing(y)).any():  # None: joined over
                x, y, ends = x[~none], y[~none], np.searchsorted(np.flatnonzero(~none), breaks)
            finite = np.where(np.isfinite(y), y, np.nan)
            name, color, dash = self.appearance(series, part, drawn, rank)
            line = _joined(x, finite, ends, most, LineMark(x, y, name=name, color=color, dash=dash, side=series.side))
            if self.weight:
                yield replace(line, name="", opacity=RAW_OPACITY_SHARE)
                line = _joined(x, smoothed(y, self.weight), ends, most, line)
            yield line
            if len(breaks) and (alone := _alone(line.y)).any():  # a line of one point is invisible
                yield Points(line.x[alone], line.y[alone], color=color, side=series.side)
            if gaps := int(np.isnan(finite).sum()):
                series.data["odd"] += gaps
                yield _odd(x, finite, name, color, series)

    def drawn(self, series: Series, axis: Over) -> list[int]:
        """Return the parts that are lines: those requested, else all but the step."""
        names = series.data["names"]
        if series.y:
            unknown = [name for name in series.y if name not in names]
            there = f"has no {', '.join(map(repr, unknown))}; there are {', '.join(names)}"
            series.remark("y", there if unknown else "")
            return [i for i, name in enumerate(names) if name in series.y]
        over = {axis.part, series.choice.clock, self.counted(series) if len(names) > 1 else None}
        drawn = [i for i, name in enumerate(names) if i not in over and not schemas.is_step(name)]
        return drawn or [len(names) - 1]

    def pair(self, series: Series) -> bool:
        """Return whether the values are pairs without names, of which the first is x."""
        data = series.data
        if data["form"] != "row" or len(data["names"]) != 2 or series.choice.clock == 1:
            return False
        bare = data.get("bare", False) or not schemas.tells(data["names"], series.stream.text)
        return bare or series.choice.kind != "line"

    def appearance(self, series: Series, part: int, drawn: list[int], rank: int | None = None) -> tuple[str, str, str]:
        """Return name, colour and dash of a line: those of its name on all charts."""
        name = self._name(series, part, drawn) + (f" rank {rank}" if rank is not None else "")
        known = series.lines.get((part, rank))
        if known is None or known[0] != name:
            alike = [one for one in self.series if one is not series and one.choice.family == series.choice.family]
            others = [look for one in alike for look in one.looks]
            mine = [look for key, (_, *look) in series.lines.items() if key != (part, rank)]
            taken = [*others, *((color, dash) for color, dash in mine)]
            color, dash = self.palette.look(name, taken, "" if mine else series.color)
            series.lines[part, rank] = name, color, dash if series.dash == "solid" else series.dash
        return series.lines[part, rank]

    def _name(self, series: Series, part: int, drawn: list[int]) -> str:
        """Return the name of a line, with that of its stream where it needs one."""
        if len(drawn) == 1 and series.named:
            return series.name
        name: str = series.data["names"][part]
        if len(drawn) == 1:
            return name
        elsewhere = {other for one in self.series if one is not series for other in one.data.get("names", ())}
        return f"{series.name} {name}" if len(self.series) > 1 and (series.named or name in elsewhere) else name

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes, titled where they show a single thing."""
        mine = [one for one in self.own if "ring" in one.data]
        if not mine:
            return Axis(), Axis(), None
        first = mine[0]
        axis = self.over(first, first.data["ring"].columns)
        drawn = self.drawn(first, axis)
        title = ""
        if len(drawn) == 1 and all(one is first or one.side != first.side for one in mine):
            title = first.name if first.data["form"] == "number" else first.data["names"][drawn[0]]
        return Axis(axis.title, time=axis.clock), Axis(title), None

    @property
    def xs(self) -> tuple[str, ...]:
        """What ``x`` may be set to: counts that the values have, their number, times."""
        if not any("ring" in one.data for one in self.series):
            return ()
        found = {count_of(name) for one in self.series for name in one.data.get("names", ())}
        counts = [what for what in ("step", "epoch") if what in found]
        return *counts, "event", "time", "wall"

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return the x of a number, event or wall time; None if it is not kept.

        An event between two values is between their x.
        """
        if "ring" not in series.data:
            return None
        columns = series.data["ring"].columns
        if what == "event" and (seams := [seam.after for seam in series.stream.seams]):
            columns = columns[:, np.searchsorted(columns[NUMBER], seams[-1], side="right") :]  # those of the last run
        known = columns[_PLACES[what]]
        index = int(np.searchsorted(known, at))
        last = len(known) - (what == "number")
        if not len(known) or not known[0] <= at or index > last:
            return None
        x = self.over(series, columns).x
        between = math.nan if what == "number" else float(np.interp(at, known, x))
        return float(x[min(index, len(known) - 1)]) if math.isnan(between) else between


class AnnotatedLineChart(LineChart):
    """A line of pairs, with a text at some of its points: (x, y, text)."""

    kind: ClassVar[str] = "annotated"
    width: ClassVar[int] = 2

    def parts(self, series: Series, value: Any) -> tuple[list[str], str]:
        """Return the names of a value's numbers; its text is kept separately."""
        schema, width = series.choice.schema, self.width
        series.data["texts"] = deque(maxlen=series.points)
        return list(schema[:width] if len(schema) == width + 1 else ("x", "y", "z")[:width]), "row"

    def numbers(self, series: Series, values: Sequence[Any]) -> Floats:
        """Return the numbers of the values, and keep their texts. Raises TypeError."""
        width = self.width
        for value in values:
            if not isinstance(value, tuple | list) or len(value) != width + 1 or not isinstance(value[-1], str | None):
                raise TypeError(f"expected ({'number, ' * width}str), got {describe(value)}")
        found = rows_as_array([tuple(value[:width]) for value in values], width)
        series.data["texts"].extend(value[-1] or "" for value in values)
        return found

    def curves(self, series: Series, columns: Floats) -> Iterator[Mark]:
        """Yield the line, with the newest of its texts; it is not smoothed."""
        self.weight = 0.0
        for mark in super().curves(series, columns):
            yield self.noted(mark, series) if isinstance(mark, LineMark) else mark

    def noted(self, mark: LineMark, series: Series) -> LineMark:
        """Return the line with every point that has a text, even if thinned out."""
        columns = series.data["ring"].columns
        axis = self.over(series, columns)
        y = columns[MAX_LEADING_COLUMNS + 1]
        places = noted_places(series.data["texts"])
        picked = np.union1d(thinned(y), np.array(places, np.intp)).astype(np.intp)
        shown = np.where(np.isfinite(y[picked]), y[picked], np.nan)
        breaks = breaks_of(series, columns)
        notes = moved(notes_at(series.data["texts"], places, picked), picked, breaks)
        x, shown = broken(picked, breaks, axis.x[picked], shown)
        return replace(mark, x=x, y=shown, notes=notes)


def noted_places(texts: deque[str]) -> list[int]:
    """Return the indices of the newest non-empty texts, oldest first."""
    last = len(texts) - 1
    return [last - back for back in islice((i for i, text in enumerate(reversed(texts)) if text), _MAX_NOTES)][::-1]


def notes_at(texts: deque[str], places: Sequence[int], picked: NDArray[np.intp]) -> tuple[tuple[int, str], ...]:
    """Return the notes of a line of the points ``picked``, which include ``places``."""
    at = np.searchsorted(picked, np.array(places, np.intp))
    return tuple((int(index), texts[place][:_MAX_NOTE_CHARACTERS]) for index, place in zip(at, places, strict=True))


def _of_dicts(series: Series, values: Sequence[Any]) -> Any:
    """Return columns of dicts; a new name gets a line, up to a bound."""
    names: list[str] = series.data["names"]
    if set(map(type, values)) != {dict}:
        value = next(value for value in values if type(value) is not dict)
        raise TypeError(f"expected a dict of number, got {describe(value)}")
    kinds = set(map(tuple, values))
    if len(kinds) == 1 and list(map(str, *kinds)) == names:
        return rows_as_array([tuple(value.values()) for value in values], len(names))
    found = [{str(name): number(part) for name, part in value.items()} for value in values]
    known = set(names)
    fresh = [name for name in dict.fromkeys(name for value in found for name in value) if name not in known]
    if len(names) + len(fresh) > _MAX_LINES:
        series.remark("lines", f"the first {_MAX_LINES} lines are drawn")
        fresh = fresh[: _MAX_LINES - len(names)]
    if fresh:
        names += fresh
        series.data["ring"].widen(len(fresh))
    return np.array([[value.get(name, MISSING) for value in found] for name in names]).reshape(len(names), len(values))


def _joined(x: Floats, y: Floats, breaks: NDArray[np.intp], most: int, line: LineMark) -> LineMark:
    """Return a line of other points, at most ``most``, with its gaps."""
    picked = thinned(y, most)
    across, up = broken(picked, breaks, x[picked], y[picked])
    return replace(line, x=across, y=up)


def _odd(x: Floats, y: Floats, name: str, color: str, series: Series) -> Points:
    """Return points for the NaN of a line, at the height of the last number before.

    Without any, they have no height of their own (`grounded`).
    """
    places, known = np.flatnonzero(np.isnan(y)), np.flatnonzero(~np.isnan(y))
    if len(places) > _MAX_MARKED_NANS:
        places = places[np.linspace(0, len(places) - 1, _MAX_MARKED_NANS).astype(np.intp)]
    before = np.maximum(np.searchsorted(known, places) - 1, 0)  # the first number for those that none is before
    height = y[known[before]] if len(known) else np.full(len(places), np.nan)
    return Points(x[places], height, name=f"{name}: {ODD}", color=color, opacity=0.6, side=series.side)


def breaks_of(series: Series, columns: Floats) -> NDArray[np.intp]:
    """Return the indices of points that follow missing values or start another run."""
    after = [seam.after for seam in series.stream.seams] + [gap.after for gap in series.stream.gaps]
    return np.searchsorted(columns[NUMBER], after, side="right") if after else np.empty(0, np.intp)


def broken(picked: NDArray[np.intp], breaks: NDArray[np.intp], x: Floats, *parts: Floats) -> list[Floats]:
    """Return a line with NaN before each break in all its coordinates but ``x``."""
    at = _places(picked, breaks)
    return [np.insert(x, at, x[at]), *(np.insert(part, at, np.nan) for part in parts)] if len(at) else [x, *parts]


def _alone(y: Floats) -> NDArray[np.bool_]:
    """Return the points of a line that are joined to no other."""
    there = np.r_[False, np.isfinite(y), False]
    found: NDArray[np.bool_] = there[1:-1] & ~there[:-2] & ~there[2:]
    return found


def moved(
    notes: tuple[tuple[int, str], ...], picked: NDArray[np.intp], breaks: NDArray[np.intp]
) -> tuple[tuple[int, str], ...]:
    """Return the notes of a line of the points ``picked`` after `broken`."""
    at = _places(picked, breaks)
    return tuple((index + int(np.searchsorted(at, index, side="right")), text) for index, text in notes)


def _places(picked: NDArray[np.intp], breaks: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the indices in a line of the points ``picked`` where gaps belong."""
    at = np.unique(np.searchsorted(picked, breaks)).astype(np.intp, copy=False)
    return at[(at > 0) & (at < len(picked))]
