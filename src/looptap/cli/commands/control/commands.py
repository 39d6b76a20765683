"""`looptap commands`: the commands that a run has received."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from typer import Option

from looptap.cli.formats import json_of, printable
from looptap.cli.options import RunOrFile
from looptap.cli.output import DONE
from looptap.cli.sources import source
from looptap.client.control.controls import Records, line_of_command
from looptap.protocol.files import command_file


def commands_command(
    run: RunOrFile,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each command.")] = False,
    as_yaml: Annotated[bool, Option("--yaml", help="Print what `looptap replay` takes.")] = False,
) -> int:
    """List the commands given to a run, by whom and when.

    Of each: the time, at which event, what, from which value to which, its outcome, and the client.

    \b
      looptap commands digits-cnn
      looptap commands digits-cnn --yaml > commands.yaml
      looptap commands looptap-runs/digits-cnn-….looptap
    """
    with source(run) as job:
        records, id = job.commands, job.id
    entries = list(records) if isinstance(records, Records) else records.entries()
    if as_yaml:
        print(command_file.file_text(entries, id), end="")
    elif as_json:
        print(json_of(entries))
    else:
        lines = [f"{_clock(one.get('time'))}  {line_of_command(one)}" for one in entries]
        print(printable("\n".join(lines), keep="\n") or "No commands so far.")
    return DONE


def _clock(seconds: Any) -> str:
    """Return the time of day of a command, with its date unless that is today."""
    try:
        when = datetime.fromtimestamp(seconds)
    except (TypeError, ValueError, OverflowError, OSError):  # of a damaged file
        return "–"
    return f"{when:%H:%M:%S}" if when.date() == datetime.now().date() else f"{when:%Y-%m-%d %H:%M:%S}"
