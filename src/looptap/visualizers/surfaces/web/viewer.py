"""`Viewer`: one open page, its runs, charts and requests.

Requests are answered one after another on a thread of the server's pool. What a request needs stands in one table, and
any other is refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from looptap.client.exported_run import ExportedRun
from looptap.streams.errors import LooptapError, QueryError
from looptap.streams.stream.stream import Stream
from looptap.visualizers.charts.chart import IncompatibleStreams
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.live.frame_channel import Asked, FrameChannel
from looptap.visualizers.surfaces.live.live_chart import Live
from looptap.visualizers.surfaces.web.completion import words_of
from looptap.visualizers.surfaces.web.run_facts import RunFacts
from looptap.visualizers.surfaces.web.run_rows import RunRows, drawn_table, plain_table, rows_as_asked
from looptap.visualizers.surfaces.web.run_shelf import RunShelf
from looptap.visualizers.surfaces.web.stream_requests import StreamRequest, check_first_value, opened
from looptap.visualizers.surfaces.web.viewer_link import ViewerLink

MAX_CHARTS = 32
"""Charts of a page."""
MAX_COMPARED_RUNS = 24
"""Runs on one chart."""
MAX_CANVAS_NAME_CHARACTERS = 80
"""Characters of the name that a page gives a chart."""
READ_ONLY = (
    "This page is read-only: it shows streams, stored runs, and arithmetic over them. "
    "Queries, controls and commands need: looptap web --operate"
)
"""What a page says that may only look."""
_X_CHOICES = ("", "step", "epoch", "event", "time", "wall")


class PageCanvas:
    """The frames of one chart for one page; nothing is made while its link is full."""

    def __init__(self, asked: Asked, name: str, link: ViewerLink) -> None:
        self.name, self._link = name, link
        self.channel = FrameChannel(asked, coarse_start=True)

    def watched(self, now: float) -> bool:
        """Return whether the page draws the frames."""
        return self._link.connected and self.channel.watched(now)

    def deaf(self, now: float) -> bool:
        """Return False: a page is always heard."""
        return False

    def ready(self) -> bool:
        """Return whether the page can take another frame."""
        return self._link.ready() and self.channel.ready()

    def send(self, content: dict[str, Any], buffers: list[memoryview]) -> None:
        """Send a frame. Does not block."""
        self._link.send_frame(self.name, content, buffers)

    def close(self) -> None:
        """Do nothing: the viewer forgets the canvas."""


class NotOperating(LooptapError):
    """A page that may only look has asked for a change."""


@dataclass
class ShownChart:
    """A chart of a page: its streams in the pool, and a canvas for each cell."""

    streams: list[Hashable] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    lives: list[Live] = field(default_factory=list)


class Viewer:
    """The runs and charts that one page shows, until `close`."""

    def __init__(self, shelf: RunShelf, rows: RunRows, link: ViewerLink) -> None:
        self.link = link
        self.closed = False
        self._shelf, self._rows = shelf, rows
        self._guard = threading.Lock()  # held by each request and by `close`
        self._charts: dict[str, ShownChart] = {}
        self._canvases: dict[str, PageCanvas] = {}
        self._facts: RunFacts | None = None
        self._watched = ""

    @property
    def charts(self) -> list[str]:
        """The names of the charts that the page has here."""
        return list(self._charts)

    # ------------------------------------------------------------ requests

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request; an error is answered in a sentence."""
        kind, number = str(message.get("t")), message.get("id")
        reply: dict[str, Any] = {"t": "reply", "id": number if isinstance(number, int) else 0}
        try:
            handler, changes = _REQUESTS[kind]
        except KeyError:
            return reply | {"error": f"A page cannot request {kind!r:.40}."}
        try:
            if changes and not self._shelf.operate:
                raise NotOperating(READ_ONLY)
            with self._guard:
                if self.closed:
                    return reply | {"error": "This page was closed."}
                return reply | {"value": handler(self, message)}
        except (LooptapError, IncompatibleStreams, TimeoutError, ValueError) as error:
            return reply | {"error": str(error).replace("unsafe=True", "the switch unsafe")}

    def on_canvas(self, name: str, message: Mapping[str, Any]) -> None:
        """Pass a message of the page to one of its charts."""
        canvas = self._canvases.get(name)
        if canvas is not None:
            canvas.channel.take(dict(message))

    def _chart(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Draw a chart: a text, of one run or several."""
        name = str(message.get("chart"))[:MAX_CANVAS_NAME_CHARACTERS]
        runs = list(dict.fromkeys(str(run) for run in _list(message.get("runs"))))
        more = f"the first {MAX_COMPARED_RUNS} of {len(runs):,} runs are drawn"
        request = StreamRequest.of(message)
        if request.unsafe and not self._shelf.operate:
            raise NotOperating(READ_ONLY)
        x = str(message.get("x") or "")
        if x not in _X_CHOICES:
            raise QueryError(f"x: {x!r:.40} is none of {', '.join(_X_CHOICES[1:])}.")
        self._check_room(name)
        if not runs:
            raise QueryError("Choose a run first.")
        shown = ShownChart()
        try:
            typed, drawn = message.get("typed") is True, runs[:MAX_COMPARED_RUNS]
            streams, without = self._streams(drawn, request, shown, typed=typed)
            plot = Plot(streams[0] if len(streams) == 1 else streams, x=x or ("step" if len(runs) > 1 else ""))
            for cell in plot.cells:
                cell.refused.update({"more": more} if len(runs) > MAX_COMPARED_RUNS else {}, **without)
                if not self._shelf.operate:
                    cell.commands.forget_runs()
        except BaseException:
            self._release(shown)
            raise
        return self._show(name, shown, plot)

    def _show(self, name: str, shown: ShownChart, plot: Plot) -> dict[str, Any]:
        """Show a plot as the chart ``name``, in the place of the one that has it."""
        try:
            canvases = [f"{name}.{place}" for place in range(len(plot.cells))]
            for cell, canvas in zip(plot.cells, canvases, strict=True):
                live = Live(cell, partial(self._canvas, canvas))
                shown.lives.append(live)
        except BaseException:
            self._release(shown)
            raise
        before = self._charts.pop(name, None)
        self._charts[name] = shown
        if before is not None:
            self._release(before)
        for live, canvas in zip(shown.lives, canvases, strict=True):
            self._canvases[canvas] = live.canvas  # type: ignore[assignment]
        return {"canvases": canvases}

    def _check_room(self, name: str) -> None:
        if name not in self._charts and len(self._charts) >= MAX_CHARTS:
            raise QueryError(f"A page has {MAX_CHARTS} charts at most.")

    def _canvas(self, name: str, asked: Asked) -> PageCanvas:
        return PageCanvas(asked, name, self.link)

    def _streams(
        self, runs: Sequence[str], request: StreamRequest, shown: ShownChart, *, typed: bool
    ) -> tuple[list[Stream], dict[str, str]]:
        """Return a stream for each run, and a reason for each run without one.

        For what was ``typed`` just now a first error is an answer; elsewhere the chart says it.
        """
        found: list[Stream] = []
        without: dict[str, str] = {}
        failed: LooptapError | None = None
        for key in runs:
            try:
                run = self._shelf.open(key)
                shown.runs.append(key)
                stream_key = (key, request)
                stream = self._shelf.streams.take(stream_key, partial(opened, run, request))
                shown.streams.append(stream_key)
                if isinstance(run, ExportedRun):
                    run.check(stream)
                if typed:
                    check_first_value(stream)
                found.append(stream)
            except LooptapError as error:
                without[key] = f"{key} is left out: {error}"
                failed = error
        if failed is not None and not found:
            raise failed
        return found, without

    def _drop(self, message: Mapping[str, Any]) -> None:
        """Stop drawing a chart."""
        shown = self._charts.pop(str(message.get("chart")), None)
        if shown is not None:
            self._release(shown)

    def _release(self, shown: ShownChart) -> None:
        for live in shown.lives:
            self._canvases = {name: one for name, one in self._canvases.items() if one is not live.canvas}
            live.close()
        for stream in shown.streams:
            self._shelf.streams.give_back(stream)
        for run in shown.runs:
            self._shelf.close(run)

    # ------------------------------------------------------------ the run in front

    def _watch(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Show the facts of one run."""
        key = str(message.get("run") or "")
        self._unwatch()
        if not key:
            return {}
        run = self._shelf.open(key)
        try:
            self._facts = self._shelf.facts.take(key, partial(RunFacts, run))
        except BaseException:
            self._shelf.close(key)
            raise
        self._watched = key
        return self._facts.look() | {"key": key}

    def _table(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table of several runs, sorted and filtered."""
        table, without = self._rows.table([str(run) for run in _list(message.get("runs"))])
        found = rows_as_asked(table, message)
        return plain_table(found, self._rows.keys_of(found)) | {
            "all": len(table),
            "without": list(without.values()),
        }

    def _parallel(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the runs of a table as lines across axes."""
        name = str(message.get("chart"))[:MAX_CANVAS_NAME_CHARACTERS]
        self._check_room(name)
        table, _ = self._rows.table([str(run) for run in _list(message.get("runs"))])
        return self._show(name, ShownChart(), drawn_table(rows_as_asked(table, message), message))

    def _export(self, message: Mapping[str, Any]) -> None:
        """Show a stream of the run in front to viewers and read-only pages, or hide it."""
        if self._facts is None:
            raise QueryError("Choose a run first.")
        self._facts.export(str(message.get("name")), message.get("on") is True)

    def _diff(self, message: Mapping[str, Any]) -> str:
        """Return the changes of the code that were not committed."""
        if self._facts is None:
            raise QueryError("Choose a run first.")
        return self._facts.diff()

    def _unwatch(self) -> None:
        if self._facts is not None:
            self._shelf.facts.give_back(self._watched)
            self._shelf.close(self._watched)
        self._facts, self._watched = None, ""

    def facts(self) -> dict[str, Any] | None:
        """Return the facts of the run in front as they are now; None without one."""
        with self._guard:
            if self.closed or self._facts is None:
                return None
            return self._facts.look() | {"key": self._watched}

    def _words(self, message: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the words that a text may consist of."""
        run = self._shelf.open(key := str(message.get("run") or ""))
        try:
            return words_of(run, str(message.get("on") or ""))
        finally:
            self._shelf.close(key)

    def _turn(self, message: Mapping[str, Any]) -> dict[str, str]:
        """Set a control or give a command; or ask whether that is meant."""
        if self._facts is None:
            raise QueryError("Choose a run first.")
        sure = message.get("sure") is True
        return {"question": self._facts.turn(str(message.get("name")), message.get("value"), sure=sure)}

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Close the streams of this page that no other page shows."""
        with self._guard:
            self.closed = True
            for shown in self._charts.values():
                with contextlib.suppress(LooptapError):
                    self._release(shown)
            self._charts.clear()
            self._canvases.clear()
            self._unwatch()


_REQUESTS: dict[str, tuple[Callable[[Viewer, Mapping[str, Any]], Any], bool]] = {
    "chart": (Viewer._chart, False),
    "drop": (Viewer._drop, False),
    "watch": (Viewer._watch, False),
    "words": (Viewer._words, False),
    "table": (Viewer._table, False),
    "parallel": (Viewer._parallel, False),
    "diff": (Viewer._diff, False),
    "export": (Viewer._export, True),
    "turn": (Viewer._turn, True),
}
"""What a page may ask for, and whether it needs --operate. A text of a chart is a query only with it."""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
