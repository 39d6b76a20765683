"""`Plot`: charts beside each other, each chosen when the first value comes. It draws nothing: surfaces do.

`looptap.plot` makes one, in a notebook its view. A surface calls `pull` when it is ready for the next frame and then
draws the `pictures`.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from looptap.streams.errors import LooptapError
from looptap.streams.feed import FAILED, LIVE
from looptap.streams.stream import Stream
from looptap.visualizers.chart import Chart, IncompatibleStreams, chosen, make
from looptap.visualizers.choice import kind_named
from looptap.visualizers.colors import Palette
from looptap.visualizers.frames import KEEP
from looptap.visualizers.marks import settle
from looptap.visualizers.picture import Picture, Text
from looptap.visualizers.runs import Legend, label_of, legends, run_of
from looptap.visualizers.summaries import Summary, summary

Streams: TypeAlias = Stream | Sequence[Stream]
"""One stream, or several that share a chart."""


class Cell:
    """The place of one chart in a plot, and its streams. `chart` is None until the first value comes."""

    def __init__(
        self, streams: Sequence[Stream], options: dict[str, Any], how: dict[str, Any], legends: dict[int, Legend]
    ) -> None:
        self.streams: list[Stream] = list(streams)
        self.chart: Chart | None = None
        self._options, self._how, self._legends = options, how, legends
        self.refused: dict[str, str] = {}
        """Why a stream is not drawn, by its name."""
        self._marks: list[Any] = []
        self._paused = False
        self.lock = threading.RLock()
        """Held by each method; who needs the chart's lock besides takes this one first."""
        self._said: tuple[str, ...] = ()
        self._begin(strict=True)

    @property
    def title(self) -> str:
        """What is written above the chart."""
        return str(self._options.get("title") or ", ".join(dict.fromkeys(stream.name for stream in self.streams)))

    def add(self, stream: Stream, **how: Any) -> None:
        """Draw one more stream on this chart; ``how`` is what `Chart.add` takes. Raises IncompatibleStreams."""
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
        """Draw a stream no more."""
        with self.lock:
            self.streams[:] = [one for one in self.streams if one is not stream]
            if self.chart is not None:
                self.chart.remove(stream)
            self._retitle()

    def _retitle(self) -> None:
        if self.chart is not None:
            self.chart.title = self.title

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
        with self.lock:
            if self._begin() and self.chart is not None:
                return self.chart.pull()
            said = self._waits()
            changed, self._said = said != self._said, said
            return changed

    def draw(self) -> Picture:
        """The picture of now; until the first value comes it says what is waited for."""
        with self.lock:
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
                chart.add(stream, **self._look(stream))
            except IncompatibleStreams as error:
                if strict:
                    raise
                self.refused[stream.name] = str(error)
        chart.refused = self.refused
        for source in self._marks:
            chart.marks(source)
        self.chart = chart
        for stream in self.streams:
            self._mark_commands(stream)
        if self._paused:
            chart.pause()
        return True

    def _look(self, stream: Stream) -> dict[str, Any]:
        legend = self._legends.get(id(stream))
        return {**self._how, "name": legend.name, "dash": legend.dash} if legend else self._how

    def _mark_commands(self, stream: Stream) -> None:
        run = run_of(stream)
        if run is not None and self.chart is not None and hasattr(type(run), "commands"):
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
            outlook = stream.outlook()
            told = [note for note in stream.notes[:3] if note[1:] not in outlook]
            lines += [part for part in [outlook, *told] if part]
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
        groups = [_group(group) for group in streams]
        self._legends = legends(groups)
        self.cells: list[Cell] = [self._cell(group) for group in groups]

    def _cell(self, streams: Sequence[Stream]) -> Cell:
        return Cell(streams, self._options, self._how, self._legends)

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
                cell = Cell((), self._options, {**self._how, **how}, self._legends)
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
        """Write the pictures of now to a file, whose suffix says how: .png, .svg, .pdf, .html, .txt.

        A .gif shows the kept frames of a chart, one after the other: of that with the most. Raises ValueError for a
        suffix that is not known, ImportError where the library for it is missing. The commands of a live run are asked
        for before, for a second at most.
        """
        saving = import_module("looptap.visualizers.saving")
        self.pull()
        charts = [cell.chart for cell in self.cells if cell.chart is not None]
        settle(chart.commands for chart in charts)
        self.pull()
        if os.fspath(path).lower().endswith(".gif"):
            pictures = max(charts, key=lambda chart: chart.frames).film() if charts else self.pictures()
        else:
            pictures = self.pictures()
        saving.save(pictures, path, self.rows or None)

    def summary(self) -> Summary:
        """The final and the best value of each stream of numbers, with the run that it is of."""
        names = {key: legend.name for key, legend in self._legends.items()}
        return summary([stream for cell in self.cells for stream in cell.streams], names)

    def show(self, *, place: str = "", block: bool | None = None, title: str = "") -> Any:
        """Show it in a window, on a page in the browser or in the terminal, where it can be seen from here.

        ``place`` is "window", "browser" or "terminal"; without ``block`` a script waits until it is closed.
        """
        return import_module("looptap.visualizers.showing").show(self, place=place, block=block, title=title)

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


def plot(
    *streams: Streams,
    chart: str = "",
    rows: int = 0,
    x: str = "",
    y: str | Sequence[str] = (),
    color: str = "",
    title: str = "",
    keep: int = KEEP,
) -> Any:
    """Draw streams, each by the chart that its first value asks for; a tuple or list of streams shares one.

    The arguments are those of `Plot`, which is what is returned: `Plot.save` writes it to a file. Raises TypeError for
    what is no stream, ValueError for an unknown ``chart``, IncompatibleStreams for streams that do not share axes.

    >>> import looptap
    >>> looptap.plot(looptap.stream_of([3, 1, 2], name="loss"))
    <Plot of 'loss' as line>
    """
    return Plot(*streams, chart=chart, rows=rows, x=x, y=y, color=color, title=title, keep=keep)


def compare(*sources: Any, x: str = "step", **how: Any) -> Plot:
    """Streams of several runs on shared axes, over ``x``: live and stored runs, and the names of their streams.

    ``looptap.compare(old, run, "loss", "error")`` draws a chart for each name with a line for each run; streams may
    stand in place of runs and names, and then share one chart. ``x`` is "step", "epoch", "time" (seconds since the
    start of each run), "wall" or a field; ``how`` is what `plot` takes besides. `Plot.summary` is the table of final
    and best values. A run without a stream of that name is left out, with a note on the chart; an error is raised if
    none has it.

    >>> import looptap
    >>> one, two = (looptap.stream_of([0.5, rest], name="loss") for rest in (0.25, 0.125))
    >>> looptap.compare(one, two).summary()[1]["final"]
    0.125
    """
    names = [one for one in sources if isinstance(one, str)]
    streams = [one for one in sources if isinstance(one, Stream)]
    runs = [one for one in sources if not isinstance(one, str | Stream)]
    for run in runs:
        if not hasattr(run, "stream"):
            raise TypeError(
                f"looptap.compare takes runs, names of their streams, and streams, not {type(run).__name__}: "
                "looptap.open(path) opens a stored run."
            )
    if bool(names) != bool(runs):
        raise ValueError("looptap.compare takes runs and names of their streams: looptap.compare(old, new, 'loss').")
    groups: list[list[Stream]] = [streams] if streams else []
    missing: list[dict[str, str]] = [{}] if streams else []
    for name in names:
        found, without = _of_runs(runs, name)
        groups.append(found)
        missing.append(without)
    made = Plot(*groups, x=x, **how)
    for cell, without in zip(made.cells, missing, strict=True):
        cell.refused.update(without)
    return made


def _of_runs(runs: Sequence[Any], name: str) -> tuple[list[Stream], dict[str, str]]:
    """The stream of that name of each run; and for those that have none why. Raises that if it is so for all."""
    found: list[Stream] = []
    without: dict[str, str] = {}
    for run in runs:
        try:
            found.append(run.stream(name))
        except LooptapError as error:
            without[label_of(run)] = f"{label_of(run)} is left out: {error}"
            failed = error
    if not found:
        raise failed
    return found, without
