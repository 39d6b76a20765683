"""`Cell`: one chart of a plot, created when its streams have a first value."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from looptap.streams.stream.state_and_cost import FAILED, LIVE
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.chart import Chart, IncompatibleStreams, chosen_chart, make_chart
from looptap.visualizers.charts.legends import Legend, label_of_stream, run_of
from looptap.visualizers.charts.marks import Marks
from looptap.visualizers.drawing.picture import Picture, Text


class Cell:
    """One chart of a plot and its streams; `chart` is None until the first value."""

    def __init__(
        self, streams: Sequence[Stream], options: dict[str, Any], how: dict[str, Any], legends: dict[int, Legend]
    ) -> None:
        self.streams: list[Stream] = list(streams)
        self.chart: Chart | None = None
        self._options, self._how, self._legends = options, how, legends
        self.refused: dict[str, str] = {}
        """Why a stream is not drawn, by its name."""
        self.commands = Marks()
        """The commands drawn as vertical lines."""
        self.paused = False
        """True while the picture is paused; its streams continue, and are drawn on resume."""
        self.lock = threading.RLock()
        """Held by each method. Lock order: this one before the chart's."""
        self._said: tuple[str, ...] = ()
        for stream in self.streams:
            self._mark_commands(stream)
        self._begin(strict=True)

    @property
    def title(self) -> str:
        """The title above the chart."""
        return str(self._options.get("title") or ", ".join(dict.fromkeys(map(label_of_stream, self.streams))))

    def add(self, stream: Stream, **how: Any) -> None:
        """Draw one more stream, as `Chart.add` does. Raises IncompatibleStreams."""
        with self.lock:
            if self.chart is not None:
                self.chart.add(stream, **{**self._look(stream), **how})
            self._mark_commands(stream)
            if any(one is stream for one in self.streams):
                return
            self.streams.append(stream)
            try:
                self._begin(strict=True)
            except IncompatibleStreams:
                self.streams.remove(stream)
                raise
            self._retitle()

    def remove(self, stream: Stream) -> None:
        """Stop drawing a stream."""
        with self.lock:
            self.streams[:] = [one for one in self.streams if one is not stream]
            if self.chart is not None:
                self.chart.remove(stream)
            self._retitle()

    def _retitle(self) -> None:
        if self.chart is not None:
            self.chart.title = self.title

    def marks(self, source: Any) -> None:
        """Draw a vertical line for each command of ``source``, as `Marks.add` does."""
        with self.lock:
            self.commands.add(source)

    def pull(self) -> bool:
        """Read new values; return whether the picture changed."""
        with self.lock:
            if self._begin() and self.chart is not None:
                return not self.paused and self.chart.pull()
            said = self._waits()
            changed, self._said = said != self._said, said
            return changed

    def draw(self, *, raw: bool = False, whole: bool = False) -> Picture:
        """Return the current picture; before the first value, what the chart waits for.

        ``raw`` leaves smoothing to the surface, ``whole`` has all kept points.
        """
        with self.lock:
            if self.chart is None:
                return Picture((Text(self._waits()),), title=self.title)
            picture = self.chart.draw(raw=raw, whole=whole)
            return replace(picture, badges=(*picture.badges, "paused")) if self.paused else picture

    def over_each_x(self) -> dict[str, Picture]:
        """Return the picture over each x that the chart may have, first the current one.

        A page without a job shows them; smoothing is left to it.
        """
        with self.lock:
            chart = self.chart
            if chart is None or not chart.xs:
                return {"" if chart is None else chart.x: self.draw(raw=True)}
            with chart.lock:
                current, found = chart.x, {}
                try:
                    for x in dict.fromkeys([current, "", *chart.xs]):
                        chart.x = x
                        found[x] = self.draw(raw=True)
                finally:
                    chart.x = current
                return found

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of chart that is drawn, and then others that show the same values."""
        with self.lock:
            natural = chosen_chart(self.streams[0]) if len(self.streams) == 1 else None
            every = (natural.kind, *natural.others) if natural is not None and natural.others else ()
            if self.chart is None or self.chart.kind not in every:
                return ()
            at = every.index(self.chart.kind)
            return every[at:] + every[:at]

    def draw_as(self, kind: str) -> None:
        """Draw the kept values as another chart, one of `kinds`; others are ignored."""
        with self.lock:
            if kind in self.kinds[1:]:
                self._how = {**self._how, "chart": kind}
                self.chart = None
                self._begin()

    def _begin(self, strict: bool = False) -> bool:
        """Create the chart if a value has come; raise IncompatibleStreams if ``strict``."""
        if self.chart is not None:
            return True
        asked = self._how.get("chart", "")
        choice = next((found for stream in self.streams if (found := chosen_chart(stream, asked)) is not None), None)
        if choice is None:
            return False
        chart = make_chart(choice, **{**self._options, "title": self.title, "commands": self.commands})
        ready = [stream for stream in self.streams if stream.first() is not None]
        for stream in [*ready, *(stream for stream in self.streams if stream not in ready)]:
            try:
                chart.add(stream, **self._look(stream))
            except IncompatibleStreams as error:
                if strict:
                    raise
                self.refused[stream.name] = str(error)
        chart.refused = self.refused
        self.chart = chart
        return True

    def _look(self, stream: Stream) -> dict[str, Any]:
        legend = self._legends.get(id(stream))
        return {**self._how, "name": legend.name, "dash": legend.dash} if legend else self._how

    def _mark_commands(self, stream: Stream) -> None:
        run = run_of(stream)
        if run is not None and hasattr(type(run), "commands"):
            self.commands.add(run)

    def _waits(self) -> tuple[str, ...]:
        """Return lines that say what the chart waits for, and why it has not arrived."""
        lines = []
        for stream in self.streams:
            if stream.state == LIVE:
                lines.append(f"waiting for the first value of {stream.name!r}")
            else:
                reason = f": {stream.reason}" if stream.reason else ""
                what = "has failed" if stream.state == FAILED else "has ended"
                lines.append(f"{stream.name!r} {what} without a value{reason}")
            outlook = stream.outlook()
            notes = [note for note in stream.notes[:3] if note[1:] not in outlook]
            lines += [part for part in [outlook, *notes] if part]
        return tuple(lines) or ("no stream",)


class ChartGrid(Protocol):
    """The part of `Plot` that surfaces use: cells, arrangement, current pictures."""

    @property
    def cells(self) -> list[Cell]:
        """The charts, in the order in which they are shown."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the charts."""

    @property
    def live(self) -> bool:
        """True while any stream may still yield something."""

    def pull(self) -> bool:
        """Read new values; return whether any picture changed."""

    def pictures(self, *, raw: bool = False, whole: bool = False) -> list[Picture]:
        """Return the picture of each chart.

        ``raw`` leaves smoothing to the surface, ``whole`` has all kept points.
        """

    def pause(self) -> None:
        """Pause all pictures."""

    def resume(self) -> None:
        """Resume all pictures."""
