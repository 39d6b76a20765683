"""`looptap streams`: the streams that a run declares."""

from __future__ import annotations

from typing import Annotated

import msgspec
from rich.console import Console
from rich.text import Text
from typer import Option

from looptap.cli.formats import cost, json_of, printable, several, size
from looptap.cli.options import RunName
from looptap.cli.output import DONE
from looptap.client.attach import attach
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import StreamInfo


def main(
    run: RunName,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each stream.")] = False,
) -> int:
    """List the streams that a run declares, with their history.

    The history of a declared stream begins before you attach.

    \b
      looptap streams digits-cnn
      looptap watch digits-cnn loss

    Of each: its name, its query and type of event, how many values there were, how many of them the job still holds,
    how many come per second, and what the query costs.
    """
    with attach(run) as job:
        found, viewer = job.streams, job.role == VIEWER
    if as_json:
        print(json_of(msgspec.to_builtins(found)))
        return DONE
    console = Console(highlight=False, soft_wrap=True)
    if not found:
        console.print(
            "No stream is exported." if viewer
            else "The job declares no stream. One with agent.stream(…) or agent.log(…) would be here."
        )  # fmt: skip
    for stream in found:
        console.print(described(stream))
    return DONE


def described(stream: StreamInfo) -> Text:
    """Return one stream as a line."""
    unit = f" [{printable(stream.unit)}]" if stream.unit else ""
    source = printable(f" {stream.query} on {stream.on}" if stream.on else " logged")
    facts = [
        several(stream.values, "value"),
        f"{stream.held:,} held ({size(stream.bytes)})",
        f"{stream.rate:,.3g} per second",
        cost(*stream.cost),
        *(["exported"] if stream.exported else []),
        *(["kept"] if stream.kept else []),
    ]
    if stream.shares:
        facts.append(f"shown by {several(len(stream.shares), 'share')}")
    if stream.by:
        facts.append(f"handed over by {stream.by}")
    if stream.errors:
        facts.append(several(stream.errors, "error"))
    if stream.state != "live":
        facts.append(stream.state)
    return Text.assemble((printable(stream.name), "cyan"), unit, (source, "dim"), f": {', '.join(facts)}")
