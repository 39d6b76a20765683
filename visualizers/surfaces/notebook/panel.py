"""`panel`: the controls of a run as sliders, switches, choices and buttons.

It follows the changes of other clients, shows the outcome of a change beside each control, and talks to the run on its
own threads: a running cell or a loop that does not respond blocks nothing but the change itself.
"""

from __future__ import annotations

import contextlib
import html
import math
import threading
from collections.abc import Callable
from typing import Any

import ipywidgets

from looptap.client.control.controls import ControlInfo, ControlReport
from looptap.client.run import Run
from looptap.streams.errors import LooptapError
from looptap.visualizers.surfaces.notebook import kernels
from looptap.visualizers.surfaces.notebook.driver import Driver

REFRESH_INTERVAL_SECONDS = 1.0
"""Seconds between two checks for changes by other clients."""
_MIN_LOG_SLIDER_RATIO = 100.0  # a positive range whose ends differ by more than this factor has a slider of powers
_OPERATOR = "operator"  # the role that may change a job
_WIDTHS = {"label": "180px", "input": "320px"}

looks = Driver("looptap-panels")
"""The thread that checks the controls of all panels."""


class ControlRow:
    """A control or a command: its widget, and the outcome of its last use."""

    def __init__(self, name: str, widget: Any, doc: str, unit: str = "") -> None:
        self.name, self.widget = name, widget
        self.shown: Any = getattr(widget, "value", None)
        self.waiting: list[Any] = []
        self.busy = False
        label = ipywidgets.Label(f"{name} [{unit}]" if unit else name, layout=_width("label"))
        label.tooltip = widget.tooltip = doc or name
        self.outcome = ipywidgets.HTML(layout=ipywidgets.Layout(margin="0 0 0 12px"))
        self.box = ipywidgets.HBox([label, widget, self.outcome])

    def say(self, text: str, *, failed: bool = False) -> None:
        """Show the outcome beside the control."""
        color = "#b00020" if failed else "inherit"
        self.outcome.value = f'<span style="color:{color}">{html.escape(text)}</span>'


class ControlPanel(ipywidgets.VBox):  # type: ignore[misc]
    """The controls and commands of ``run`` as widgets, until `close` or its end."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[str, ControlRow] = {}
        self.closed = False
        self._guard = threading.Lock()
        self._head, self._foot = ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([self._head, self._foot])
        kernels.answer_anywhere(self)
        self.step(0.0)
        looks.add(self, REFRESH_INTERVAL_SECONDS)

    def close(self) -> None:
        """Stop following the run, which continues."""
        self.closed = True
        super().close()

    # ------------------------------------------------------------ following the run

    def step(self, now: float) -> float | None:
        """Show the controls as they are now."""
        if self.closed:
            return None
        run, reason = self.run, ""
        try:
            if run.role != _OPERATOR:
                reason = "You are a viewer of this run: only an operator can change it."
            report = run.controls.report() if run.alive and not reason else None
            infos = run.controls.look(report=report) if report is not None else {}
        except (LooptapError, TimeoutError) as error:
            report, infos, reason = None, {}, str(error)
        if not run.alive:
            reason = f"The run is {run.state}{f': {run.reason}' if run.reason else ''}."
        fresh = [self._row(info) for name, info in infos.items() if name not in self.rows]
        fresh += [row for row in self._commands(report) if row.name not in self.rows]
        self.rows |= {row.name: row for row in fresh}
        if fresh:
            self.children = [self._head, *(row.box for row in self.rows.values()), self._foot]
            kernels.answer_anywhere(self)
        for name, info in infos.items():
            self._follow(self.rows[name], info)
        for row in self.rows.values():
            row.widget.disabled = bool(reason) or (report is not None and not self._is_there(row, infos, report))
        nothing = "This run has declared nothing that can be changed." if not self.rows and not reason else ""
        self._head.value = f"<b>{html.escape(run.name)}</b> {html.escape(reason or nothing)}"
        self._foot.value = f"<i>{html.escape(kernels.note())}</i>" if self.rows else ""
        return REFRESH_INTERVAL_SECONDS if run.state not in ("ended", "failed") else None

    def _is_there(self, row: ControlRow, infos: dict[str, ControlInfo], report: ControlReport) -> bool:
        return row.name in infos or any(row.name == name for name, *_ in _offers(self.run, report))

    def _follow(self, row: ControlRow, info: ControlInfo) -> None:
        """Show a value that another client set."""
        if row.busy or row.waiting or info.value == row.shown:
            return
        row.shown = info.value
        with contextlib.suppress(Exception):  # a slider cannot show a value outside of the declared bounds
            row.widget.value = info.value
        row.say(f"now {info.value!r:.60}")
        if info.problem:
            row.say(info.problem, failed=True)

    # ------------------------------------------------------------ widgets

    def _row(self, info: ControlInfo) -> ControlRow:
        doc = "; ".join(filter(None, [info.doc, f"driven by {info.driven}" if info.driven else ""]))
        row = ControlRow(info.name, _widget(info), doc, info.unit)
        if info.driven:
            row.say(f"driven by {info.driven}")

        def changed(change: dict[str, Any]) -> None:
            kernels.pulse.hear()
            if change["new"] != row.shown:
                self._ask(row, change["new"], lambda value: self._set(info, value))

        row.widget.observe(changed, "value")
        return row

    def _set(self, info: ControlInfo, value: Any) -> Any:
        return self.run.set(info.name, value, schedule="scale" if info.driven else "")

    def _commands(self, report: ControlReport | None) -> list[ControlRow]:
        rows = []
        for name, doc, call in _offers(self.run, report):
            button = ipywidgets.Button(description=name, layout=_width("input"))
            row = ControlRow(name, button, doc)

            def pressed(_: Any, row: ControlRow = row, call: Callable[[], Any] = call) -> None:
                kernels.pulse.hear()
                self._ask(row, None, lambda value: call())

            button.on_click(pressed)
            rows.append(row)
        return rows

    # ------------------------------------------------------------ asking

    def _ask(self, row: ControlRow, value: Any, call: Callable[[Any], Any]) -> None:
        """Run a request on a thread of its own; of those made meanwhile, the newest."""
        with self._guard:
            row.waiting[:] = [value]
            if row.busy:
                return
            row.busy = True
        row.say("…")
        threading.Thread(target=self._work, args=(row, call), name="looptap-panel", daemon=True).start()

    def _work(self, row: ControlRow, call: Callable[[Any], Any]) -> None:
        while True:
            with self._guard:
                if not row.waiting:
                    row.busy = False
                    return
                value = row.waiting.pop()
            try:
                outcome = call(value)
            except Exception as error:  # an error of the job, the connection or the value is shown beside it
                row.say(str(error), failed=True)
                row.shown = _NOTHING  # the next check shows the actual value
            else:
                if getattr(outcome, "what", "") == "set":
                    row.shown = outcome.new
                row.say(str(outcome))


_NOTHING = object()


def _offers(run: Run, report: ControlReport | None) -> list[tuple[str, str, Callable[[], Any]]]:
    """Return the commands that a run offers: name, meaning, and how to request it."""
    found: list[tuple[str, str, Callable[[], Any]]] = []
    if report is None:
        return found
    for name, doc in report.triggers.items():
        found.append((f"trigger {name}", doc, lambda name=name: run.trigger(name)))  # type: ignore[misc]
    if report.checkpoint:
        found.append(("checkpoint", "have the job make a checkpoint", run.checkpoint))
    if report.may_pause:
        found.append(("pause", f"have the loop wait, for {report.may_pause} s at most", run.pause))
        found.append(("resume", "end a pause", run.resume))
    return [*found, ("stop", "ask the job to stop at its next event", run.stop)]


def _width(which: str) -> Any:
    return ipywidgets.Layout(width=_WIDTHS[which])


def _widget(info: ControlInfo) -> Any:
    """Return the widget for a control, limited to the values that it accepts."""
    value, low, high = info.value, info.minimum, info.maximum
    how: dict[str, Any] = {"layout": _width("input")}
    if info.choices:
        return ipywidgets.Dropdown(options=list(info.choices), value=value if value in info.choices else None, **how)
    if info.type == "bool":
        return ipywidgets.Checkbox(bool(value), indent=False, **how)
    if info.type == "str":
        return ipywidgets.Text(str(value), continuous_update=False, **how)
    if not isinstance(value, int | float):
        return ipywidgets.Text(repr(value), continuous_update=False, **how)
    if low is not None and high is not None and low <= value <= high:
        if info.type == "int":
            return ipywidgets.IntSlider(int(value), int(low), int(high), continuous_update=False, **how)
        if low > 0 and high / low > _MIN_LOG_SLIDER_RATIO:
            ends = {"min": math.log10(low), "max": math.log10(high), "readout_format": ".3g"}
            return ipywidgets.FloatLogSlider(float(value), **ends, continuous_update=False, **how)
        step = _round_below((high - low) / 100) if high > low else 0.1
        return ipywidgets.FloatSlider(
            float(value), min=low, max=high, step=step, readout_format=".3g", continuous_update=False, **how
        )
    kind = ipywidgets.IntText if info.type == "int" else ipywidgets.FloatText
    return kind(value, continuous_update=False, **how)


def _round_below(step: float) -> float:
    """Return the largest of 1, 2 or 5 times a power of ten not above ``step``.

    >>> _round_below(0.63), _round_below(0.02)
    (0.5, 0.02)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next((n * power for n in (5, 2) if n * power <= step), power)


def panel(run: Run) -> ControlPanel:
    """Return the controls of a run as a widget for a notebook.

    Make it the last expression of a cell. Sliders, switches and choices keep to the bounds that the job has declared;
    buttons send its triggers, a checkpoint, a pause, a stop. The outcome is shown beside each, and the changes of
    others follow within about a second. For a viewer all are disabled.
    """
    return ControlPanel(run)
