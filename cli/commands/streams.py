"""`looptap streams`: the standing streams of a run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from looptap.cli.formats import cost, json_of, printable, several, size
from looptap.cli.output import DONE
from looptap.client.attach import attach
from looptap.client.streams.stream_info import StreamInfo


def streams(name: str, *, as_json: bool) -> int:
    """Print the standing streams of the run ``name``; returns the exit code."""
    with attach(name) as run:
        found, viewer = [plain(stream) for stream in run.streams], run.role == "viewer"
    if as_json:
        print(json_of(found))
        return DONE
    console = Console(highlight=False, soft_wrap=True)
    if not found:
        console.print(
            "No stream is exported." if viewer
            else "The job declares no stream. One with agent.stream(…) or agent.log(…) would be here."
        )  # fmt: skip
    for facts in found:
        console.print(described(facts))
    return DONE


def plain(stream: StreamInfo) -> dict[str, Any]:
    """One stream as plain data."""
    facts = stream._asdict()
    cost = facts.pop("cost")
    return {**facts, "nanoseconds_per_event": cost.nanoseconds, "share_of_time": cost.share}


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
    facts += [mark for mark in ("exported", "kept") if stream.get(mark)]
    if stream.get("shares"):
        facts.append(f"shown by {several(len(stream['shares']), 'share')}")
    if stream.get("by"):
        facts.append(f"handed over by {stream['by']}")
    if stream["errors"]:
        facts.append(several(stream["errors"], "error"))
    if stream["state"] != "live":
        facts.append(stream["state"])
    return Text.assemble((printable(stream["name"]), "cyan"), unit, (source, "dim"), f": {', '.join(facts)}")
