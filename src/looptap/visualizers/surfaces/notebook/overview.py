"""`overview`: a dashboard of a run, for a notebook or Voilà."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets

from looptap.client.control.controls import CHANGES
from looptap.client.estimates import Estimates, commonest, over_by_now, said
from looptap.client.machine import machine_lines
from looptap.client.run import Run
from looptap.client.session.vitals import moving
from looptap.client.streams.live import LiveStream
from looptap.streams.durations import short_time
from looptap.streams.errors import LooptapError
from looptap.visualizers.charts.reading import schemas
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.first_curves import GRADIENT_NORM, Curve, first_curves, has_gradient_norm
from looptap.visualizers.plot import Plot
from looptap.visualizers.surfaces.live.driver import Driver
from looptap.visualizers.surfaces.notebook.display import PlotView
from looptap.visualizers.surfaces.notebook.kernels import answer_anywhere

REFRESH_INTERVAL_SECONDS = 1.0
"""Seconds between two requests for the state of the run."""
_COMMANDS_STREAM = "commands"
_MAX_CHARTS = 6
_MAX_COMMANDS = 8
_MAX_ROWS = 30
_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0 12px"
_BAR = "display:flex;height:12px;max-width:600px;margin:8px 0 4px;background:#8883;border-radius:2px;overflow:hidden"
_CELL = "text-align:left;padding:1px 12px 1px 0;border-bottom:1px solid #8883"

looks = Driver("looptap-overviews")
"""The thread that requests the data of all overviews."""


class Overview(ipywidgets.VBox):  # type: ignore[misc]
    """Charts and facts of a run, updated each second until `close` or its end."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.closed = False
        self._head, self._facts = ipywidgets.HTML(), ipywidgets.HTML()
        self._charts = ipywidgets.VBox()
        self._gradient = ipywidgets.Button(
            description="gradient norm", tooltip="Ask the job for the norm of all gradients"
        )
        self._gradient.layout.display = "none"
        self._gradient.on_click(lambda _: self._ask_for_gradient())
        self._view: PlotView | None = None
        self._drawn: set[Curve] = set()
        self._asked_for_gradient = False
        self._before: tuple[float, dict[str, int]] = (0.0, {})
        self._estimates = Estimates(run)
        self._started: Any = None  # the config, as it was last read
        self._viewer = run.role == "viewer"
        self._parts = [self._config, self._cost, self._streams, self._commands]
        if self._viewer:
            self._parts = [self._config, self._streams]
        super().__init__([self._head, self._charts, self._gradient, self._facts])
        self.step(time.monotonic())
        looks.add(self, REFRESH_INTERVAL_SECONDS)

    def close(self) -> None:
        """Stop showing; the run continues."""
        self.closed = True
        if self._view is not None:
            self._view.close()
        super().close()

    def step(self, now: float) -> float | None:
        """Request the state of the run, and show it."""
        if self.closed:
            return None
        report = self._estimates.describe()
        self._head.value = _head(self.run) + ("" if report is None else _estimate(report))
        parts: list[str] = []
        for part in self._parts:
            try:
                parts += part() if self.run.alive else []
            except (LooptapError, TimeoutError) as error:
                parts.append(f"<p>{html.escape(str(error))}</p>")
        parts += ["<p>A viewer sees only exported streams.</p>"] * self._viewer
        self._facts.value = "".join(parts)
        return REFRESH_INTERVAL_SECONDS if self.run.state not in ("ended", "failed") else None

    def _rates(self, events: dict[str, int]) -> str:
        (then, before), now = self._before, time.monotonic()
        self._before = now, events
        rows = [(name, f"{n:,}", f"{(n - before.get(name, n)) / (now - then):,.1f}") for name, n in events.items()]
        return html_table("Events", ("event", "so far", "per second"), rows)

    def _config(self) -> list[str]:
        """Return the tables of settings and facts of the start."""
        if self._started is None or self._started.diff_note == "being read":
            try:
                self._started = self.run.config
            except LooptapError:
                if self._viewer:  # it is not shared
                    return []
                raise
        config = self._started
        settings = [(name, f"{value}") for name, value in config.items()]
        return [
            html_table("Config", ("setting", "value"), settings),
            html_table("Started with", ("", ""), list(config.facts().items())),
        ]

    def _cost(self) -> list[str]:
        stats = self.run.agent_stats(machine=True)
        share = sum(one.share_of_time for one in stats.queries) + sum(one.share_of_time for one in stats.streams)
        facts = [
            ("queries and declared streams", f"{share:.2%} of the loop's time"),
            ("looptap's thread", f"{stats.io_share:.2%}"),
            ("budget", f"{stats.budget:.0%}" if stats.budget != math.inf else "none"),
            ("clients", str(len(stats.clients))),
            ("dropped values", f"{stats.dropped:,}"),
        ]
        rows = [
            (one.name, one.on, short_time(one.nanoseconds_per_event / 1e9), f"{one.share_of_time:.2%}", one.limitation)
            for one in stats.queries
        ]
        return [
            self._rates(stats.events),
            html_table("Machine", ("",), [(text,) for text in machine_lines(stats.machine)]),
            html_table("What looptap costs", ("", ""), facts),
            html_table("Queries", ("query", "on", "per event", "share", "limited"), rows),
        ]

    def _streams(self) -> list[str]:
        found = [one for one in self.run.streams if one.name != _COMMANDS_STREAM]  # they have a table of their own
        rows = [
            (
                one.name,
                one.query,
                one.on,
                f"{one.values:,}",
                f"{one.rate:,.3g}",
                str(one.readers),
                one.reason or one.state,
            )
            for one in found
        ]
        declared = [one.name for one in sorted(found, key=lambda one: schemas.band_of(one.fields or ()) is None)]
        self._draw([Curve(name) for name in declared] + self._curves(found))
        titles = ("stream", "query", "on", "values", "per second", "readers", "state")
        return [html_table("Declared streams", titles, rows)]

    def _curves(self, declared: Sequence[Any]) -> list[Curve]:
        """Return the curves of the numbers in events; a viewer has none."""
        if self._viewer:
            return []
        scalars = self.run.scalars
        asked = self._asked_for_gradient or has_gradient_norm(scalars)
        self._gradient.layout.display = "none" if asked or not self.run.alive else ""
        return first_curves(scalars, declared)

    def _ask_for_gradient(self) -> None:
        """Draw the norm of all gradients of the exposed model."""
        self._asked_for_gradient = True
        self._gradient.layout.display = "none"
        try:
            self._add([self.run.stream(GRADIENT_NORM, on=commonest(self.run), every=20, name="gradient norm")])
        except (LooptapError, TimeoutError) as error:
            self._head.value += f"<p>{html.escape(str(error))}</p>"

    def _draw(self, curves: Sequence[Curve]) -> None:
        """Draw charts of the first streams and curves that are not drawn yet."""
        fresh = [one for one in curves[:_MAX_CHARTS] if one not in self._drawn][: _MAX_CHARTS - len(self._drawn)]
        if not fresh:
            return
        self._drawn |= set(fresh)
        self._add([self.run.stream(one.query, on=one.on or None, name=one.name, history=True) for one in fresh])

    def _add(self, streams: Sequence[LiveStream]) -> None:
        if self._view is None:
            self._view = PlotView(Plot(*streams))
            self._charts.children = [self._view.box]
            self._view.start()
            answer_anywhere(self)
        else:
            self._view.plot.add(*streams)

    def _commands(self) -> list[str]:
        rows = [
            (
                time.strftime("%H:%M:%S", time.localtime(one.time)),
                f"{one.what} {one.name}",
                f"{one.old!r:.40} → {one.new!r:.40}" if one.what in CHANGES else "",
                one.client,
                one.warning or one.outcome,
            )
            for one in reversed(self.run.command_records()[-_MAX_COMMANDS:])
        ]
        return [html_table("Last commands", ("at", "what", "change", "by", "outcome"), rows)]


def _head(run: Run) -> str:
    info, state = run.info, f"{run.state}: {run.reason}" if run.reason else run.state
    facts = [f"rank {info.rank} of {info.ranks}", f"{info.host}, pid {info.pid}", state]
    if run.paused:
        facts.append(f"paused for {run.paused:.0f} s")
    elif run.alive:
        facts.append(moving(run.events(), run.ages(), run.idle))
        if run.inside:
            facts.append(f"inside {run.inside}")
    return f"<h3>{html.escape(run.name)}</h3><p>{html.escape(' · '.join(facts))}</p>"


def _estimate(report: Mapping[str, Any]) -> str:
    """Return the estimate in words and as a bar: full if certain, shaded if not."""
    sure, perhaps = over_by_now(report)
    parts = "".join(
        f'<div style="width:{share:.1%};background:{color}"></div>'
        for share, color in ((sure, COLORS[0]), (perhaps - sure, COLORS[0] + "66"))
    )
    lines = "".join(f"<p style='margin:0'>{html.escape(line)}</p>" for line in said(report))
    return f'<div style="{_BAR}">{parts}</div><div style="margin:0 0 12px">{lines}</div>'


def html_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table, all texts escaped; "" if there are no rows."""
    if not rows:
        return ""
    body = [
        f"<tr>{''.join(f'<{tag} style={_CELL!r}>{html.escape(cell[:200])}</{tag}>' for cell in row)}</tr>"
        for tag, row in [("th", titles), *(("td", row) for row in rows[:_MAX_ROWS])]
        if any(row)
    ]
    more = f"<p>and {len(rows) - _MAX_ROWS:,} more</p>" if len(rows) > _MAX_ROWS else ""
    return f"<b>{html.escape(title)}</b><table style={_STYLE!r}>{''.join(body)}</table>{more}"


def overview(run: Run) -> Overview:
    """Return a dashboard of a run: rates, cost, ranks, charts, last commands.

    It is a widget: make it the last expression of a cell. Voilà can serve it as a page.

    Args:
        run: A live run.
    """
    return Overview(run)
