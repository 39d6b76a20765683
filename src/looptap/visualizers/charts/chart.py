"""`Chart`: streams on shared axes, and the picture of their values so far.

A chart does not listen: a surface that is ready for the next frame calls `pull`, which reads the new values, and
`draw`. So a slow surface takes larger steps and falls behind no further; a stream that no surface draws costs nothing
but its own bounded buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from looptap.streams.stream.stream import Stream
from looptap.streams.stream.tables import Columns
from looptap.visualizers.charts.base import APPEND, VALUE, Mode
from looptap.visualizers.charts.choice import Choice, choose
from looptap.visualizers.charts.frame_history import MAX_FRAME_BYTES, MAX_FRAMES, FrameHistory
from looptap.visualizers.charts.marks import Marks
from looptap.visualizers.charts.overlay import OVERLAID_FAMILIES, Axes, Overlay, arranged, no_room, own_axes
from looptap.visualizers.charts.reading.emptiness import grounded, nothing_seen
from looptap.visualizers.charts.registry import chart_class
from looptap.visualizers.charts.series import Series
from looptap.visualizers.data.colors import COLORS, SESSION, Palette, dash_for
from looptap.visualizers.data.sample_buffer import MAX_KEPT_POINTS
from looptap.visualizers.drawing.picture import Axis, Mark, Picture, Side, Text
from looptap.visualizers.drawing.view import View

__all__ = ["COLORS", "Chart", "IncompatibleStreams", "Series"]


class IncompatibleStreams(ValueError):
    """Two streams cannot share axes; the message names both and a way out."""


class Chart:
    """Streams on shared axes; each kind of chart is a subclass.

    A subclass implements `append` (mode append) or `frame` (mode frame), and `sketch`; `axes` if the titles should say
    more. It may raise TypeError or ValueError for a value that does not fit, before it keeps anything of it: that
    becomes a badge. Methods may be called from any thread: all hold `lock`.

    ``x`` is what the values of mode append are drawn over: "step", "epoch", "event", "time" (seconds since the first
    value of the run), "wall", or a field of the values; "" leaves it to the values. In mode append the newest
    ``points`` are kept, in mode frame ``keep`` pictures within ``keep_bytes``.
    """

    kind: ClassVar[str]
    family: ClassVar[str]
    mode: ClassVar[Mode] = APPEND
    single: ClassVar[bool] = False
    """True if a chart of this kind holds one stream only."""
    plain: ClassVar[bool] = False
    """True if rows may come as bare tuples, without the names of their elements."""

    def __init__(
        self,
        *,
        title: str = "",
        x: str = "",
        points: int = MAX_KEPT_POINTS,
        keep: int = MAX_FRAMES,
        keep_bytes: int = MAX_FRAME_BYTES,
        palette: Palette | None = None,
        commands: Marks | None = None,
        view: View | None = None,
    ) -> None:
        self.title, self.x = title, x
        self.view = View() if view is None else replace(view)
        """How it is looked at: logarithmic axes, smoothing, limits."""
        self.weight = 0.0
        """The smoothing of the picture that is being drawn."""
        self.whole = False
        """True while a picture with all kept points is drawn."""
        self.points, self.keep, self.keep_bytes = points, keep, keep_bytes
        self.series: list[Series] = []
        self.lock = threading.RLock()
        self.palette = SESSION if palette is None else palette
        self.refused: dict[str, str] = {}
        """Why a stream with a late first value is not drawn, by its name."""
        self._waiting: list[tuple[Stream, dict[str, Any]]] = []
        self._layers: dict[str, Chart] = {}
        self.commands = Marks() if commands is None else commands
        """The commands drawn as vertical lines."""
        self._shown: int | None = None  # which frame is shown, counted since the first; None: the newest
        self._state: Any = None
        self._overlay = Overlay()

    # ------------------------------------------------------------ what a subclass writes

    def append(self, series: Series, new: Columns) -> None:
        """Add values that are points: columns of values, event numbers and times."""
        raise NotImplementedError(f"{type(self).__name__} has no append, and its mode is append.")

    def frame(self, series: Series, value: Any) -> Any:
        """Return what is kept of a value that is a whole picture: here, the value."""
        return value

    def sketch(self, series: Series) -> Iterable[Mark]:
        """Yield the marks of one stream; in mode frame, of `Series.frames.shown`."""
        raise NotImplementedError

    def axes(self) -> tuple[Axis, Axis, Axis | None]:
        """Return the axes x, y and z; None for z means a chart in the plane."""
        return Axis(), Axis(), None

    def units(self, series: Series) -> tuple[str, str]:
        """Return what is along x and y; streams that agree in it share that axis.

        "" along x shares any: kinds that come with looptap return one of `charts.base`, or what their x counts.
        """
        return "", VALUE

    @property
    def own(self) -> list[Series]:
        """The streams that this chart draws itself; others are drawn by its layers."""
        return [one for one in self.series if one.layer is self]

    @property
    def xs(self) -> tuple[str, ...]:
        """What ``x`` may be set to for these values."""
        return ()

    def place(self, series: Series, what: str, at: float) -> float | None:
        """Return the x of a number, event or wall time; None if x is something else."""
        return None

    # ------------------------------------------------------------ what is on the chart

    def add(
        self,
        stream: Stream,
        *,
        axis: Side | str = "",
        color: str = "",
        dash: str = "",
        name: str = "",
        y: str | Iterable[str] = (),
        choice: Choice | None = None,
        chart: str = "",
    ) -> None:
        """Draw ``stream`` too, from its oldest kept value, unless it is drawn already.

        ``axis="right"`` gives it the second axis; ``color`` is its own, or the field that colours its points; ``name``
        is for the legend, ``y`` names the fields that are drawn. A stream without a value is checked when its first
        arrives. Raises IncompatibleStreams if the first value needs a chart that cannot share axes with this one.
        """
        if axis not in ("", "left", "right"):
            raise ValueError(f"axis={axis!r:.80} must be 'left' or 'right'.")
        y = (y,) if isinstance(y, str) else tuple(y)
        options = {"axis": axis, "color": color, "dash": dash, "name": name, "y": y, "chart": chart}
        with self.lock:
            if any(one.stream is stream for one in self.series) or any(one is stream for one, _ in self._waiting):
                return
            choice = choice or chosen_chart(stream, chart)
            if choice is None:
                self._waiting.append((stream, options))
            else:
                self._admit(stream, choice, options)

    def remove(self, stream: Stream) -> None:
        """Stop drawing ``stream``, if it is on the chart; the stream continues."""
        with self.lock:
            self.series[:] = [one for one in self.series if one.stream is not stream]
            self._waiting = [(one, options) for one, options in self._waiting if one is not stream]
            self.refused.pop(stream.name, None)
            self._state = None

    def _admit(self, stream: Stream, choice: Choice, options: dict[str, Any]) -> None:
        side: Side = "right" if options["axis"] == "right" else "left"
        layer = self if choice.kind == self.kind else self._layer(choice.kind)
        if self.series and (why := self._conflict(Series(stream, choice, "", layer))):
            raise IncompatibleStreams(
                f"{self.series[0].name!r} and {stream.name!r} do not share axes: {why}. Give {stream.name!r} a chart "
                "of its own, as in looptap.plot(a, b), or name a chart that both can have with chart=, as in "
                "chart='text'."
            )
        names = {*choice.schema, *(stream.fields or ())}
        color = by = options["color"]
        label = options["name"] or stream.name
        taken = [look for one in self.series for look in one.looks]
        if not by or by in names:
            same = sum((one.label or one.stream.name) == label for one in self.series)
            color = self.palette.color(f"{label} {same}" if same else label, [other for other, _ in taken])
        frames = FrameHistory(self.keep, self.keep_bytes)
        series = Series(
            stream,
            choice,
            color,
            layer,
            side,
            frames=frames,
            label=options["name"],
            y=options["y"] or stream.drawn,
            by=by if by in names else "",
            dash=options["dash"] or dash_for(color, taken),
            points=self.points,
            noted=tuple(note for note in stream.notes if note not in stream.limits),
            sample=stream.first(),
            placed=bool(options["axis"]),
        )
        series.sample = series.plain(series.sample)
        self.series.append(series)
        self._state = None

    def _conflict(self, new: Series) -> str:
        """Return why a stream cannot share this chart; "" if it can."""
        first, choice = self.series[0].choice, new.choice
        if choice.family != first.family and not {choice.family, first.family} <= OVERLAID_FAMILIES:
            return f"the first is a {first.kind} ({first.family}), the second a {choice.kind} ({choice.family})"
        alone = self.single or known_kind(choice.kind).single
        return f"a {choice.kind} cannot share a chart" if alone else no_room(self.series, new)

    def _layer(self, kind: str) -> Chart:
        """Return the chart of kind ``kind`` that draws such streams on this chart."""
        if kind not in self._layers:
            self._layers[kind] = layer = known_kind(kind)(x=self.x, points=self.points, palette=self.palette)
            layer.series = self.series
        return self._layers[kind]

    # ------------------------------------------------------------ what a surface calls

    def pull(self) -> bool:
        """Read the values that are new; return whether the picture changed."""
        with self.lock:
            changed = self._admit_waiting()
            for series in self.series:
                changed = series.take() or changed
            changed = self.commands.pull() or changed
            state = [self.x, self.view.state, self._shown, *(series.state for series in self.series)]
            changed, self._state = changed or state != self._state, state
            return changed

    def _admit_waiting(self) -> bool:
        waiting, self._waiting = self._waiting, []
        for stream, options in waiting:
            try:
                choice = chosen_chart(stream, options["chart"])
                if choice is None:
                    self._waiting.append((stream, options))
                else:
                    self._admit(stream, choice, options)
            except ValueError as error:
                self.refused[stream.name] = str(error)
        return len(waiting) != len(self._waiting)

    @property
    def frames(self) -> int:
        """The number of kept frames; 0 for a chart without frames."""
        with self.lock:
            return max((len(series.frames) for series in self.series), default=0)

    def show(self, index: int | None) -> None:
        """Show the kept frame ``index``, 0 being the oldest; None follows the newest."""
        with self.lock:
            leader = self._leader()
            self._shown = None
            if leader is not None and index is not None and index < len(leader.frames) - 1:
                self._shown = leader.frames.given_up + max(0, index)

    def film(self) -> list[Picture]:
        """Return a picture of each kept frame, oldest first; without frames, just one."""
        with self.lock:
            shown = self._shown
            try:
                return [self._pictured(index) for index in range(self.frames)] or [self.draw()]
            finally:
                self._shown = shown

    def _pictured(self, index: int) -> Picture:
        self.show(index)
        return self.draw()

    def _leader(self) -> Series | None:
        """Return the stream whose frames the slider counts."""
        framed = (series for series in self.series if len(series.frames))
        return max(framed, key=lambda series: len(series.frames), default=None)

    def _aim(self) -> tuple[int, int] | None:
        """Select the same moment in all streams; return (index, count) for the slider."""
        leader = self._leader()
        if leader is None:
            return None
        index = leader.frames.aim(self._shown)
        for series in self.series:
            if series is not leader:
                series.frames.aim_at(leader.frames, newest=self._shown is None)
        return index, len(leader.frames)

    def draw(self, *, raw: bool = False, whole: bool = False) -> Picture:
        """Return the picture of the values so far.

        ``raw`` leaves smoothing out; ``whole`` has all kept points of lines, not those that make their look.
        """
        with self.lock:
            frame = self._aim()
            self.weight, self.whole = 0.0 if raw else self.view.smooth, whole
            for layer in self._layers.values():
                layer.x, layer.weight, layer.whole = self.x, self.weight, whole
            plane = all(one.choice.family in OVERLAID_FAMILIES for one in self.series)
            without = arranged(self.series) if plane else {}
            badges = list(without.values())
            drawn: list[tuple[Series, list[Mark]]] = []
            for series in (one for one in self.series if one not in without):
                try:
                    with np.errstate(all="ignore"):
                        drawn.append((series, list(series.layer.sketch(series))))
                except Exception as error:  # also of a user's own kind: the other streams are still drawn
                    badges.append(f"{series.name!r} cannot be drawn: {type(error).__name__}: {error}")
            marks = [mark for _, mine in drawn for mark in mine]
            try:
                if plane:
                    marks, axes = self._overlay.axes(drawn, self.view.log)
                else:
                    axes = Axes(*own_axes(self.series))
            except Exception as error:
                axes = Axes(Axis(), Axis())
                badges.append(f"the axes have no titles: {type(error).__name__}: {error}")
            if instead := self._instead(marks, badges):
                marks, axes = [Text(instead)], axes._replace(top=None, right=None)
            marks = grounded(marks, log="y" in (self.view.log or "") or axes.y.log)
            x, y, right = self.view.axes(axes.x, axes.y, axes.right, marks)
            badges = [*badges, *self.view.unplaced(marks, y, right), *self._badges()]
            return Picture(
                marks=tuple(marks),
                title=self.title,
                x=x,
                y=y,
                z=axes.z,
                top=axes.top,
                right=right,
                rules=self.commands.rules([one for one in self.series if one.across == "bottom"]),
                badges=tuple(badge for badge in badges if badge not in instead),
                guess=" ".join(dict.fromkeys(filter(None, (one.reading for one in self.series)))),
                frame=frame,
                offers=self._offers(),
            )

    def _instead(self, marks: list[Mark], badges: list[str]) -> tuple[str, ...]:
        """Return why nothing can be drawn, in the place of an empty picture."""
        if self._waiting or not any(series.taken for series in self.series) or not nothing_seen(marks):
            return ()
        why = [*badges, *self._losses()]
        return (*(why or ["The values so far are empty."]), "chart='text' shows the values as they are.")

    def _offers(self) -> dict[str, Any]:
        """Return what a page may let its reader choose."""
        xs = self.xs
        return {
            "smooth": self.view.smooth if xs else None,
            "clip": self.view.clip,
            "over": self.x,
            "xs": xs,
            "queries": list(dict.fromkeys(one.stream.text for one in self.series if one.stream.text)),
        }

    def _losses(self) -> list[str]:
        return [badge for series in self.series for badge in series.badges(alone=len(self.series) == 1)]

    def _badges(self) -> list[str]:
        found = self._losses()
        found += [f"waiting for the first value of {stream.name!r}" for stream, _ in self._waiting]
        found += list(self.refused.values())
        leader = self._leader() if self._shown is not None else None
        if leader is not None:
            found.append(f"this is the frame of {leader.stream.on or 'event'} {leader.frames.event:,}, not the newest")
        return found


def chosen_chart(stream: Stream, chart: str = "") -> Choice | None:
    """Choose the chart by a stream's first value; return None before there is one."""
    value = stream.first()
    return None if value is None else choose(value, stream.fields or (), stream.on, stream.text, chart=chart)


def known_kind(name: str) -> type[Chart]:
    """Return the class of a kind of chart. Raises ValueError if there is none."""
    return cast("type[Chart]", chart_class(name))


def make_chart(choice: Choice, **options: Any) -> Chart:
    """Make a chart of the chosen kind, without a stream."""
    return known_kind(choice.kind)(**options)
