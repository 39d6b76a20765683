"""`looptap replay`: starts a job in which recorded commands are repeated."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from typer import Argument

from looptap.cli.options import AllowCalls
from looptap.cli.questions import refused
from looptap.store.replay_commands import commands_to_replay

CONTEXT_SETTINGS: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""The options after COMMAND are those of the job."""


def replay_command(
    file: Annotated[str, Argument(metavar="FILE", help="What `looptap commands --yaml` printed, or a stored run.")],
    job: Annotated[list[str], Argument(metavar="COMMAND...", help="How to start the job, with its arguments.")],
    allow_calls: AllowCalls = False,
) -> int:
    """Start a job that repeats recorded commands.

    They are applied at the same events as in the recorded run.

    \b
      looptap replay commands.yaml python train.py --seed 0
      looptap replay looptap-runs/digits-cnn-….looptap python train.py --seed 0

    A recorded call is Python code that runs in the job. If the file has one, the command asks, and needs --allow-calls
    where there is no terminal; both stand before FILE.

    The same as LOOPTAP_REPLAY=commands.yaml python train.py, or looptap.Agent(..., replay="commands.yaml").
    """
    entries = commands_to_replay(file)
    calls = [str(entry.get("value")) for entry in entries if entry["what"] == "call"]
    if calls:
        question = f"Run the Python code of {len(calls)} calls of {file} in the job, the first is {calls[0]!r:.200}?"
        if (code := refused(question, allow_calls, "--allow-calls")) is not None:
            return code
    print(f"looptap: {len(entries)} commands of {file} are done again.", file=sys.stderr, flush=True)
    environment = {**os.environ, "LOOPTAP_REPLAY": os.path.abspath(file)}
    os.execvpe(job[0], job, environment)
