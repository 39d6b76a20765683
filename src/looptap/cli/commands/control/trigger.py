"""`looptap trigger`: runs a function that a job offers."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from looptap.cli.commands.control.give_command import give, report_earlier
from looptap.cli.options import (
    At,
    CheckpointFirst,
    CommandId,
    JsonObject,
    OnRanks,
    RunName,
    Timeout,
    TimeSpan,
    which_of,
)


def trigger_command(
    run: RunName,
    name: Annotated[str, Argument(metavar="NAME", help="What the job called it in agent.trigger.")],
    on: At = "",
    checkpoint: CheckpointFirst = False,
    timeout: Timeout = TimeSpan(30),
    id: CommandId = None,
    ranks: OnRanks = "all",
    as_json: JsonObject = False,
) -> int:
    """Run a function that the job offers, once.

    It runs in the loop of the job, at the next event, and its result is printed.

    \b
      looptap trigger digits-cnn evaluate

    A job offers one by agent.trigger("evaluate", function).
    """
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "trigger", name=name)
    how: dict[str, Any] = {"on": on, "checkpoint": checkpoint, "timeout": timeout, "ranks": which_of(ranks)}
    return give(run, lambda job: job.trigger(name, **how), as_json)
