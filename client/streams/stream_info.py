"""What a run tells of its standing streams: those that the job declares, with a history."""

from __future__ import annotations

from typing import Any, NamedTuple

from looptap.protocol.errors import MessageError
from looptap.streams.stream.stream import Cost

_MAX_STREAMS = 10_000  # streams that an agent may tell of


class StreamInfo(NamedTuple):
    """One standing stream of a run, as of the moment when it was asked for; `Run.stream` reads it by its name."""

    name: str
    query: str
    """Empty if the job hands the values over itself (`Agent.log`)."""
    on: str
    unit: str
    fields: tuple[str, ...] | None
    """The names of the elements of a value, if the values are rows."""
    state: str
    reason: str
    values: int
    """How many there have been so far."""
    held: int
    """How many of them the history holds, the newest ones."""
    bytes: int
    """What these take."""
    rate: float
    """Values per second, at present."""
    errors: int
    readers: int
    cost: Cost
    """Of the query, which runs once, whoever reads."""
    exported: bool = False
    """Whether viewers see it."""
    kept: bool = False
    """Whether its values go to the file of the run."""
    shares: tuple[str, ...] = ()
    """The ids of the shares whose viewers see it beside; empty for a viewer."""
    by: str = ""
    """The client that has handed its query over (`Run.export`, `Run.keep`); empty for one that the job declares."""


def standing_streams(told: Any) -> list[StreamInfo]:
    """The list that an agent has told. Raises MessageError if it is none."""
    if not isinstance(told, list | tuple) or len(told) > _MAX_STREAMS:
        raise MessageError("The question for the standing streams was answered with something else.")
    return [standing_stream(entry) for entry in told]


def standing_stream(told: Any) -> StreamInfo:
    """One stream that an agent has told of. Raises MessageError if it is none."""
    try:
        facts: dict[str, Any]
        facts = {name: told[name][:10_000] + "" for name in ("name", "query", "on", "unit", "state", "reason")}
        facts |= {name: int(told[name]) for name in ("values", "held", "bytes", "errors", "readers")}
        fields = None if told["fields"] is None else tuple(str(name)[:1000] for name in told["fields"][:1000])
        cost = Cost(float(told["nanoseconds_per_event"]), float(told["share_of_time"]))
        facts |= {"exported": told.get("exported") is True, "kept": told.get("kept") is True}
        facts["shares"] = tuple(str(share)[:100] for share in told.get("shares", ())[:1000])
        facts["by"] = str(told.get("by", ""))[:1000]
        return StreamInfo(**facts, fields=fields, rate=float(told["rate"]), cost=cost)
    except (AttributeError, TypeError, KeyError, ValueError, OverflowError):
        raise MessageError("A standing stream that is told of with something else than its facts.") from None
