"""`looptap call`: code that runs once inside a job, at one of its events."""

from __future__ import annotations

import sys
from typing import Any

from looptap.cli.commands.control import interrupted, of_run
from looptap.cli.formats import json_of, printable, text_of
from looptap.cli.outcome_option import earlier
from looptap.cli.output import DONE, FAILED, complain
from looptap.cli.shell_names import in_shell
from looptap.client.attach import attach
from looptap.client.control.commands import CommandPending
from looptap.client.control.controls import Outcome
from looptap.protocol.errors import RemoteError


def call(name: str, code: str, *, on: str, timeout: float, id: str | None, ranks: Any, as_json: bool) -> int:
    """Run ``code`` in the run ``name`` and print what comes of it; returns the exit code."""
    try:
        with attach(name) as run:
            if id is None:
                result = run.call(code, on=on, timeout=timeout, ranks=ranks)
            else:
                result = _result(earlier(run, id, timeout, "call", value=code))
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, name) from None
    except CommandPending as error:
        return _failed(error, as_json, of_run(in_shell(error), name))
    except RemoteError as error:
        return _failed(error, as_json)
    if as_json:
        print(json_of({"result": result, "error": None, "traceback": ""}))
    elif result is not None:
        print(printable(result, keep="\n\t") if isinstance(result, str) else text_of(result))
    return DONE


def _result(told: Outcome) -> Any:
    """What the code returned; in a job of several ranks by rank."""
    return {rank: one.result for rank, one in told.ranks.items()} if told.ranks else told.result


def _failed(error: RemoteError | CommandPending, as_json: bool, text: str = "") -> int:
    if isinstance(error, CommandPending):
        if as_json:
            print(json_of({"result": None, "error": text, "traceback": "", "id": error.id}))
            return FAILED
        return complain(text)
    if as_json:
        print(json_of({"result": None, "error": str(error), "traceback": error.traceback}))
        return FAILED
    if error.traceback:
        print(printable(error.traceback.rstrip(), keep="\n\t"), file=sys.stderr)
    return complain(f"The command failed in the job: {error}")
