"""The errors of looptap, one tree.

LooptapError
├── QueryError            a query that cannot be compiled or cannot stream (column and hint)
├── SnapshotError         a value that cannot leave the job (type and path)
├── StreamEnded           a stream that ended or failed before it yielded the awaited values
├── StreamTimeout         a stream whose values did not come in time
├── ControlError          a change that a control refuses
│   ├── ControlConflict   because another client has changed it meanwhile
│   ├── CommandCancelled  a command cancelled before its event; no rank has executed it
│   ├── NotAgreed         on several ranks: not all reached its event, so none executed it
│   │   └── EventPassed   since one of them had passed it
│   └── InDoubt           on several ranks: one did not execute it, others may have
├── StoreError            looptap.store.errors: a stored run that cannot be opened, read or exported
└── LinkError             looptap.protocol.errors: everything between two processes
"""

from __future__ import annotations


class LooptapError(Exception):
    """Base of all errors of looptap."""

    hopeless = False
    """True if no later event can mend it."""
    passing = False
    """True if it is of this event alone, even where it comes at many in a row."""


class QueryError(LooptapError):
    """A query that cannot be compiled, cannot stream or cannot be evaluated.

    ``source`` is the query's text, ``column`` the 0-based offset of the culprit in it (None if unknown),
    ``hint`` a way out. The printed form shows the text with a caret below the column.
    """

    def __init__(self, reason: str, source: str = "", column: int | None = None, hint: str = "") -> None:
        super().__init__(reason, source, column, hint)
        self.reason, self.source, self.column, self.hint = reason, source, column, hint

    def __str__(self) -> str:
        lines = [self.reason]
        if self.source and self.column is not None and "\n" not in self.source:
            lines += ["    " + self.source, "    " + " " * self.column + "^"]
        elif self.source:
            lines += ["    " + line for line in self.source.splitlines()]
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class MissingObservable(QueryError, AttributeError):
    """A name that an event lacks; the message lists the names that it has.

    It is hopeless if it is a misspelling of one of these, or a name that the job does not know.
    """


class UnknownObservable(MissingObservable):
    """A name that this event lacks, and others of its type may have."""


class SnapshotError(LooptapError):
    """A value that cannot leave the job; the message names its type and path."""


class StreamEnded(LooptapError):
    """A stream that ended before the awaited values came; the message says why."""


class StreamTimeout(LooptapError, TimeoutError):
    """A stream whose values did not come in time; the message says what arrived."""


class ControlError(LooptapError, ValueError):
    """A refused change: unknown name, wrong type, out of range, wrong moment."""


class ControlConflict(ControlError):
    """A control that another client has changed since it was read."""


class CommandCancelled(ControlError):
    """A command cancelled before its event; no rank has executed it."""


class NotAgreed(ControlError):
    """A command that no rank executed: not all reached its event in time."""


class EventPassed(NotAgreed):
    """A command whose event one rank had passed already; try another event."""


class InDoubt(ControlError):
    """A command that one rank did not execute, while others may have."""
