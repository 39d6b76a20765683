"""`looptap stop`: asks a run to stop."""

from __future__ import annotations

from looptap.cli.commands.control.give_command import give, report_earlier
from looptap.cli.options import At, CheckpointFirst, CommandId, JsonObject, RunName, Timeout, TimeSpan
from looptap.cli.questions import Yes
from looptap.client.run import Run


def stop_command(
    run: RunName,
    on: At = "",
    checkpoint: CheckpointFirst = False,
    timeout: Timeout = TimeSpan(30),
    id: CommandId = None,
    yes: Yes = False,
    as_json: JsonObject = False,
) -> int:
    """Ask a run to stop at its next event.

    \b
      looptap stop digits-cnn
      looptap stop digits-cnn --checkpoint --on epoch --yes

    It asks before; without a terminal it needs --yes, else the exit code is 2 and nothing is done.

    It is a request: the job ends if it reads agent.stop_requested, or was started with looptap.Agent(..., on_stop=…),
    an exception that its agent.emit then raises.
    """
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "stop")
    return give(run, lambda job: job.stop(on=on, checkpoint=checkpoint, timeout=timeout), as_json, _question, yes, on)


def _question(run: Run) -> str:
    return f"Stop {run.name} ({run.id}) at its next event?"
