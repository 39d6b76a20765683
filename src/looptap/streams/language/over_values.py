"""What a query over the values of a stream does not have: events."""

from __future__ import annotations

import ast
from collections.abc import Collection

from looptap.streams.errors import QueryError
from looptap.streams.expressions import SourceText, nearest

HINT = "Over the values of a stream the sequence is 'values'."


def check_parameter(name: str, source: str) -> None:
    """Raise QueryError if a function of values names its parameter ``events``."""
    if name == "events" != source:
        raise QueryError("there is no 'events' here.", hint=HINT)


def check_field(node: ast.Name, fields: Collection[str] | None, text: SourceText) -> None:
    """Raise QueryError for a name that the rows of a stream, with these fields, lack."""
    if fields:
        hint = nearest(node.id, fields) or ("A value is v: v.loss, or just loss." if node.id == "e" else "")
        raise text.error(f"there is no field {node.id!r}; there are: {', '.join(sorted(fields))}.", node, hint)


def event_of_latest(call: ast.expr, of_events: bool, text: SourceText) -> str:
    """Return the type of events that a call of `latest` names. Raises QueryError."""
    assert isinstance(call, ast.Call)
    if not of_events:
        raise text.error(
            "latest reads another type of events, and here are values of a stream.",
            call,
            "Read it where the values are made, as in (loss, latest('epoch').error), or use looptap.join.",
        )
    if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant) or not isinstance(call.args[0].value, str):
        raise text.error("latest takes the name of an event.", call, "latest('epoch').error")
    return call.args[0].value
