"""`SidePanel`: the job's knobs beside the charts of a window, and their view.

Everything here runs on the thread of the window's toolkit, but for the reading of the controls, which waits for the
job: that has a thread of its own. Nothing draws by itself: the window's next turn does, if `moved`.
"""

from __future__ import annotations

import functools
import math
import textwrap
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matplotlib.widgets import Button, Slider, TextBox

from looptap.streams.text import cut
from looptap.visualizers.cells import ChartGrid
from looptap.visualizers.charts.legends import run_of
from looptap.visualizers.data.colors import COLORS
from looptap.visualizers.drawing.backends.matplotlib_marks import (
    PLAIN,
    SMALL_FONT_POINTS,
    draw_words,
    drawable,
    theme_of,
)
from looptap.visualizers.surfaces.panels.run_controls import (
    REFRESH_INTERVAL_SECONDS,
    Knob,
    RunControls,
    in_powers,
    slides,
    step_of,
)

_ROW_INCHES = 0.2  # of a line of small letters, or of a slider
_MARGIN_INCHES = 0.12
_MAX_LETTER_COUNT = 40  # letters of a line
_MAX_SMOOTHING_SHARE = 0.99


def runs_to_control(plot: ChartGrid) -> list[Any]:
    """Return the runs of the streams that this client may change."""
    runs = {id(run): run for cell in plot.cells for stream in cell.streams if (run := run_of(stream)) is not None}
    return [run for run in runs.values() if getattr(run, "role", "") == "operator" and hasattr(run, "controls")]


class ControlsReader:
    """Reads the controls of runs again each second, on a thread of its own."""

    def __init__(self, runs: Sequence[Any]) -> None:
        self.controls = [RunControls(run) for run in runs]
        self._over = threading.Event()
        if runs:
            threading.Thread(target=self._read, name="looptap-knobs", daemon=True).start()

    def close(self) -> None:
        """Stop reading."""
        self._over.set()

    @property
    def knobs(self) -> list[tuple[RunControls, Knob]]:
        """All controls, then the commands of all runs; none before the first reply."""
        found = [(one, knob) for one in self.controls for knob in list(one.knobs.values())]
        return sorted(found, key=lambda pair: pair[1].info is None)

    def _read(self) -> None:
        while not self._over.is_set():
            for one in self.controls:
                one.refresh()
            if all(one.over for one in self.controls):
                return
            self._over.wait(REFRESH_INTERVAL_SECONDS)


class ChartsView(Protocol):
    """How charts are looked at, for the buttons and the slider of a panel."""

    @property
    def buttons(self) -> list[tuple[str, Callable[[], str], Callable[[], object]]]:
        """The name, the text and the action of each button."""

    @property
    def smoothing(self) -> float:
        """The weight of the smoothing."""

    def smooth(self, weight: float) -> None:
        """Smooth all lines."""


class SidePanel:
    """Widgets on a part of a figure: those of the view, then the knobs.

    ``view`` has the buttons of the charts and their smoothing (`WindowView`). The knobs begin at the ``first``;
    `hidden` says how many had no room.
    """

    def __init__(
        self,
        figure: Any,
        knobs: Sequence[tuple[RunControls, Knob]],
        view: ChartsView,
        first: int = 0,
    ) -> None:
        self.figure, self.theme = figure, theme_of(figure)
        self.moved = False
        self.rows: dict[str, KnobRow] = {}
        self.boxes: list[Any] = []
        """Fields that take keys while they are written into."""
        self.first, self.hidden = first, 0
        self._names = [knob.name for _, knob in knobs]
        self._wide, self._tall = (
            side / figure.get_figure(root=True).dpi for side in (figure.bbox.width, figure.bbox.height)
        )
        self._down = _MARGIN_INCHES
        self.buttons: dict[str, tuple[Any, Callable[[], str]]] = {}
        self._view(view)
        self._charts = view
        self._knobs(knobs[first:])

    @property
    def typing(self) -> bool:
        """True while keys are written into a field."""
        return any(box.capturekeystrokes for box in self.boxes)

    def fits(self, knobs: Sequence[tuple[RunControls, Knob]]) -> bool:
        """Return whether these are the knobs that are shown."""
        return self._names == [knob.name for _, knob in knobs]

    def update(self) -> bool:
        """Show what has changed; return whether something has to be drawn."""
        changed = any([row.update() for row in self.rows.values()])
        for button, text in self.buttons.values():
            if button.label.get_text() != (new := text()):
                button.label.set_text(new)
                changed = True
        weight = min(_MAX_SMOOTHING_SHARE, self._charts.smoothing)
        if abs(weight - self.smoothing.val) > 1e-9:
            _put(self.smoothing, weight)
            changed = True
        moved, self.moved = self.moved, False
        return changed or moved

    # ------------------------------------------------------------ parts

    def _view(self, view: ChartsView) -> None:
        self.say("smoothing (e)")
        slider = self.slider(0.0, _MAX_SMOOTHING_SHARE, view.smoothing, 0.01)
        slider.on_changed(self._then_move(lambda weight: view.smooth(float(weight))))
        slider.valtext.set(color=self.theme.ink, fontsize=SMALL_FONT_POINTS)
        self.smoothing = slider
        for place, (name, text, act) in enumerate(view.buttons):
            self.buttons[name] = self.button(text(), act, place % 2), text
            if place % 2 or place == len(view.buttons) - 1:
                self._down += 1.08 * _ROW_INCHES
        self._down += 0.25 * _ROW_INCHES

    def _knobs(self, knobs: Sequence[tuple[RunControls, Knob]]) -> None:
        half = 0
        for left, (controls, knob) in enumerate(knobs):
            lines = 1.9 if knob.info is None else 3.3
            if self._down + lines * _ROW_INCHES > self._tall and half == 0:
                self.hidden = len(knobs) - left
                self.say(f"… {self.hidden} more: turn the wheel", color=self.theme.muted)
                return
            row = KnobRow(self, controls, knob, half)
            self.rows[knob.name] = row
            half = (half + 1) % 2 if knob.info is None else 0
            self._down += 0.3 * _ROW_INCHES if knob.info is not None else 1.9 * _ROW_INCHES * (half == 0)

    def say(self, text: str, **how: Any) -> Any:
        """Write a line; return its text."""
        found = draw_words(self.figure, 0, 0, "", va="top", **how)
        found.set_position((_MARGIN_INCHES / self._wide, 1 - self._down / self._tall))
        found.set_text(cut(drawable(text), _MAX_LETTER_COUNT))
        self._down += _ROW_INCHES * 0.85
        return found

    def axes(self, half: int | None = None, below: float = 0.0, height: float = _ROW_INCHES) -> Any:
        """Return axes as wide as the panel, or as one ``half`` of it."""
        room = self._wide - 2 * _MARGIN_INCHES
        wide = room if half is None else 0.5 * room - 0.04
        left = _MARGIN_INCHES + (0.0 if half is None else half * (0.5 * room + 0.04))
        bottom = self._tall - self._down - below - height
        return self.figure.add_axes(
            (left / self._wide, bottom / self._tall, wide / self._wide, height / self._tall), facecolor="none"
        )

    def slider(self, low: float, high: float, value: float, step: float | None) -> Any:
        """Return a slider; it draws when the window does."""
        axes = self.axes(height=0.8 * _ROW_INCHES)
        box = axes.get_position()
        axes.set_position((box.x0, box.y0, 0.78 * box.width, box.height))
        theme = self.theme
        slider = Slider(
            axes,
            "",
            low,
            high,
            valinit=min(high, max(low, value)),
            valstep=step,
            color=theme.of(COLORS[0]),
            track_color=theme.faint,
            initcolor="none",
            handle_style={"edgecolor": theme.muted},
        )
        slider.drawon = False
        self._down += _ROW_INCHES
        return slider

    def button(self, text: str, act: Callable[[], object], half: int | None, axes: Any = None) -> Any:
        """Return a button, on ``axes`` if given; it draws when the window does."""
        axes, theme = self.axes(half) if axes is None else axes, self.theme
        button = Button(
            axes,
            cut(drawable(text), 22 if half is not None else _MAX_LETTER_COUNT),
            color=theme.ground,
            hovercolor=theme.ground,
        )
        button.drawon = False
        for spine in axes.spines.values():
            spine.set_edgecolor(theme.muted)
        button.label.set(color=theme.ink, fontsize=SMALL_FONT_POINTS, **PLAIN)
        button.on_clicked(self._then_move(lambda _: act()))
        return button

    def field(self, text: str, act: Callable[[str], object]) -> Any:
        """Return a text field; Enter sends its text."""
        axes, theme = self.axes(), self.theme
        box = TextBox(axes, "", initial=text, color=theme.ground, hovercolor=theme.ground)
        box.text_disp.set(color=theme.ink, fontsize=SMALL_FONT_POINTS, **PLAIN)
        for spine in axes.spines.values():
            spine.set_edgecolor(theme.muted)
        box.on_submit(self._then_move(act))
        self.boxes.append(box)
        self._down += 1.05 * _ROW_INCHES
        return box

    def move(self) -> None:
        """Have the window draw the panel."""
        self.moved = True

    def _then_move(self, act: Callable[[Any], object]) -> Callable[[Any], None]:
        """Return a function that acts and has the window draw the panel."""

        def acted(value: Any) -> None:
            act(value)
            self.move()

        return acted


class KnobRow:
    """A knob of the job: its name, a widget, and its meaning or the last outcome."""

    def __init__(self, panel: SidePanel, controls: RunControls, knob: Knob, half: int) -> None:
        self.panel, self.controls, self.knob = panel, controls, knob
        self.widget: Any = None
        self._shown: Any = knob.value
        self._drawn: tuple[Any, ...] = ()
        self._dragged = False
        self.answers: list[Any] = []
        """A yes and a no over the widget, once a question was open."""
        info = knob.info
        if info is None:
            self.widget = panel.button(knob.name, self._press, half)
            self.title = None
            self.outcome = draw_words(panel.figure, *self._under(), "", va="top", color=panel.theme.muted)
            return
        self.title = panel.say(knob.label, fontweight="bold")
        if slides(info) and info.minimum is not None and info.maximum is not None:
            self._powers = in_powers(info)
            low, high = self._place(info.minimum), self._place(info.maximum)
            self.widget = panel.slider(low, high, self._place(info.value), None if self._powers else step_of(info))
            self.widget.valtext.set(color=panel.theme.ink, fontsize=SMALL_FONT_POINTS, **PLAIN)
            self.widget.on_changed(self._drag)
            panel.figure.canvas.mpl_connect("button_release_event", self._drop)
        elif info.type == "bool" or info.choices:
            self.widget = panel.button(str(info.value), self._next, None)
            panel._down += 1.05 * _ROW_INCHES
        else:
            self.widget = panel.field(str(info.value), self._written)
        self.outcome = panel.say("", color=panel.theme.muted)

    def _under(self) -> tuple[float, float]:
        box = self.widget.ax.get_position()
        return box.x0, box.y0 - 0.02 / self.panel._tall

    def update(self) -> bool:
        """Show the value, also one that another client set; return whether that changed."""
        knob = self.knob
        now = (knob.value, knob.remark, knob.failed, knob.busy, knob.question, self.controls.reason, knob.there)
        if now == self._drawn:
            return False
        self._drawn = now
        theme = self.panel.theme
        dead = self.controls.reason or ("" if knob.there else "not available now")
        letters = _MAX_LETTER_COUNT if knob.info is not None else _MAX_LETTER_COUNT // 2
        meaning = knob.meaning if knob.info is not None else ""
        question = textwrap.wrap(drawable(knob.question), letters)
        if self.title is not None:
            self.title.set_text(question.pop(0) if len(question) > 1 else cut(drawable(knob.label), letters))
        self.outcome.set(
            text=cut(" ".join(question) or drawable(dead or knob.remark or meaning), letters),
            color=theme.warning if knob.failed or knob.question or knob.warns else theme.muted,
        )
        self._ask(bool(knob.question and not dead))
        self.widget.active = not dead and not knob.question
        if knob.info is not None and knob.settled and not self._dragged:
            self._show(knob.value)
        return True

    def _ask(self, open: bool) -> None:
        """Show a yes and a no in the place of the widget while a question is open."""
        if open and not self.answers:
            box = self.widget.ax.get_position()
            for place, (word, yes) in enumerate((("yes", True), ("no", False))):
                sides = (box.x0 + place * box.width / 2, box.y0, box.width / 2, box.height)
                axes = self.panel.figure.add_axes(sides, facecolor="none")
                answer = functools.partial(self.controls.answer, self.knob, yes)
                self.answers.append(self.panel.button(word, answer, None, axes))
        for button in self.answers:
            button.ax.set_visible(open)
            button.active = open
        self.widget.ax.set_visible(not open)
        if open and isinstance(self.widget, TextBox) and self.widget.capturekeystrokes:
            self.widget.eventson = False  # its text has been sent
            self.widget.stop_typing()
            self.widget.eventson = True

    def _show(self, value: Any) -> None:
        self._shown, self.knob.doubtful = value, False
        if isinstance(self.widget, Slider):
            _put(self.widget, self._place(value))
            self.widget.valtext.set_text(f"{value:.4g}")
        elif isinstance(self.widget, Button):
            self.widget.label.set_text(drawable(str(value)))
        elif isinstance(self.widget, TextBox) and not self.widget.capturekeystrokes:
            _put(self.widget, str(value))

    def _place(self, value: Any) -> float:
        return math.log10(max(value, 1e-300)) if self._powers else float(value)

    def _value(self) -> Any:
        info, at = self.knob.info, float(self.widget.val)
        value = 10.0**at if self._powers else at
        return round(value) if info is not None and info.type == "int" else float(f"{value:.4g}")

    def _drag(self, at: float) -> None:
        self._dragged = True
        self.widget.valtext.set_text(f"{self._value():.4g}")
        self.panel.move()

    def _drop(self, event: Any) -> None:
        """Send the value when the mouse lets the slider go."""
        if self._dragged:
            self._dragged = False
            if (value := self._value()) != self._shown:
                self.controls.ask(self.knob, value)

    def _next(self) -> None:
        """Request the next choice, or the other of two states."""
        info = self.knob.info
        if info is None or not self.widget.active:
            return
        choices = list(info.choices) or [False, True]
        place = choices.index(info.value) if info.value in choices else -1
        self.controls.ask(self.knob, choices[(place + 1) % len(choices)])

    def _press(self) -> None:
        if self.widget.active:
            self.controls.ask(self.knob)

    def _written(self, text: str) -> None:
        info = self.knob.info
        if info is None or text == str(self._shown):
            return
        value: Any = text
        if info.type in ("int", "float"):
            try:
                value = int(text) if info.type == "int" else float(text)
            except ValueError:
                self.controls.say(self.knob, f"{text!r:.20} is not a number.", failed=True)
                return
        self.controls.ask(self.knob, value)


def _put(widget: Any, value: Any) -> None:
    """Have a widget show a value, which is no change by the user."""
    widget.eventson = False
    widget.set_val(value)
    widget.eventson = True
