"""`looptap names`: what the events of a job offer to queries."""

from __future__ import annotations

from typing import Annotated

from rich.text import Text
from typer import Option

from looptap.cli.formats import printable
from looptap.cli.options import RunName, TimeSpan, time_of
from looptap.cli.output import DONE, console, say_json
from looptap.client.attach import attach
from looptap.client.estimates import commonest


def names_command(
    run: RunName,
    on: Annotated[
        str | None, Option("--on", metavar="EVENT", help="The type of event.", show_default="the commonest")
    ] = None,
    timeout: Annotated[
        float, Option("--timeout", metavar="TIME", parser=time_of, help="How long to wait for an event, such as 5m.")
    ] = TimeSpan(60),
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each name.")] = False,
) -> int:
    """List the names that a run's next event offers to queries.

    \b
      looptap names digits-cnn
      looptap names digits-cnn --on epoch
      looptap watch digits-cnn "loss, x.mean()"

    Of each name: the class of its value, the shape and the type of numbers of an array or a tensor, and where it is
    from: the event itself, what the job exposes, looptap, the machine, or a function or module of a script.
    """
    with attach(run) as job:
        found = job.names(on or commonest(job), timeout)
    if as_json:
        return say_json([{"name": name, **one._asdict()} for name, one in found.items()])
    lines, width = console(), max(map(len, found))
    for name, one in found.items():
        lines.print(Text.assemble((f"{printable(name):{width}}", "cyan"), f"  {printable(str(one))}"))
    return DONE
