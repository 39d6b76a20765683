"""Sends a command to a run, or reads the outcome of an earlier one."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from looptap.cli.formats import json_of, printable
from looptap.cli.output import DONE, FAILED, complain, say_json
from looptap.cli.questions import refused
from looptap.cli.shell_names import in_shell
from looptap.client.attach import attach
from looptap.client.control.controls import Outcome, line_of_command
from looptap.client.control.pending import CommandPending
from looptap.client.run import Run
from looptap.protocol.errors import RemoteError
from looptap.protocol.replies import PENDING
from looptap.streams.errors import ControlError, LooptapError

LASTING_EVENTS_COUNT = 2
"""Events at which a change has to stand until `lasting` believes in it."""
LASTING_SECONDS = 1.0
"""The most that it waits for them."""
WAIT_SECONDS = 2.0
"""A command that waits for longer says what for."""
_POLL_SECONDS = 0.02


def give(
    name: str,
    ask: Callable[[Run], Outcome],
    as_json: bool,
    question: Callable[[Run], str] = lambda run: "",
    yes: bool = False,
    on: str | None = None,
) -> int:
    """Send the run ``name`` a command, print the outcome, return the exit code.

    A ``question`` that is not empty is asked before, unless its answer is ``yes``.
    ``on`` is empty if no event is named.
    """
    try:
        with attach(name) as run:
            if not yes and (text := question(run)) and (code := refused(text, yes)) is not None:
                return code
            with announced(run, name, on):
                outcome = ask(run)
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, name) from None
    except (RemoteError, ControlError, CommandPending) as error:
        text, trace = for_run(in_shell(error), name), getattr(error, "traceback", "")
        id = getattr(error, "id", None)
        plain = {"outcome": type(error).__name__, "error": text, "traceback": trace, "id": id}
        return report_failure(text, trace, plain, as_json)
    print(json_of(dataclasses.asdict(outcome)) if as_json else printable(str(outcome)))
    return DONE


def report_failure(text: str, trace: str, plain: Mapping[str, Any], as_json: bool) -> int:
    """Print why a command failed, as text or as ``plain`` data; return the exit code."""
    if as_json:
        say_json(plain)
        return FAILED
    if trace:
        print(printable(trace.rstrip(), keep="\n\t"), file=sys.stderr)
    return complain(text)


@contextlib.contextmanager
def announced(run: Run, name: str, on: str | None = None) -> Iterator[None]:
    """Say what a command waits for, if it does not end within `WAIT_SECONDS`.

    At once if the loop has raised no event: the command may then wait for ever.
    """
    with contextlib.suppress(LooptapError):
        if not any(run.events().values()):
            complain(
                f"{run.name} has raised no event so far, and a command runs at one. If its loop never calls "
                f'agent.emit("batch", …), end its process with a signal instead: kill -INT {run.info.pid}.'
            )

    def say() -> None:
        if run.paused:
            complain(f"{run.name} is paused, and the command waits. looptap resume {shlex.quote(name)} ends the pause.")
        else:
            complain(_other_event(run, on) or "The command waits for its event. Ctrl-C ends the wait.")

    timer = threading.Timer(WAIT_SECONDS, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    except CommandPending:
        if not timer.finished.is_set() and (hint := _other_event(run, on)):
            complain(hint)
        raise
    finally:
        timer.cancel()


def _other_event(run: Run, on: str | None) -> str:
    """Return which event to name, if a command without one waits in vain so far."""
    with contextlib.suppress(LooptapError):
        types = [name for name, count in run.events().items() if count]
        awaited = {record.on for record in run.command_records() if record.outcome == PENDING}
        if types and on == "" and awaited and awaited.isdisjoint(types):
            listed = ", ".join(types[:5])
            return f"{run.name} raises no {min(awaited)} events, only {listed}: give --on {shlex.quote(types[0])}."
    return ""


def lasting(run: Run, outcome: Outcome) -> Outcome:
    """Return the outcome of a change as known a few steps later, or after a second.

    A script that writes its own learning rate has undone the change by then.
    """
    deadline, warning = time.monotonic() + LASTING_SECONDS, outcome.warning
    with contextlib.suppress(LooptapError):  # the run has ended, or does not answer: the change was made all the same
        while outcome.stood is not None and outcome.stood < LASTING_EVENTS_COUNT and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            outcome = run.outcome(outcome.id)
            if outcome.warning != warning:
                break
    return outcome


def report_earlier(name: str, /, as_json: bool, id: str, timeout: float, what: str, **asked: Any) -> int:
    """Print the outcome of an earlier command by its ``id``; return the exit code."""
    return give(name, lambda run: outcome_of(run, id, timeout, what, **asked), as_json)


def interrupted(pressed: KeyboardInterrupt, name: str) -> KeyboardInterrupt:
    """Print what becomes of the command of the run ``name``; return ``pressed``."""
    for note in getattr(pressed, "__notes__", ()):
        complain(for_run(in_shell(LooptapError(note)), name))
    return pressed


def for_run(text: str, name: str) -> str:
    """Return ``text`` with the run's name in the shell command that it suggests."""
    return re.sub(r"looptap (call|cancel|commands) RUN", lambda found: f"looptap {found[1]} {shlex.quote(name)}", text)


def outcome_of(run: Run, /, id: str, timeout: float, what: str, **asked: Any) -> Outcome:
    """Return the outcome of the command ``id``, without sending a command.

    Raises ControlError if the id is unknown or the command was not ``what`` with these arguments, and what the command
    raised.
    """
    record = _recorded(run, id)
    if record is None:
        raise ControlError(
            f"the job remembers no command with the id {id!r:.80}; nothing was done. Without --id it is a new command; "
            f"looptap commands {run.name} lists those that were given, with --json their ids."
        )
    if record.get("what") != what or any(record.get(name) != value for name, value in asked.items()):
        raise ControlError(
            f"the command {id:.80} was another one, and nothing was done: {line_of_command(record)}. Give that one to "
            "see its outcome; without --id what you wrote is a new command."
        )
    return run.outcome(id, timeout=timeout)


def _recorded(run: Run, id: str) -> dict[str, Any] | None:
    """Return the record of a command, which may have been for a single rank."""
    if run.info.ranks == 1:
        found = [run.commands]
    else:
        replies = run.ranks.each(lambda rank: rank.commands)
        found = [records for records in replies.values() if isinstance(records, list)]
    return next((one for records in found for one in records if one.get("id") == id), None)
