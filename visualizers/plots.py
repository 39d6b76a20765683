"""`Plot`: charts beside each other, each chosen when the first value comes. It draws nothing: surfaces do.

`looptap.plot` makes one, in a notebook its view. A surface calls `pull` when it is ready for the next frame and then
draws the `pictures`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from looptap.streams.feed import FAILED, LIVE
from looptap.streams.stream import Stream
from looptap.visualizers.chart import Chart, IncompatibleStreams, chosen, make
from looptap.visualizers.choice import kind_named
from looptap.visualizers.colors import Palette
from looptap.visualizers.frames import KEEP
from looptap.visualizers.picture import Picture, Text
from looptap.visualizers.runs import legends, run_of

Streams: TypeAlias = Stream | Sequence[Stream]
"""One stream, or several that share a chart."""


class Cell:
    """The place of one chart in a plot, and its streams. `chart` is None until the first value comes."""

    def __init__(
        self, streams: Sequence[Stream], options: dict[str, Any], how: dict[str, Any], names: dict[int, str]
    ) -> None:
        self.streams: list[Stream] = list(streams)
        self.chart: Chart | None = None
        self._options, self._how, self._names = options, how, names
        self._marks: list[Any] = []
        self._paused = False
        self._told: Picture | None = None
        self._said: tuple[str, ...] = ()
        self._begin(strict=True)

    @property
    def title(self) -> str:
        """What is written above the chart."""
        return str(self._options.get("title") or ", ".join(dict.fromkeys(stream.name for stream in self.streams)))

    def add(self, stream: Stream, **how: Any) -> None:
        """Draw one more stream on this chart; ``how`` is what `Chart.add` takes. Raises IncompatibleStreams."""
        if self.chart is not None:
            self.chart.add(stream, **{**self._how, "name": self._names.get(id(stream), ""), **how})
            self._mark_commands(stream)
        if not any(one is stream for one in self.streams):
            self.streams.append(stream)
        self._begin(strict=True)

    def remove(self, stream: Stream) -> None:
        """Draw a stream no more."""
        self.streams[:] = [one for one in self.streams if one is not stream]
        if self.chart is not None:
            self.chart.remove(stream)

    def marks(self, source: Any) -> None:
        """Draw a vertical line for each command of ``source``, as `Chart.marks` does."""
        self._marks.append(source)
        if self.chart is not None:
            self.chart.marks(source)

    def pause(self) -> None:
        """Let the picture stand; the streams go on."""
        self._paused = True
        if self.chart is not None:
            self.chart.pause()

    def resume(self) -> None:
        """Let the picture move again."""
        self._paused = False
        if self.chart is not None:
            self.chart.resume()

    @property
    def paused(self) -> bool:
        """Whether the picture stands."""
        return self._paused

    def pull(self) -> bool:
        """Take in what has arrived; whether the picture has changed."""
        if self.chart is None and not self._begin():
            said = self._waits()
            changed, self._said = said != self._said, said
            return changed
        assert self.chart is not None
        return self.chart.pull()

    def draw(self) -> Picture:
        """The picture of now; until the first value comes it says what is waited for."""
        if self.chart is None:
            return Picture((Text(self._waits()),), title=self.title)
        return self.chart.draw()

    def _begin(self, strict: bool = False) -> bool:
        """Choose the chart by the first stream that has a value. Raises IncompatibleStreams if ``strict``."""
        if self.chart is not None:
            return True
        asked = self._how.get("chart", "")
        choice = next((found for stream in self.streams if (found := chosen(stream, asked)) is not None), None)
        if choice is None:
            return False
        chart = make(choice, **{**self._options, "title": self.title})
        ready = [stream for stream in self.streams if stream.first() is not None]
        for stream in [*ready, *(stream for stream in self.streams if stream not in ready)]:
            try:
                chart.add(stream, **self._how, name=self._names.get(id(stream), ""))
            except IncompatibleStreams as error:
                if strict:
                    raise
                chart.refused[stream.name] = str(error)
        for source in self._marks:
            chart.marks(source)
        self.chart = chart
        for stream in self.streams:
            self._mark_commands(stream)
        if self._paused:
            chart.pause()
        return True

    def _mark_commands(self, stream: Stream) -> None:
        run = run_of(stream)
        if run is not None and self.chart is not None and hasattr(run, "commands"):
            self.chart.marks(run)

    def _waits(self) -> tuple[str, ...]:
        """What is waited for, and what is known of why it does not come."""
        lines = []
        for stream in self.streams:
            if stream.state == LIVE:
                lines.append(f"waiting for the first value of {stream.name!r}")
            else:
                reason = f": {stream.reason}" if stream.reason else ""
                what = "has failed" if stream.state == FAILED else "has ended"
                lines.append(f"{stream.name!r} {what} without a value{reason}")
            lines += [part for part in [stream.outlook(), *stream.notes[:3]] if part]
        return tuple(lines) or ("no stream",)


class Plot:
    """Charts of streams, in ``rows`` rows. A tuple or a list of streams shares one chart.

    ``chart`` is the kind for all of them, chosen by the first values if it is not given; ``x`` is what is drawn over:
    "step", "epoch", "event", "time" (seconds since the start of the run), "wall", or a field; ``y`` names the fields
    that are drawn, ``color`` is a colour, or the field that colours points. ``keep`` bounds the frames to look back
    at. Raises ValueError for an unknown ``chart``, IncompatibleStreams for streams that do not share axes.

    >>> from looptap.streams.stream import stream_of
    >>> plot = Plot(stream_of([(1, 0.5), (2, 0.25)], name="loss", fields=("step", "loss")))
    >>> plot.pull(), plot.cells[0].chart.kind, plot.pictures()[0].x.title
    (True, 'line', 'step')
    """

    def __init__(
        self,
        *streams: Streams,
        chart: str = "",
        rows: int = 0,
        x: str = "",
        y: str | Sequence[str] = (),
        color: str = "",
        title: str = "",
        keep: int = KEEP,
    ) -> None:
        if chart:
            kind_named(chart)
        self.rows = rows
        self.palette = Palette()
        self._options = {"x": x, "title": title, "keep": keep, "palette": self.palette}
        self._how = {"chart": chart, "y": (y,) if isinstance(y, str) else tuple(y), "color": color}
        self._names = legends([stream for group in streams for stream in _group(group)])
        self.cells: list[Cell] = [self._cell(_group(group)) for group in streams]

    def _cell(self, streams: Sequence[Stream]) -> Cell:
        return Cell(streams, self._options, self._how, self._names)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the charts: as asked for, else about square with at most three columns."""
        count = max(1, len(self.cells))
        rows = self.rows if self.rows > 0 else math.ceil(count / min(3, math.ceil(math.sqrt(count))))
        return min(rows, count), math.ceil(count / min(rows, count))

    # ------------------------------------------------------------ what is on it

    def add(self, *streams: Streams, to: int | None = None, **how: Any) -> None:
        """Give each stream a chart of its own, or draw it on the chart ``to``, counted from 0.

        ``how`` is what `Chart.add` takes: ``axis="right"``, ``color``, ``dash``, ``name``, ``y``. Raises
        IncompatibleStreams.
        """
        for group in streams:
            if to is None:
                cell = Cell((), self._options, {**self._how, **how}, self._names)
                for stream in _group(group):
                    cell.add(stream)
                self.cells.append(cell)
            else:
                for stream in _group(group):
                    self.cells[to].add(stream, **how)

    def remove(self, *streams: Streams) -> None:
        """Draw these streams no more; a chart without streams goes."""
        for group in streams:
            for stream in _group(group):
                for cell in self.cells:
                    cell.remove(stream)
        self.cells[:] = [cell for cell in self.cells if cell.streams]

    def marks(self, source: Any) -> None:
        """Draw a vertical line for each command of ``source`` on all charts. Those of the streams' runs are there."""
        for cell in self.cells:
            cell.marks(source)

    def pause(self) -> None:
        """Let all pictures stand; the streams go on."""
        for cell in self.cells:
            cell.pause()

    def resume(self) -> None:
        """Let all pictures move again."""
        for cell in self.cells:
            cell.resume()

    # ------------------------------------------------------------ what a surface calls

    def pull(self) -> bool:
        """Take in what has arrived; whether any picture has changed."""
        return any([cell.pull() for cell in self.cells])

    def pictures(self) -> list[Picture]:
        """The pictures of now, one of each chart."""
        return [cell.draw() for cell in self.cells]

    @property
    def live(self) -> bool:
        """Whether any stream may still yield something."""
        return any(stream.state == LIVE for cell in self.cells for stream in cell.streams)

    # ------------------------------------------------------------ outside a notebook

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pictures of now to a file, whose suffix says how: .png, .svg, .pdf, .html.

        Raises ValueError for a suffix that is not known, ImportError where the library for it is missing.
        """
        saving = import_module("looptap.visualizers.saving")
        self.pull()
        pictures = self.pictures()
        saving.save(pictures[0] if len(pictures) == 1 else pictures, path)

    def __repr__(self) -> str:
        charts = ", ".join(
            f"{cell.title!r} as {cell.chart.kind if cell.chart else 'nothing yet'}" for cell in self.cells
        )
        return f"<Plot of {charts or 'nothing'}>"


def _group(streams: Streams) -> list[Stream]:
    found = [streams] if isinstance(streams, Stream) else list(streams) if isinstance(streams, Iterable) else [streams]
    for stream in found:
        if not isinstance(stream, Stream):
            raise TypeError(
                f"A plot is of streams, not of {type(stream).__name__}: looptap.plot(run.stream('step, loss')), or "
                "looptap.stream_of(values) for values at hand."
            )
    return found
