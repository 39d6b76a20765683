"""`looptap set`: sets a control of a run."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from looptap.cli import completion
from looptap.cli.commands.control.give_command import give, lasting, report_earlier
from looptap.cli.options import (
    At,
    CheckpointFirst,
    CommandId,
    JsonObject,
    OnRanks,
    RunName,
    Timeout,
    TimeSpan,
    choice,
    value_of,
    which_of,
)
from looptap.cli.questions import Yes
from looptap.client.control.controls import ControlInfo, question_before
from looptap.client.run import Run


def set_command(
    run: RunName,
    name: Annotated[
        str,
        Argument(
            metavar="NAME",
            help="A control, or a path such as model.dropout.p.",
            autocompletion=completion.control_names,
        ),
    ],
    value: Annotated[str, Argument(metavar="VALUE", help="A number, True, False, or text.")],
    on: At = "",
    schedule: Annotated[
        str,
        Option(
            metavar="scale|freeze",
            parser=choice("scale", "freeze"),
            help="For a learning rate that a schedule drives: scale continues the schedule from the new value; freeze "
            "keeps the new value.",
            show_default=False,
        ),
    ] = "",
    checkpoint: CheckpointFirst = False,
    timeout: Timeout = TimeSpan(30),
    id: CommandId = None,
    ranks: OnRanks = "all",
    yes: Yes = False,
    as_json: JsonObject = False,
) -> int:
    """Set a control of a run, at a safe event.

    The value is checked at once, and changed between two steps, at the next event that is safe. A change by more than
    a factor of 10, from 0 or to 0 must be confirmed. Without a terminal, confirm it with --yes; otherwise the exit
    code is 2 and nothing is done. `looptap undo` reverts a change.

    \b
      looptap set digits-cnn optimizer.lr 0.01 --schedule scale
      looptap set digits-cnn echo.factor 3 --checkpoint
      looptap set digits-cnn "model[7].p" 0.2

    If the job itself sets another value at one of the next steps, as a script does that computes its own learning rate,
    the outcome says so. `looptap controls` lists the controls. Before a value that begins with a minus, write two
    hyphens: `-- -0.5`. The exit code is 0 if it was changed, and 1 if it was refused, failed, or was not answered in
    time; it may still be done then, and --id asks for its outcome.
    """
    to, which = value_of(value), which_of(ranks)
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "set", name=name, value=to)
    seen: list[ControlInfo] = []

    def question(job: Run) -> str:
        info = _of_lowest(job, which).controls.find(name)
        text = question_before(info, to, job.name)
        if info is not None and text:
            seen.append(info)  # the answer is about this value: a change by another client meanwhile is a conflict
        return text

    def change(job: Run) -> Any:
        how: dict[str, Any] = {"expected": seen[0]} if seen else {}
        done = job.set(name, to, on=on, schedule=schedule, checkpoint=checkpoint, timeout=timeout, ranks=which, **how)
        return lasting(job, done)

    return give(run, change, as_json, question, yes)


def _of_lowest(job: Run, ranks: str | list[int]) -> Run:
    """Return the lowest of the ranks that a command is for."""
    return job if isinstance(ranks, str) or job.info.rank in ranks else job.ranks[min(ranks)]
