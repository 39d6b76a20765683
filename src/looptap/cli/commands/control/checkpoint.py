"""`looptap checkpoint`: makes a run save a checkpoint."""

from __future__ import annotations

from looptap.cli.commands.control.give_command import give, report_earlier
from looptap.cli.options import At, CommandId, JsonObject, OnRanks, RunName, Timeout, TimeSpan, which_of


def checkpoint_command(
    run: RunName,
    on: At = "",
    timeout: Timeout = TimeSpan(300),
    id: CommandId = None,
    ranks: OnRanks = "all",
    as_json: JsonObject = False,
) -> int:
    """Save a checkpoint of a run at its next event.

    What the job's function returned is printed, such as the path of the file.

    \b
      looptap checkpoint digits-cnn

    The job has to say how: agent.checkpoint(function).
    """
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "checkpoint")
    which = which_of(ranks)
    return give(run, lambda job: job.checkpoint(on=on, timeout=timeout, ranks=which), as_json)
