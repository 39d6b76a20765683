"""`looptap pause`: pauses a run."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from looptap.cli.commands.control.give_command import give
from looptap.cli.options import At, JsonObject, RunName, Timeout, TimeSpan, time_of


def pause_command(
    run: RunName,
    seconds: Annotated[
        float | None,
        Argument(
            metavar="TIME",
            parser=time_of,
            help="For how long at most: 60, 60s or 5m; by default as long as the job allows.",
        ),
    ] = None,
    on: At = "",
    timeout: Timeout = TimeSpan(30),
    as_json: JsonObject = False,
) -> int:
    """Pause a run at its next event, if the job allows it.

    It continues after `looptap resume`, or when the time is over.

    \b
      looptap pause digits-cnn 60
      looptap resume digits-cnn

    The job has to allow it: looptap.Agent(..., may_pause=300.0), or looptap run --may-pause 5m train.py.
    """
    return give(run, lambda job: job.pause(seconds, on=on, timeout=timeout), as_json)
