"""`looptap streams`: the standing streams of a run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from looptap.cli.formats import cost, json_of, printable, several, size
from looptap.cli.start import DONE
from looptap.client.discover import attach


def streams(name: str, *, as_json: bool) -> int:
    """Print the standing streams of the run ``name``; returns the exit code."""
    with attach(name) as run:
        found = [
            {**stream._asdict(), "nanoseconds_per_event": stream.cost.nanoseconds, "share_of_time": stream.cost.share}
            for stream in run.streams
        ]
    for facts in found:
        del facts["cost"]
    if as_json:
        print(json_of(found))
        return DONE
    console = Console(highlight=False, soft_wrap=True)
    if not found:
        console.print("The job declares no stream. One with agent.stream(…) or agent.log(…) would be here.")
    for facts in found:
        console.print(described(facts))
    return DONE


def described(stream: dict[str, Any]) -> Text:
    """What there is to say of one stream, as its run tells it."""
    unit = f" [{printable(stream['unit'])}]" if stream["unit"] else ""
    source = printable(f" {stream['query']} on {stream['on']}" if stream["on"] else " logged")
    facts = [
        several(stream["values"], "value"),
        f"{stream['held']:,} held ({size(stream['bytes'])})",
        f"{stream['rate']:,.3g} per second",
        cost(stream["nanoseconds_per_event"], stream["share_of_time"]),
    ]
    if stream["errors"]:
        facts.append(several(stream["errors"], "error"))
    if stream["state"] != "live":
        facts.append(stream["state"])
    return Text.assemble((printable(stream["name"]), "cyan"), unit, (source, "dim"), f": {', '.join(facts)}")
