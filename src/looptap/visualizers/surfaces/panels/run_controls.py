"""`RunControls`: the controls of a run as data, for the panels that draw them.

A panel calls `refresh` now and then, and `ask` when its user has turned something. Requests run on threads of their
own: a loop that does not respond blocks nothing but the change itself.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from looptap.client.control.controls import (
    CHANGES,
    CommandRecord,
    ControlInfo,
    ControlReport,
    Outcome,
    question_before,
    with_value,
)
from looptap.client.control.undoing import newest_change_in
from looptap.client.run import Run
from looptap.streams.control import leap
from looptap.streams.errors import LooptapError

REFRESH_INTERVAL_SECONDS = 1.0
"""Seconds between two checks for changes by other clients."""
MIN_LOG_SLIDER_RATIO = 100.0
"""A positive range whose ends differ by more than this factor has a slider of powers."""
_OPERATOR = "operator"  # the role that may change a job
_DONE = "done"
UNDO, STOP = "undo", "stop"
"""Commands of each run. The second is asked about, and the first if it takes an undo back."""


@dataclass(eq=False)
class Knob:
    """A control or a command of a run, and the outcome of its last use."""

    name: str
    call: Callable[[Any], Any] = field(repr=False)
    doc: str = ""
    info: ControlInfo | None = None
    """The control as it was last read; None for a command."""
    there: bool = True
    """False if the job does not offer it now."""
    outcome: str = ""
    change: str = ""
    """The id of the change that `outcome` describes, if it is one."""
    warning: str = ""
    """What is known of the newest change by now, such as that the job itself has set another value since."""
    failed: bool = False
    busy: bool = False
    waiting: list[Any] = field(default_factory=list, repr=False)
    """The value to be sent next."""
    question: str = ""
    """What a panel asks before it sends `proposed`; `RunControls.answer` takes the reply."""
    proposed: Any = None
    doubtful: bool = False
    """True after a failed request: what a panel shows may not be the value."""
    read: float = 0.0
    asked: float = 0.0
    """When the value was read and when the last request ended, by the monotonic clock."""

    @property
    def value(self) -> Any:
        """The value of a control; None for a command."""
        return None if self.info is None else self.info.value

    @property
    def settled(self) -> bool:
        """True if the value was read after all requests, and no question is open."""
        return not self.busy and not self.waiting and not self.question and self.read >= self.asked

    @property
    def warns(self) -> bool:
        """True if its newest change has a warning, and nothing else is said of it."""
        return bool(self.warning) and not (self.busy or self.failed or self.question)

    @property
    def remark(self) -> str:
        """What a panel shows beside it: the warning, or the last outcome."""
        return self.warning if self.warns else self.outcome

    @property
    def label(self) -> str:
        """The name, with the unit."""
        return f"{self.name} [{self.info.unit}]" if self.info is not None and self.info.unit else self.name

    @property
    def meaning(self) -> str:
        """The bounds and the meaning, in a line."""
        return " · ".join(filter(None, [bounds(self.info), self.doc]))


class RunControls:
    """The controls and commands of a run.

    ``said`` is called when the outcome of a knob changes.
    """

    def __init__(self, run: Run, said: Callable[[Knob], None] = lambda knob: None) -> None:
        self.run = run
        self.knobs: dict[str, Knob] = {}
        self.reason = ""
        """Why nothing can be changed, if so."""
        self._said = said
        self._guard = threading.Lock()
        self._newest: CommandRecord | None = None  # change of a control, which an undo takes back

    def refresh(self) -> None:
        """Read the controls as they are now; waits for the reply of the run."""
        run, reason = self.run, ""
        report, infos, begun, records = None, dict[str, ControlInfo](), time.monotonic(), list[CommandRecord]()
        try:
            if run.role != _OPERATOR:
                reason = "You are a viewer of this run: only an operator can change it."
            elif run.alive:
                report = run.controls.report()
                infos = run.controls.look(report=report)
                records = run.command_records()
                self._newest = newest_change_in(records)
        except (LooptapError, TimeoutError) as error:
            reason = str(error)
        if not run.alive:
            reason = f"The run is {run.state}{f': {run.reason}' if run.reason else ''}."
        offered = {name: (doc, call) for name, doc, call in _offers(run, report, self._newest)}
        for name, (doc, call) in offered.items():
            knob = self.knobs.setdefault(name, Knob(name, _ignoring_value(call)))
            knob.doc, knob.call = doc, _ignoring_value(call)
        changes = (one for one in records if one.what in CHANGES and one.outcome == _DONE)
        newest = {one.name: one for one in sorted(changes, key=lambda one: one.time)}
        for name, info in infos.items():
            knob = self.knobs.setdefault(name, Knob(name, lambda value, name=name: self._set(name, value)))  # type: ignore[misc]
            if begun >= knob.asked:  # else it may be the value before the last request
                knob.read, knob.info = begun, info
            knob.doc = "; ".join(filter(None, [info.doc, info.driven and f"driven by {info.driven}"]))
            if knob.settled and name in newest:
                self._follow(knob, newest[name])
        for name, knob in self.knobs.items():
            knob.there = report is None or name in infos or name in offered
        self.reason = reason

    @property
    def over(self) -> bool:
        """True if the run has ended: nothing will change any more."""
        return self.run.state in ("ended", "failed")

    def _follow(self, knob: Knob, newest: CommandRecord) -> None:
        """Show a newer change of a control: by an undo, or by another client."""
        if knob.change not in ("", newest.id):
            knob.outcome, knob.change = str(Outcome.of(newest)), newest.id
        elif knob.warning == newest.warning:
            return
        knob.warning = newest.warning
        self._said(knob)

    def _set(self, name: str, value: Any) -> Any:
        info = self.knobs[name].info
        return self.run.set(name, value, schedule="scale" if info is not None and info.driven else "")

    def ask(self, knob: Knob, value: Any = None) -> None:
        """Request a change, or open a question about it: `Knob.question`."""
        knob.question, knob.proposed = self._question(knob, value), value
        if knob.question:
            self.say(knob, knob.question)
        else:
            self._send(knob, value)

    def answer(self, knob: Knob, yes: bool) -> None:
        """Request the proposed change after a yes; after a no, nothing is done."""
        asked, knob.question = knob.question, ""
        if asked and yes:
            self._send(knob, knob.proposed)
        elif asked:
            knob.doubtful = True  # the panel shows the proposed value
            self.say(knob, "Nothing was done.")

    def _question(self, knob: Knob, value: Any) -> str:
        if knob.info is not None:
            return question_before(knob.info, value)
        if knob.name == STOP:
            return f"Stop {self.run.name} at its next event?"
        change = self._newest
        if knob.name == UNDO and change is not None and change.what == UNDO and leap(change.new, change.old):
            return f"{change.name}: {change.new!r:.60} → {change.old!r:.60} again. Undo the undo?"
        return ""

    def _send(self, knob: Knob, value: Any) -> None:
        """Request a change on a thread of its own; of those made meanwhile, the newest."""
        with self._guard:
            knob.waiting[:] = [value]
            if knob.busy:
                return
            knob.busy, knob.warning = True, ""
        self.say(knob, "…")
        threading.Thread(target=self._work, args=(knob,), name="looptap-panel", daemon=True).start()

    def _work(self, knob: Knob) -> None:
        while True:
            with self._guard:
                if not knob.waiting:
                    knob.busy = False
                    return
                value = knob.waiting.pop()
            try:
                outcome = knob.call(value)
            except Exception as error:  # an error of the job, the connection or the value is shown beside it
                knob.asked, knob.doubtful = time.monotonic(), True
                self.say(knob, str(error), failed=True)
            else:
                if knob.info is not None and isinstance(outcome, Outcome) and outcome.outcome == _DONE:
                    knob.info = with_value(knob.info, outcome.new)  # what the next question compares with
                knob.asked = time.monotonic()
                self.say(knob, str(outcome), change=outcome.id if isinstance(outcome, Outcome) else "")

    def say(self, knob: Knob, text: str, *, failed: bool = False, change: str = "") -> None:
        """Note the outcome of a knob, and the id of its change."""
        knob.outcome, knob.failed, knob.change = text, failed, change
        self._said(knob)


def bounds(info: ControlInfo | None) -> str:
    """Return the bounds of a control in words; "" if it has none.

    >>> bounds(ControlInfo(name="factor", minimum=1, maximum=64)), bounds(ControlInfo(name="lr", minimum=0.0))
    ('1 to 64', 'at least 0.0')
    """
    if info is None or info.choices:
        return ""
    low, high = info.minimum, info.maximum
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""


def slides(info: ControlInfo) -> bool:
    """Return whether a control has a slider: a number within bounds."""
    low, high, value = info.minimum, info.maximum, info.value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(number and not info.choices and low is not None and high is not None and low <= value <= high)


def in_powers(info: ControlInfo) -> bool:
    """Return whether the slider of a control is one of powers."""
    low, high = info.minimum, info.maximum
    return info.type != "int" and bool(low and high and low > 0 and high / low > MIN_LOG_SLIDER_RATIO)


def step_of(info: ControlInfo) -> float:
    """Return the step of a slider: about a hundredth of its range, a round number."""
    low, high = info.minimum or 0, info.maximum or 0
    if info.type == "int":
        return 1
    return round_below((high - low) / 100) if high > low else 0.1


def round_below(step: float) -> float:
    """Return the largest of 1, 2 or 5 times a power of ten not above ``step``.

    >>> round_below(0.63), round_below(0.02)
    (0.5, 0.02)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next((n * power for n in (5, 2) if n * power <= step), power)


def _offers(
    run: Run, report: ControlReport | None, newest: CommandRecord | None
) -> list[tuple[str, str, Callable[[], Any]]]:
    """Return the commands that a run offers: name, meaning, and how to request it."""
    found: list[tuple[str, str, Callable[[], Any]]] = []
    if report is None:
        return found
    for name, doc in report.triggers.items():
        found.append((f"trigger {name}", doc, lambda name=name: run.trigger(name)))  # type: ignore[misc]
    if report.checkpoint:
        found.append(("checkpoint", "make the job save a checkpoint", run.checkpoint))
    if report.may_pause:
        found.append(("pause", f"pause the loop, for {report.may_pause} s at most", run.pause))
        found.append(("resume", "end a pause", run.resume))
    if newest is None:
        found.append((UNDO, "undo the last change of a control", run.undo))
    else:  # of two who take the same change back, the second does not take back what the first did
        take_back = functools.partial(run.undo, newest.name, expected=newest.id)
        found.append((UNDO, f"undo {newest.name} {newest.old!r:.40} → {newest.new!r:.40}", take_back))
    return [*found, (STOP, "ask the job to stop at its next event", run.stop)]


def _ignoring_value(call: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda value: call()
