"""What the notes on a query say about events that have not come."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from looptap.agent.loop.calls.call_events import function_of
from looptap.streams.expressions import nearest

_EARLIER = "window=10 for earlier values"
MAX_LISTED_NAMES = 20
"""Event types that a note lists."""


def notes_of_missing(on: str, seen: Sequence[str], *, likely: bool) -> list[str]:
    """Return what to say of a type of events that has had none, where others were.

    ``likely`` says that such events were to be expected.

    >>> print(notes_of_missing("bacth", ["batch"], likely=False)[0])
    no 'bacth' event so far, only batch. Did you mean 'batch'?
    """
    if name := function_of(on):
        return [
            f"an event comes whenever a function {name} of the job ends; its names are arguments, result, seconds, "
            "function, exception, and the variables that it has then"
        ]
    near = nearest(on, seen)
    there = f"no {on!r} event so far, only {listed_names(seen)}." if seen else "no event of any type so far."
    notes = [f"{there}{' ' * bool(near)}{near}"]
    if emits_are_compiled(likely=likely and not near):
        notes.append("emit does nothing inside a function that torch.compile compiles: call it outside")
    return notes


def notes_of_groups(on: str, groups: Sequence[str], seen: Sequence[str]) -> list[str]:
    """Return what to say of a query over groups that no event has ended so far."""
    if on not in groups[:-1]:
        return [f"no event ends a group of {on!r}: its window closes at the end of the run; use {_EARLIER}"]
    ends = groups[groups.index(on) + 1 :]
    if on not in seen or any(event in seen for event in ends):
        return []
    shown = " or ".join(map(repr, ends))
    return [f"its first value comes with the next {shown} event, of which there was none so far; use {_EARLIER}"]


def emits_are_compiled(likely: bool) -> bool:
    """Return True if torch.compile has compiled a function that calls ``emit``.

    Of a function that is compiled with the one that calls it there is no trace: then ``likely`` decides, if anything
    was compiled.
    """
    try:
        compiled = [reference() for reference in list(sys.modules["torch._dynamo.convert_frame"].input_codes.seen)]
        graphs = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    except (KeyError, AttributeError):  # Dynamo is not loaded, or another one
        return False
    return bool(likely and graphs) or any("emit" in code.co_names for code in compiled if code is not None)


def listed_names(names: Sequence[str]) -> str:
    """Format names as a sentence of bounded length."""
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more:,} more" if more > 0 else "")
