"""Access control: the roles that may send each type of message; default deny."""

from __future__ import annotations

from looptap.protocol.keys import OPERATOR, VIEWER
from looptap.protocol.messages import (
    Agree,
    Attach,
    Beat,
    Call,
    CloseWindow,
    Command,
    CreateShare,
    DeclareStream,
    Detach,
    GetClock,
    GetCommands,
    GetConfig,
    GetControls,
    GetModules,
    GetScalars,
    GetShares,
    GetStacks,
    GetStats,
    GetStreams,
    Got,
    Grant,
    Hello,
    Leave,
    Read,
    Revoke,
)

_BOTH = frozenset({OPERATOR, VIEWER})
_OPERATOR = frozenset({OPERATOR})

ALLOWED: dict[type, frozenset[str]] = {
    Hello: _BOTH,
    Beat: _BOTH,
    Got: _BOTH,
    Leave: _BOTH,
    GetStreams: _BOTH,
    GetConfig: _BOTH,
    Read: _BOTH,
    Detach: _BOTH,
    Attach: _OPERATOR,
    CloseWindow: _OPERATOR,
    Grant: _OPERATOR,
    Call: _OPERATOR,
    Command: _OPERATOR,
    Agree: _OPERATOR,
    GetStats: _OPERATOR,
    GetStacks: _OPERATOR,
    GetControls: _OPERATOR,
    GetCommands: _OPERATOR,
    GetScalars: _OPERATOR,
    GetModules: _OPERATOR,
    GetShares: _OPERATOR,
    GetClock: _OPERATOR,
    DeclareStream: _OPERATOR,
    CreateShare: _OPERATOR,
    Revoke: _OPERATOR,
}
"""The roles that may send each type of message. A viewer reads what is exported, and sends no code."""


def may_send(role: str, message: object) -> bool:
    """Return True if `ALLOWED` lets a client of ``role`` send ``message``.

    >>> may_send("operator", Leave()), may_send("viewer", Leave()), may_send("", Leave())
    (True, True, False)
    """
    return role in ALLOWED.get(type(message), ())


def refusal(role: str, message: object) -> str:
    """Return a sentence that says why ``role`` may not send ``message``.

    >>> refusal("guest", GetClock(request=1))
    "The role 'guest' may not ask for the clock of the job."
    """
    what = _CALLED.get(type(message), type(message).__name__)
    if role == VIEWER:
        return f"A viewer may not {what}: it can only read the streams that are exported to it (run.streams)."
    return f"The role {role!r} may not {what}."


_CALLED: dict[type, str] = {
    Attach: "ask a query of the job",
    CloseWindow: "close a window",
    Grant: "grant a query more time",
    Call: "run code in the job",
    Command: "change the job",
    GetStats: "ask for the counters of the job",
    GetStacks: "ask where the threads of the job are",
    GetControls: "ask for the controls of the job",
    GetCommands: "ask for the commands of the job",
    GetScalars: "ask for the history of scalars",
    GetModules: "ask for the modules of the job's models",
    GetShares: "ask for the shares of the run",
    GetClock: "ask for the clock of the job",
    DeclareStream: "export or keep a stream",
    CreateShare: "share the run",
    Revoke: "end a share",
}
