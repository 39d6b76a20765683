"""`looptap resume`: ends the pause of a run."""

from __future__ import annotations

from looptap.cli.commands.control.give_command import give
from looptap.cli.options import JsonObject, RunName, Timeout, TimeSpan


def resume_command(run: RunName, timeout: Timeout = TimeSpan(5), as_json: JsonObject = False) -> int:
    """End the pause of a run, or cancel one that has not begun.

    It prints for how many seconds the run paused.

    \b
      looptap resume digits-cnn
    """
    return give(run, lambda job: job.resume(timeout=timeout), as_json)
