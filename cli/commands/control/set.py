"""`looptap set`: sets a control of a run."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from looptap.cli.commands.control.give_command import give, report_earlier
from looptap.cli.options import (
    At,
    CheckpointFirst,
    CommandId,
    JsonObject,
    OnRanks,
    RunName,
    Timeout,
    value_of,
    which_of,
)


def main(
    run: RunName,
    name: Annotated[str, Argument(metavar="NAME", help="A control, or a path such as model.dropout.p.")],
    value: Annotated[str, Argument(metavar="VALUE", help="A number, True, False, or text.")],
    on: At = "",
    schedule: Annotated[
        str,
        Option(
            metavar="scale|freeze",
            help="For a learning rate that a schedule drives: scale continues the schedule from the new value; freeze "
            "keeps the new value.",
            show_default=False,
        ),
    ] = "",
    checkpoint: CheckpointFirst = False,
    timeout: Timeout = 30.0,
    id: CommandId = None,
    ranks: OnRanks = "all",
    as_json: JsonObject = False,
) -> int:
    """Set a control of a run, at a safe event.

    The value is checked at once, and changed between two steps, at the next event that is safe.

    \b
      looptap set digits-cnn optimizer.lr 0.01 --schedule scale
      looptap set digits-cnn echo.factor 3 --checkpoint
      looptap set digits-cnn "model[7].p" 0.2

    `looptap controls` lists the controls. A value that begins with a minus goes after two more: -- -0.5. The exit code
    is 0 if it was changed, and 1 if it was refused, failed, or was not answered in time; it may still be done then,
    and --id asks for its outcome.
    """
    to, which = value_of(value), which_of(ranks)
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "set", name=name, value=to)
    return give(
        run,
        lambda job: job.set(name, to, on=on, schedule=schedule, checkpoint=checkpoint, timeout=timeout, ranks=which),
        as_json,
    )
