"""The refusal of an operation that is not known to be harmless."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from types import CodeType, TracebackType

from looptap.streams.errors import QueryError

WAY_OUT = "To run it as it is, on record: unsafe=True (--unsafe). To change the job on purpose: run.call."
"""What to do about a refused query."""


class Refusal(BaseException):
    """An operation that was not carried out; the job's functions cannot catch it."""

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.passing = reason, passing


class RefusedQuery(QueryError):
    """A query that cannot be proven harmless; nothing has happened."""


def as_error(refusal: Refusal, text: str, file_of: Callable[[CodeType], str]) -> RefusedQuery:
    """Return the error of a query that was refused, with the place of the operation.

    ``file_of`` returns the file of a rewritten function, "" for other code.
    """
    place = _place(refusal.__traceback__, file_of)
    error = RefusedQuery(f"Refused: {place}{refusal.reason}.", text, hint=WAY_OUT)
    error.hopeless, error.passing = not refusal.passing, refusal.passing
    return error


def _place(traceback: TracebackType | None, file_of: Callable[[CodeType], str]) -> str:
    """Return the line of the job that was refused; "" for the query's own text."""
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = file_of(code)
        if file and not file.startswith("<query"):
            line = linecache.getline(file, traceback.tb_lineno).strip()
            place = f"in {code.co_name} ({file}:{traceback.tb_lineno}): {line:.120}: "
        traceback = traceback.tb_next
    return place
