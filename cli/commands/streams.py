"""`looptap streams`: the standing streams of a run."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from looptap.cli.formats import cost, json_of, printable, several, size
from looptap.cli.output import DONE
from looptap.client.attach import attach
from looptap.protocol.keys import VIEWER
from looptap.protocol.replies import StreamInfo


def streams(name: str, *, as_json: bool) -> int:
    """Print the standing streams of the run ``name``; returns the exit code."""
    with attach(name) as run:
        found, viewer = run.streams, run.role == VIEWER
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
    """One stream on a line."""
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
