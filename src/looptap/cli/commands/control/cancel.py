"""`looptap cancel`: cancels a command that still waits."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from typer import Argument

from looptap.cli.commands.control.give_command import for_run
from looptap.cli.formats import printable
from looptap.cli.options import JsonObject, RunName, Timeout, TimeSpan
from looptap.cli.output import DONE, FAILED, complain, say_json
from looptap.cli.shell_names import in_shell
from looptap.client.attach import attach
from looptap.streams.errors import LooptapError


def cancel_command(
    run: RunName,
    id: Annotated[str, Argument(metavar="ID", help="Of the command; looptap commands RUN shows those that wait.")],
    timeout: Timeout = TimeSpan(5),
    as_json: JsonObject = False,
) -> int:
    """Cancel a command that still waits for its event.

    \b
      looptap commands digits-cnn
      looptap cancel digits-cnn 5f0c…

    In a job of several ranks it is cancelled on all. The exit code is 1 if it is too late; then the outcome of the
    command is printed. With --json, outcome is "cancelled", or the outcome of the command.
    """
    with attach(run) as job:
        try:
            outcome = job.cancel(id, timeout=timeout)
        except LooptapError as error:
            return complain(for_run(in_shell(error), run))
    in_time = outcome.outcome == "cancelled"
    if as_json:
        say_json(dataclasses.asdict(outcome))
    elif in_time:
        print(printable(str(outcome)))
    else:
        complain(f"Too late to cancel it: {outcome}")
    return DONE if in_time else FAILED
