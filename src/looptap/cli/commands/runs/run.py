"""`looptap run`: starts a script as it is, with looptap in its process."""

from __future__ import annotations

import math
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from looptap.cli.options import ScriptName, time_of
from looptap.streams.text import did_you_mean

CONTEXT_SETTINGS: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""The options after SCRIPT are those of the script."""
_OF_PYTHON = ("--help", "--version", "--check-hash-based-pycs")


def run_command(
    job: Annotated[list[str], Argument(metavar="SCRIPT...", help="The script, or a launcher, with its arguments.")],
    name: ScriptName = None,
    may_pause: Annotated[
        float | None,
        Option(
            "--may-pause",
            metavar="TIME",
            parser=time_of,
            show_default="not at all",
            help="Let clients pause the script, for that long at most: 60s, 5m.",
        ),
    ] = None,
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as with python -m.")] = False,
) -> int:
    """Start a PyTorch script as it is, and let clients attach to it.

    The script runs as with python: its arguments, its output, its exit code. With its first optimizer step the run can
    be asked for its loss, its model, its optimizer, and its own variables by their names:

    \b
      looptap run train.py --epochs 10
      looptap run --name digits -m train

    With torchrun it is `torchrun -m looptap run train.py`, with its options. `looptap modules RUN` and
    `looptap ls RUN` show what looptap has found. The same as looptap.auto() in the script.
    """
    from looptap.integrations.auto.launch import launch

    if job[0].startswith("--") and not job[0].startswith(_OF_PYTHON):
        raise BadParameter(f"No such option: {job[0]}.{did_you_mean(job[0], ['--name', '--may-pause', '--help'])}")
    if may_pause is not None and not 0 < may_pause < math.inf:
        raise BadParameter("--may-pause is a time above 0, and not inf: 60s, 5m.")
    return launch(job, module=module, name=name, may_pause=may_pause)
