"""`looptap undo`: undoes the last change of a control."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from looptap.cli.commands.control.give_command import give, report_earlier
from looptap.cli.options import At, CommandId, JsonObject, RunName, Timeout, TimeSpan
from looptap.cli.questions import Yes
from looptap.client.run import Run
from looptap.streams.control import leap


def undo_command(
    run: RunName,
    name: Annotated[
        str, Argument(metavar="NAME", help="Only the last change of this control.", show_default=False)
    ] = "",
    on: At = "",
    timeout: Timeout = TimeSpan(30),
    id: CommandId = None,
    yes: Yes = False,
    as_json: JsonObject = False,
) -> int:
    """Undo the last change of a control, by any client.

    \b
      looptap set digits-cnn optimizer.lr 100 --schedule scale --yes
      looptap undo digits-cnn

    The control gets its former value at the next event, on all ranks where it was changed, or on none. A scaled
    schedule is scaled back, and a frozen one continues. If the job itself has set the control since, nothing is undone.
    An undo is itself a change: a second undo reverts the first, and asks if that is a large change.
    """
    if id is not None:
        return report_earlier(run, as_json, id, timeout, "undo")
    return give(run, lambda job: job.undo(name, on=on, timeout=timeout), as_json, lambda job: _question(job, name), yes)


def _question(job: Run, name: str) -> str:
    """Return the question before an undo of an undo, if it is a large change again."""
    change = job.newest_change(name).record
    far = leap(change.new, change.old)
    if change.what != "undo" or not far:
        return ""
    return f"{change.name} of {job.name}: {change.new!r:.60} → {change.old!r:.60} is a change {far}. Undo the undo?"
