"""`history=True` of `Run.stream`: which queries have a history."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from looptap.client.session.run_handle import RunHandle
from looptap.client.transport.timeouts import REPLY_SECONDS
from looptap.protocol import messages as m
from looptap.protocol.keys import VIEWER
from looptap.store.kept_scalars import readings
from looptap.streams.errors import QueryError

NO_HISTORY = "begins with the next event: of these names no history is kept (run.scalars lists those that have one)"
"""A note on a stream of names that has been asked for with a history."""


def kept_history(run: RunHandle, query: str) -> bool | None:
    """Return True if a stream of this query can begin with a history, else None.

    `Run.stream` takes either. Raises NoAnswer.
    """
    if run.role == VIEWER:
        return None
    return _names_in(query, _kept(run)) or None


def check_history(run: RunHandle, query: str | Callable[..., Any], asked: m.Attach, combine: object) -> None:
    """Raise QueryError if a query cannot begin with a history. Raises NoAnswer."""
    if not isinstance(query, str):
        text = "history=True needs a query in text, such as 'loss'; this one is a function."
        raise QueryError(text, hint=_way_out("loss", "v * 2"))
    if asked.when is not None:
        raise QueryError("history=True: when= sends values around events to come. Leave out one of the two.")
    if combine is not None:
        raise QueryError(
            "history=True: values that are combined over ranks begin when you attach. Leave it out; ranks='all' "
            "without combine= begins with the history of each rank."
        )
    if all(part.strip().isidentifier() for part in query.split(",")):  # if they have one: NO_HISTORY
        return
    kept = _kept(run)
    if not (_names_in(query, kept) or (asked.named and _is_declared(run, query))):
        raise QueryError(
            "history=True needs names, whose values are kept; this is an expression.", query, hint=_hint(query, [*kept])
        )


def _kept(run: RunHandle) -> dict[str, str]:
    """Return the queries of the numbers that have a history, by name."""
    report = run.session.inquire(m.GetScalars, "The question for the scalars", REPLY_SECONDS)
    return {one.name: one.query for one in report.scalars}


def _is_declared(run: RunHandle, name: str) -> bool:
    streams = run.session.inquire(m.GetStreams, "The question for the declared streams", REPLY_SECONDS)
    return any(one.name == name for one in streams)


def _names_in(query: str, kept: dict[str, str]) -> bool:
    known = {*kept, *kept.values()}
    return any(known.issuperset(parts) for parts in readings(query))


def _hint(query: str, kept: list[str]) -> str:
    """Return how to get what an expression asks for."""
    words = {*re.findall(r"\w+", query)}
    names = [name for name in kept if name in words]
    if "events" in words:
        return _way_out(", ".join(names) or "loss", "mean(values)", window=", window=100")
    if len(names) == 1:
        return _way_out(names[0], re.sub(rf"\b(e\.)?{names[0]}\b", "v", query))
    return _way_out(", ".join(names), query) if names else _way_out("loss", "v * 2")


def _way_out(names: str, query: str, window: str = "") -> str:
    return (
        "Ask over the values on this side, where those of the history come first: "
        f"run.stream({names!r}).query({query!r}{window})"
    )
