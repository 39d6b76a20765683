"""Waits for what a job that has just started is about to declare.

Until its first event a job may still declare controls and triggers, or expose objects: a client that attached right at
the start would otherwise be refused what is there a moment later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from looptap.client.session.session import Session
from looptap.protocol import messages as m
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import ControlReport
from looptap.streams.errors import LooptapError
from looptap.streams.waiting import poll_until

DECLARATION_TIMEOUT_SECONDS = 5.0
"""Seconds that a command waits for its name in a job that has raised no event yet."""
_POLL_INTERVAL_SECONDS = 0.05

_DECLARED: dict[str, Callable[[ControlReport, str], bool]] = {
    "set": lambda report, name: any(info.name == name for info in report.controls),
    "trigger": lambda report, name: name in report.triggers,
    "checkpoint": lambda report, name: report.checkpoint,
}
"""Whether what a command names is declared, by the kind of command."""


def await_declaration(session: Session, what: str, name: str, timeout: float) -> None:
    """Wait until a job without events declares what a command names, 5 s at most.

    Returns at once for a job that has raised an event, and raises nothing: the command itself says what is wrong.
    """
    declared = _DECLARED.get(what)
    if declared is None or timeout <= 0 or session.role == VIEWER or any(session.vitals.events.values()):
        return
    path, patience = name if what == "set" else "", min(timeout, DECLARATION_TIMEOUT_SECONDS)
    deadline = time.monotonic() + patience

    def settled() -> bool:
        left = max(0.0, deadline - time.monotonic())
        began = any(session.inquire(m.GetStats, "The question for the counters", left).events.values())
        # after the events: what was declared before the first of them is in the report
        report = session.inquire(lambda number: m.GetControls(number, path), "The question for the controls", left)
        return began or declared(report, name)

    with contextlib.suppress(LooptapError):
        poll_until(settled, _POLL_INTERVAL_SECONDS, patience)
