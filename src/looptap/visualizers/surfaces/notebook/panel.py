"""`panel`: the controls of a run as sliders, switches, choices and buttons.

It follows the changes of other clients, shows bounds and meaning of each control and the outcome of a change beside it.
"""

from __future__ import annotations

import contextlib
import html
import math
from typing import Any

import ipywidgets

from looptap.client.control.controls import ControlInfo
from looptap.client.run import Run
from looptap.visualizers.surfaces.live.driver import Driver
from looptap.visualizers.surfaces.notebook import kernels
from looptap.visualizers.surfaces.panels.run_controls import (
    REFRESH_INTERVAL_SECONDS,
    Knob,
    RunControls,
    in_powers,
    slides,
    step_of,
)

_WIDTHS = {"label": "180px", "input": "320px", "meaning": "320px", "answer": "60px"}

looks = Driver("looptap-panels")
"""The thread that checks the controls of all panels."""


class ControlRow:
    """A control or a command: its widget, its meaning, the outcome of its last use."""

    def __init__(self, knob: Knob, widget: Any) -> None:
        self.knob, self.widget = knob, widget
        self.shown: Any = getattr(widget, "value", None)
        label = ipywidgets.Label(knob.label, layout=_width("label"))
        label.tooltip = widget.tooltip = knob.doc or knob.name
        self.meaning = ipywidgets.HTML(_small(knob.meaning), layout=_width("meaning"))
        self.outcome = ipywidgets.HTML(layout=ipywidgets.Layout(margin="0 0 0 12px"))
        self.yes, self.no = (ipywidgets.Button(description=word, layout=_width("answer")) for word in ("yes", "no"))
        self.answers = ipywidgets.HBox([self.yes, self.no], layout=ipywidgets.Layout(display="none"))
        column = ipywidgets.Layout(flex="0 0 auto")
        described = ipywidgets.VBox([widget, self.meaning], layout=column) if knob.meaning else widget
        self.box = ipywidgets.HBox([label, described, self.outcome, self.answers])

    def say(self) -> None:
        """Show the outcome beside the control, or the question with its answers."""
        color = "#b00020" if self.knob.failed or self.knob.warns else "inherit"
        style = f"color:{color};line-height:1.4;padding-top:4px"
        self.outcome.value = f'<div style="{style}">{html.escape(self.knob.remark)}</div>'
        self.answers.layout.display = "" if self.knob.question else "none"

    def describe(self) -> None:
        """Show the meaning; it names the change that an undo takes back."""
        if (text := _small(self.knob.meaning)) != self.meaning.value:
            self.meaning.value = text


class ControlPanel(ipywidgets.VBox):  # type: ignore[misc]
    """The controls and commands of ``run`` as widgets, until `close` or its end."""

    def __init__(self, run: Run) -> None:
        self.run, self.controls = run, RunControls(run, self._said)
        self.rows: dict[str, ControlRow] = {}
        self.closed = False
        self._head, self._foot = ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([self._head, self._foot])
        kernels.answer_anywhere(self)
        self.step(0.0)
        looks.add(self, REFRESH_INTERVAL_SECONDS)

    def close(self) -> None:
        """Stop following the run, which continues."""
        self.closed = True
        super().close()

    def step(self, now: float) -> float | None:
        """Show the controls as they are now."""
        if self.closed:
            return None
        controls = self.controls
        controls.refresh()
        fresh = [self._row(knob) for knob in _in_order(controls) if knob.name not in self.rows]
        self.rows |= {row.knob.name: row for row in fresh}
        if fresh:
            self.children = [self._head, *(row.box for row in self.rows.values()), self._foot]
            kernels.answer_anywhere(self)
        for row in self.rows.values():
            self._follow(row)
            row.describe()
            row.widget.disabled = bool(controls.reason) or not row.knob.there
        reason = controls.reason or ("" if self.rows else "This run has no controls.")
        self._head.value = f"<b>{html.escape(self.run.name)}</b> {html.escape(reason)}"
        self._foot.value = f"<i>{html.escape(kernels.waiting_note())}</i>" if self.rows else ""
        return None if controls.over else REFRESH_INTERVAL_SECONDS

    def _follow(self, row: ControlRow) -> None:
        """Show a value that another client set."""
        knob = row.knob
        if knob.info is None or not knob.settled or (knob.value == row.shown and not knob.doubtful):
            return
        row.shown, knob.doubtful, failed = knob.value, False, knob.doubtful
        with contextlib.suppress(Exception):  # a slider cannot show a value outside of the declared bounds
            row.widget.value = knob.value
        if knob.info.problem:
            self.controls.say(knob, knob.info.problem, failed=True)
        elif not failed:
            self.controls.say(knob, f"now {knob.value!r:.60}")

    def _said(self, knob: Knob) -> None:
        if knob.name in self.rows:
            self.rows[knob.name].say()

    def _row(self, knob: Knob) -> ControlRow:
        if knob.info is None:
            row = ControlRow(knob, ipywidgets.Button(description=knob.name, layout=_width("input")))
            row.widget.on_click(lambda _: self._turned(row, None))
        else:
            row = ControlRow(knob, _widget(knob.info))
            if knob.info.driven:
                knob.outcome = f"driven by {knob.info.driven}"
                row.say()
            row.widget.observe(lambda change: self._turned(row, change["new"]), "value")
        for button, yes in ((row.yes, True), (row.no, False)):
            button.on_click(lambda _, yes=yes: self._answered(row, yes))
        return row

    def _answered(self, row: ControlRow, yes: bool) -> None:
        kernels.pulse.hear()
        self.controls.answer(row.knob, yes)

    def _turned(self, row: ControlRow, value: Any) -> None:
        kernels.pulse.hear()
        if row.knob.info is None or value != row.shown:
            row.shown = value
            self.controls.ask(row.knob, value)


def _in_order(controls: RunControls) -> list[Knob]:
    """Return the controls before the commands."""
    return sorted(controls.knobs.values(), key=lambda knob: knob.info is None)


def _small(text: str) -> str:
    return f'<div style="opacity:0.7;font-size:11px;line-height:1.3">{html.escape(text)}</div>'


def _width(which: str) -> Any:
    return ipywidgets.Layout(width=_WIDTHS[which], flex="0 0 auto")  # whatever an outcome beside it says


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
    if slides(info) and low is not None and high is not None:
        if info.type == "int":
            return ipywidgets.IntSlider(int(value), int(low), int(high), continuous_update=False, **how)
        if in_powers(info):
            ends = {"min": math.log10(low), "max": math.log10(high), "readout_format": ".3g"}
            return ipywidgets.FloatLogSlider(float(value), **ends, continuous_update=False, **how)
        return ipywidgets.FloatSlider(
            float(value), min=low, max=high, step=step_of(info), readout_format=".3g", continuous_update=False, **how
        )
    kind = ipywidgets.IntText if info.type == "int" else ipywidgets.FloatText
    return kind(value, continuous_update=False, **how)


def panel(run: Run) -> ControlPanel:
    """Return the controls of a run as a widget for a notebook.

    Make it the last expression of a cell. Sliders, switches and choices respect the bounds that the job has declared;
    buttons send its triggers, a checkpoint, a pause or a stop. The outcome appears beside each, and changes by other
    clients appear within about a second. For a viewer everything is disabled.

    Args:
        run: A live run.
    """
    return ControlPanel(run)
