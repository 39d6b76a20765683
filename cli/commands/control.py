"""`looptap set`, `controls`, `stop`, `pause`, `resume`, `checkpoint`, `trigger`, `commands` and `replay`."""

from __future__ import annotations

import ast
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from looptap.cli.formats import json_of, printable
from looptap.cli.outcome_option import earlier as outcome_of
from looptap.cli.output import DONE, FAILED, complain
from looptap.cli.shell_names import in_shell
from looptap.cli.sources import source
from looptap.client.attach import attach
from looptap.client.control.commands import CommandPending
from looptap.client.control.controls import Outcome, Records, line_of
from looptap.client.run import Run
from looptap.protocol.errors import RemoteError
from looptap.protocol.files import command_file
from looptap.store.replay_commands import load
from looptap.streams.errors import ControlError, LooptapError


def value_of(text: str) -> Any:
    """A value as it is written: a number, True, False, or else text.

    >>> value_of("1e-3"), value_of("True"), value_of("cosine"), value_of("'3'")
    (0.001, True, 'cosine', '3')
    """
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}.get(text.lower(), text)
    return found if isinstance(found, int | float | str) else text


def command(name: str, ask: Callable[[Run], Outcome], as_json: bool) -> int:
    """Have the run ``name`` do something and print what came of it; returns the exit code."""
    try:
        with attach(name) as run:
            outcome = ask(run)
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, name) from None
    except (RemoteError, ControlError, CommandPending) as error:
        if as_json:
            trace, id = getattr(error, "traceback", ""), getattr(error, "id", None)
            told = of_run(in_shell(error), name)
            print(json_of({"outcome": type(error).__name__, "error": told, "traceback": trace, "id": id}))
            return FAILED
        if getattr(error, "traceback", ""):
            told = printable(error.traceback.rstrip(), keep="\n\t")  # type: ignore[union-attr]  # it has one
            print(told, file=sys.stderr)
        return complain(of_run(in_shell(error), name))
    print(json_of(dataclasses.asdict(outcome)) if as_json else printable(str(outcome)))
    return DONE


def interrupted(pressed: KeyboardInterrupt, name: str) -> KeyboardInterrupt:
    """``pressed``, after it was said what becomes of the command that the run ``name`` was given."""
    for note in getattr(pressed, "__notes__", ()):
        complain(of_run(in_shell(LooptapError(note)), name))
    return pressed


def cancel(name: str, id: str, timeout: float, as_json: bool) -> int:
    """Call off the command ``id`` of the run ``name`` and print whether that was in time; returns the exit code."""
    with attach(name) as run:
        outcome = run.cancel(id, timeout=timeout)
    in_time = outcome.outcome == "cancelled"
    if as_json:
        print(json_of(dataclasses.asdict(outcome)))
    elif in_time:
        print(printable(str(outcome)))
    else:
        complain(f"Too late to call it off: {outcome}")
    return DONE if in_time else FAILED


def of_run(text: str, name: str) -> str:
    """``text``, with the name of the run where a command is proposed that wants one."""
    return text.replace("looptap cancel RUN", f"looptap cancel {shlex.quote(name)}")


def earlier(name: str, /, as_json: bool, id: str, timeout: float, what: str, **asked: Any) -> int:
    """Print what came of the command ``id`` that the run ``name`` was given before; returns the exit code."""
    return command(name, lambda run: outcome_of(run, id, timeout, what, **asked), as_json)


def controls(name: str, as_json: bool) -> int:
    """Print what can be set in the run ``name``; returns the exit code."""
    with attach(name) as run:
        found = run.controls.look()
    if as_json:
        print(json_of([dataclasses.asdict(info) for info in found.values()]))
        return DONE
    for info in found.values():
        print(printable(str(info)))
    if not found:
        print(
            "This job has no controls. It has them once it calls agent.control(...), or exposes an optimizer or an "
            "object with looptap.Control attributes."
        )
    return DONE


def commands(name: str, as_json: bool, as_yaml: bool) -> int:
    """Print what was done to the run ``name``, which may be a stored one; returns the exit code."""
    with source(name) as run:
        records, id = run.commands, run.id
    entries = list(records) if isinstance(records, Records) else records.entries()
    if as_yaml:
        print(command_file.text_of(entries, id), end="")
    elif as_json:
        print(json_of(entries))
    else:
        print(printable("\n".join(map(line_of, entries)), keep="\n") or "No commands so far.")
    return DONE


def replay(path: str, job: Sequence[str]) -> int:
    """Become ``job``, in which the commands in ``path`` are done at the same events."""
    entries = load(path)
    print(f"looptap: {len(entries)} commands of {path} are done again.", file=sys.stderr, flush=True)
    environment = {**os.environ, "LOOPTAP_REPLAY": os.path.abspath(path)}
    os.execvpe(job[0], list(job), environment)
