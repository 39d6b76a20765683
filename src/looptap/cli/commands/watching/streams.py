"""`looptap streams`: the streams that a run declares."""

from __future__ import annotations

from typing import Annotated

import msgspec
from rich.text import Text
from typer import Option

from looptap.cli.formats import cost, printable, problems, scalar_lines, several, sized, stated
from looptap.cli.options import RunName
from looptap.cli.output import DONE, console, say_json
from looptap.client.attach import attach
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import StreamInfo
from looptap.store.kept_scalars import Scalars


def streams_command(
    run: RunName,
    as_json: Annotated[bool, Option("--json", help="Print one JSON array with an object for each stream.")] = False,
) -> int:
    """List the streams that a run declares, and its scalars.

    The history of both begins before you attach.

    \b
      looptap streams digits-cnn
      looptap watch digits-cnn loss
      looptap plot digits-cnn "step, loss"

    Of each stream: its name, its query and type of event, how many values there were, how many of them the job still
    holds, how many come per second, and what the query costs. Scalars, which every job
    keeps, are listed with their newest number. --json prints only the streams; looptap top RUN --json has the scalars.
    """
    with attach(run) as job:
        found, viewer = job.streams, job.role == VIEWER
        scalars = Scalars() if viewer or as_json else job.scalars
    if as_json:
        return say_json(msgspec.to_builtins(found))
    lines = console()
    if not found and viewer:
        lines.print("No stream is exported.")
    elif not found and not scalars:
        lines.print(
            "The job declares no stream, and its events carry no number so far: agent.emit('batch', loss=loss)."
        )
    for stream in found:
        lines.print(stream_line(stream))
    for line in scalar_lines(scalars):
        lines.print(Text.assemble(("scalars", "cyan"), " on ", printable(line)))
    return DONE


def stream_line(stream: StreamInfo) -> Text:
    """Return one stream as a line."""
    unit = f" [{printable(stream.unit)}]" if stream.unit else ""
    source = printable(f" {stream.query} on {stream.on}" if stream.on else " logged")
    facts = [
        several(stream.values, "value"),
        f"{stream.held:,} held ({sized(stream.bytes)})",
        f"{stream.rate:,.3g} per second",
        cost(*stream.cost),
        *stated(
            ("exported", stream.exported),
            ("kept", stream.kept),
            (f"shown by {several(len(stream.shares), 'share')}", stream.shares),
            (f"handed over by {stream.by}", stream.by),
        ),
        *problems(errors=stream.errors, state=stream.state),
    ]
    return Text.assemble((printable(stream.name), "cyan"), unit, (source, "dim"), f": {', '.join(facts)}")
