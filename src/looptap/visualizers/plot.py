"""`Plot`: charts side by side, each chosen when the first value arrives.

`looptap.plot` creates one; in a notebook, its view. A surface calls `pull` when it is ready for the next frame and then
draws the `pictures`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from looptap.streams.forwarding import check_options
from looptap.streams.stream.state_and_cost import LIVE
from looptap.streams.stream.stream import Stream
from looptap.visualizers.cells import Cell
from looptap.visualizers.charts.chart import Chart
from looptap.visualizers.charts.frame_history import MAX_FRAMES
from looptap.visualizers.charts.legends import legends
from looptap.visualizers.charts.marks import settle
from looptap.visualizers.charts.registry import KINDS, kind_named
from looptap.visualizers.charts.summaries import Summary, summary_rows
from looptap.visualizers.data.colors import SESSION
from looptap.visualizers.drawing.picture import Picture
from looptap.visualizers.drawing.view import Ends, View

Streams: TypeAlias = Stream | Sequence[Stream]
"""One stream, or several that share a chart."""


class Plot:
    """Charts of streams in ``rows`` rows; a tuple or list of streams shares a chart.

    Args:
        streams: Each gets a chart; those in a tuple or list share one.
        chart: The kind of all charts; by default the first values decide.
        rows: The number of rows; by default about as many as columns.
        x: The x axis: "step", "epoch", "event", "time" (seconds since the start of the run), "wall", or a field.
        y: The field or fields that are drawn.
        color: A colour, or the field that colours points.
        title: The title of all charts.
        keep: The maximum number of frames to keep.
        log: The logarithmic axes, such as "y"; by default y is logarithmic if a positive series spans more than 3
            decades.
        smooth: The weight of a moving average over the faint line, 0 to below 1, such as 0.9.
        clip: True leaves outliers out of the limits.
        xlim: The limits of x, (low, high); None is free.
        ylim: The limits of y, (low, high); None is free.

    Raises TypeError for anything that is not a stream, ValueError for an unknown ``chart``, and IncompatibleStreams for
    streams that cannot share axes.

    >>> import looptap
    >>> plot = looptap.plot(looptap.stream_of([(1, 0.5), (2, 0.25)], name="loss", fields=("step", "loss")))
    >>> plot
    <Plot of 'loss' as line>
    >>> plot.pull(), plot.pictures()[0].x.title
    (True, 'step')
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
        keep: int = MAX_FRAMES,
        log: str | None = None,
        smooth: float = 0.0,
        clip: bool = False,
        xlim: Ends = (None, None),
        ylim: Ends = (None, None),
    ) -> None:
        if chart:
            kind_named(chart)
        self.rows = rows
        self.palette = SESSION
        self._options = {"x": x, "title": title, "keep": keep, "view": View(log, smooth, clip, xlim, ylim)}
        self._how = {"chart": chart, "y": (y,) if isinstance(y, str) else tuple(y), "color": color}
        groups = [part for group in streams for part in _parts(group, chart)]
        self._legends = legends([group for group, _ in groups])
        self.cells: list[Cell] = [self._cell(group, kind) for group, kind in groups]

    def _cell(self, streams: Sequence[Stream], kind: str) -> Cell:
        return Cell(streams, self._options, {**self._how, "chart": kind}, self._legends)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: as requested, else about square, at most three columns."""
        count = max(1, len(self.cells))
        rows = self.rows if self.rows > 0 else math.ceil(count / min(3, math.ceil(math.sqrt(count))))
        return min(rows, count), math.ceil(count / min(rows, count))

    # ------------------------------------------------------------ what is on it

    def add(self, *streams: Streams, to: int | None = None, **how: Any) -> None:
        """Give each stream a chart of its own, or draw it on the chart ``to`` (from 0).

        Args:
            streams: The streams.
            to: The chart, counted from 0; by default new ones.
            how: What `Chart.add` takes: ``axis="right"``, ``color``, ``dash``, ``name``, ``y``.

        Raises IncompatibleStreams.
        """
        check_options("Plot.add", how, Chart.add)
        for group in streams:
            if to is None:
                for found, kind in _parts(group, how.get("chart", self._how["chart"])):
                    cell = Cell((), self._options, {**self._how, **how, "chart": kind}, self._legends)
                    for stream in found:
                        cell.add(stream)
                    self.cells.append(cell)
            else:
                for stream in _group(group):
                    self.cells[to].add(stream, **how)

    def remove(self, *streams: Streams) -> None:
        """Stop drawing these streams; a chart without streams is removed.

        Args:
            streams: The streams.
        """
        for group in streams:
            for stream in _group(group):
                for cell in self.cells:
                    cell.remove(stream)
        self.cells[:] = [cell for cell in self.cells if cell.streams]

    def marks(self, source: Any) -> None:
        """Draw the commands of ``source``, in addition to those of the streams' runs.

        Args:
            source: A run, live or stored.
        """
        for cell in self.cells:
            cell.marks(source)

    def pause(self) -> None:
        """Pause all pictures; the streams continue."""
        for cell in self.cells:
            cell.paused = True

    def resume(self) -> None:
        """Resume all pictures."""
        for cell in self.cells:
            cell.paused = False

    # ------------------------------------------------------------ what a surface calls

    def pull(self) -> bool:
        """Read new values; return whether any picture changed."""
        return any([cell.pull() for cell in self.cells])

    def pictures(self, *, raw: bool = False, whole: bool = False) -> list[Picture]:
        """Return the picture of each chart.

        Args:
            raw: True leaves smoothing to the surface.
            whole: True has all kept points.
        """
        return [cell.draw(raw=raw, whole=whole) for cell in self.cells]

    @property
    def live(self) -> bool:
        """True while any stream may still yield something."""
        return any(stream.state == LIVE for cell in self.cells for stream in cell.streams)

    # ------------------------------------------------------------ outside a notebook

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the current pictures to a file of one of seven kinds.

        The suffix is .png, .svg, .pdf, .html, .txt, .csv (all kept numbers) or .gif (the kept frames of the chart that
        has the most). Waits up to a second for the commands of a live run.

        Args:
            path: The file.

        Raises ValueError for an unknown suffix, ImportError if the library for it is not installed.
        """
        saving = import_module("looptap.visualizers.surfaces.saving")
        self.pull()
        charts = [cell.chart for cell in self.cells if cell.chart is not None]
        settle(chart.commands for chart in charts)
        self.pull()
        suffix = os.path.splitext(path)[1].lower()
        pictures = self.pictures(raw=suffix == ".csv", whole=suffix == ".csv")
        if suffix == ".gif" and charts:
            pictures = max(charts, key=lambda chart: chart.frames).film()
        over = [cell.over_each_x() for cell in self.cells] if suffix == ".html" else ()
        saving.save_pictures(pictures, path, self.rows or None, over=over)

    def summary(self) -> Summary:
        """Return the final and the best value of each stream of numbers, with its run."""
        names = {key: legend.name for key, legend in self._legends.items()}
        return summary_rows([stream for cell in self.cells for stream in cell.streams], names)

    def show(self, *, place: str = "", block: bool | None = None, title: str = "") -> Any:
        """Show the plot in a window, the browser or the terminal: the first that works.

        Args:
            place: "window", "browser" or "terminal"; by default the first that works.
            block: True waits until it is closed; by default a script does, and a session after ``pyplot.ion()`` does
                not.
            title: Of the window or page; by default the runs.
        """
        return import_module("looptap.visualizers.surfaces.showing").show(self, place=place, block=block, title=title)

    def __repr__(self) -> str:
        charts = ", ".join(
            f"{cell.title!r} as {cell.chart.kind if cell.chart else 'nothing yet'}" for cell in self.cells
        )
        return f"<Plot of {charts or 'nothing'}>"


def _parts(streams: Streams, chart: str) -> list[tuple[list[Stream], str]]:
    """Return the streams and the kind of each chart; a panel has several."""
    panel = streams.panel() if isinstance(streams, Stream) and not chart else ()
    return [([stream], kind if kind in KINDS else "") for stream, kind in panel] or [(_group(streams), chart)]


def _group(streams: Streams) -> list[Stream]:
    found = [streams] if isinstance(streams, Stream) else list(streams) if isinstance(streams, Iterable) else [streams]
    for stream in found:
        if not isinstance(stream, Stream):
            raise TypeError(
                f"looptap.plot draws streams, not {type(stream).__name__}: looptap.plot(run.stream('step, loss')), or "
                "looptap.stream_of(values) for values at hand."
            )
    return found


plot = Plot
"""The class as scripts call it, like a function."""
